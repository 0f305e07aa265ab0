// The engine in the tab: its shaders, its tokens, its batches, its streams.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { root, serve } from "./support/server.mjs";

let server, browser, page, errors;
const demo = (file) => JSON.parse(readFileSync(join(root, "assets/demo", file), "utf8"));

before(async () => {
  server = await serve();
  browser = await launch();
  ({ page, errors } = await browser.page(server.origin));
  await page.evaluate(async () => (window.engine = await folio.load({ model: demo, device: "webgpu" })));
});
after(async () => {
  await browser.close();
  await server.close();
});

test("every shader variant compiles as it is", async () => {
  const result = await page.evaluate(async () => {
    const engine = await import("/folio-web/engine.js");
    await engine.default({ module_or_path: "/folio-web/engine_bg.wasm" });
    const adapter = await navigator.gpu.requestAdapter();
    const features = ["subgroups", "shader-f16"].filter((name) => adapter.features.has(name));
    const device = await adapter.requestDevice({ requiredFeatures: features });
    const [unproven, messages] = [[], []];
    let compiled = 0;
    for (const { name, text, subgroups, texels } of JSON.parse(engine.shader_variants())) {
      // Buffer images exist only on one native driver.
      if (texels) continue;
      const needsF16 = /^\s*enable f16;/m.test(text);
      if ((subgroups && !features.includes("subgroups")) || (needsF16 && !features.includes("shader-f16"))) {
        unproven.push(name);
        continue;
      }
      const module = device.createShaderModule({ code: text });
      const info = await module.getCompilationInfo();
      for (const { type, lineNum, message } of info.messages) {
        messages.push(`${name}: ${type}: ${message}: ${text.split("\n")[lineNum - 1]}`);
      }
      compiled++;
    }
    device.destroy();
    return { compiled, unproven, messages };
  });
  console.log(
    `${result.compiled} variants compile; unproven for want of a feature: ${result.unproven.join("; ") || "none"}`,
  );
  assert.deepEqual(result.messages, []);
  assert.ok(result.compiled > 200, "the list of variants is the library's");
});

test("greedy tokens are the reference's", async () => {
  const bytesOf = tokenBytes(demo("tokenizer.json"));
  for (const { messages, tools, greedy_ids } of demo("recipe/golden.json").prompts) {
    if (tools) continue;
    const answer = await page.evaluate(
      (messages) =>
        engine.chat.completions.create({ messages, temperature: 0, max_tokens: 64, logprobs: true, top_logprobs: 0 }),
      messages,
    );
    const found = answer.choices[0].logprobs.content.map(({ bytes }) => String(bytes));
    const wanted = greedy_ids.map((id) => String(bytesOf.get(id)));
    assert.deepEqual(found, wanted, JSON.stringify(messages));
  }
});

test("two prompts together answer as each does alone", async () => {
  const [together, alone] = await page.evaluate(async () => {
    const prompts = ["Once upon a time", "The KV cache"];
    const say = (prompt) => engine.completions.create({ prompt, temperature: 0, max_tokens: 40, ignore_eos: true });
    const text = (answer) => answer.choices[0].text;
    const together = (await Promise.all(prompts.map(say))).map(text);
    const alone = [];
    for (const prompt of prompts) alone.push(text(await say(prompt)));
    return [together, alone];
  });
  assert.deepEqual(together, alone);
});

test("two chats stream at once and share their system prompt", async () => {
  const result = await page.evaluate(async () => {
    const system = { role: "system", content: "You are kind and brief. ".repeat(24) };
    const order = [];
    const say = async (name, content) => {
      const stream = await engine.chat.completions.create({
        messages: [system, { role: "user", content }],
        max_tokens: 24,
        ignore_eos: true,
        stream: true,
        stream_options: { include_usage: true },
      });
      let usage;
      for await (const chunk of stream) {
        order.push(name);
        usage = chunk.usage ?? usage;
      }
      return usage;
    };
    const pair = () => Promise.all([say("a", "Tell me about rain."), say("b", "What is a GPU?")]);
    const cold = await pair();
    const warm = await pair();
    return { order, cold, warm };
  });
  const turns = result.order.filter((name, index) => name !== result.order[index - 1]).length;
  assert.ok(turns >= 8, `the streams take turns: ${result.order.join("")}`);
  const cached = (usages) => usages.map((usage) => usage.prompt_tokens_details.cached_tokens);
  assert.ok(result.warm[0].prompt_tokens > 96, "the system prompt has three blocks");
  assert.equal(cached(result.cold)[0], 0);
  assert.ok(cached(result.cold)[1] >= 96, "the second of a cold engine finds the first's blocks");
  assert.ok(
    cached(result.warm).every((tokens) => tokens >= 96),
    "both find them later",
  );
});

test("aborts leave the pool whole", async () => {
  const after = await page.evaluate(async () => {
    let state = 7;
    const random = (n) => (state = (state * 1103515245 + 12345) & 0x7fffffff) % n;
    const one = async (index) => {
      const controller = new AbortController();
      const params = { messages: [{ role: "user", content: `Count to ${index}` }], max_tokens: 200, ignore_eos: true };
      const kind = random(4);
      if (kind === 0) {
        // Dropped while it may still be queued.
        setTimeout(() => controller.abort(), random(40));
        await engine.chat.completions.create(params, { signal: controller.signal }).catch(() => {});
        return;
      }
      const stream = await engine.chat.completions.create({ ...params, stream: true }, { signal: controller.signal });
      let left = random(6);
      try {
        for await (const _ of stream) {
          if (left-- > 0) continue;
          if (kind === 1) break;
          if (kind === 2) stream.controller.abort();
          if (kind === 3) controller.abort();
        }
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    };
    for (let round = 0; round < 20; round++)
      await Promise.all(Array.from({ length: 10 }, (_, at) => one(round * 10 + at)));
    const deadline = performance.now() + 20_000;
    let stats;
    do {
      await new Promise((resolve) => setTimeout(resolve, 50));
      stats = await engine.stats();
    } while (performance.now() < deadline && (stats.requestsRunning || stats.requestsWaiting));
    const answer = await engine.chat.completions.create({
      messages: [{ role: "user", content: "Hello!" }],
      temperature: 0,
      max_tokens: 32,
    });
    return { stats: await engine.stats(), text: answer.choices[0].message.content };
  });
  const { stats, text } = after;
  assert.equal(text, "Hi! What can I do for you?");
  assert.ok(stats.finishedAbort >= 100, `${stats.finishedAbort} aborts reached the engine`);
  assert.equal(stats.requestsRunning + stats.requestsWaiting, 0);
  assert.ok(stats.blocksUsed <= 1, `${stats.blocksUsed} blocks are still held`);
  assert.equal(stats.finishedError, 0);
});

test("a page learns what is wrong by types", async () => {
  const results = await page.evaluate(async () => {
    const chat = (params) =>
      outcome(() => engine.chat.completions.create({ messages: [{ role: "user", content: "Hi" }], ...params }));
    return [
      await chat({ temperature: 3 }),
      await chat({ model: "nobody" }),
      await chat({ max_tokens: 0 }),
      await outcome(() => folio.load({ model: "http://[" })),
      await outcome(() => folio.load({ model: demo, limits: { blockSize: 7 } })),
      await outcome(() => folio.load({ model: demo, device: "webgpu", limits: { bindingBytes: 1000 } })),
    ];
  });
  const [hot, nobody, none, nothing, block, tight] = results;
  assert.deepEqual([hot.name, hot.status, hot.code, hot.param], ["APIError", 400, "invalid_value", "temperature"]);
  assert.deepEqual([nobody.status, nobody.code], [404, "model_not_found"]);
  assert.equal(none.name, "APIError");
  assert.equal(nothing.name, "FolioError");
  assert.deepEqual([block.name, block.code], ["LimitError", "limit"]);
  assert.equal(tight.name, "LimitError");
  assert.match(tight.message, /\d+ bytes.*1000/);
});

test("small bindings shard the weights and change no token", async () => {
  const text = await page.evaluate(async () => {
    const small = await folio.load({
      model: demo,
      device: "webgpu",
      limits: { bindingBytes: 2 << 20, maxNumSeqs: 2, maxModelLen: 256 },
    });
    const answer = await small.chat.completions.create({
      messages: [{ role: "user", content: "Hello!" }],
      temperature: 0,
      max_tokens: 32,
    });
    await small.unload();
    return answer.choices[0].message.content;
  });
  assert.equal(text, "Hi! What can I do for you?");
});

test("nothing of this was an error to the console", () => assert.deepEqual(errors, []));

/** Bytes of every token id of a byte-level tokenizer. */
function tokenBytes({ model, added_tokens }) {
  const visible = [...range(33, 126), ...range(161, 172), ...range(174, 255)];
  const byteOf = new Map(visible.map((byte) => [String.fromCodePoint(byte), byte]));
  let next = 256;
  for (const byte of range(0, 255)) if (!visible.includes(byte)) byteOf.set(String.fromCodePoint(next++), byte);
  const bytes = new Map(Object.entries(model.vocab).map(([text, id]) => [id, [...text].map((one) => byteOf.get(one))]));
  for (const { id, content } of added_tokens) bytes.set(id, [...Buffer.from(content)]);
  return bytes;
}

function range(from, to) {
  return Array.from({ length: to - from + 1 }, (_, index) => from + index);
}
