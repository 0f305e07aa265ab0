// The engine on the processor, in a browser without WebGPU: kernels, tokens, and a worker that stays responsive.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { root, serve } from "./support/server.mjs";

let server, browser, page, errors;

before(async () => {
  server = await serve();
  browser = await launch({ webgpu: false });
  ({ page, errors } = await browser.page(server.origin));
});
after(async () => {
  await browser.close();
  await server.close();
});

test("without WebGPU the processor is chosen, and its greedy tokens are the reference's", async () => {
  const { info, refused } = await page.evaluate(async () => {
    const refused = await outcome(() => folio.load({ model: demo, device: "webgpu" }));
    window.engine = await folio.load({ model: demo, limits: { maxNumSeqs: 4 } });
    return { info: engine.info, refused };
  });
  assert.equal(refused.name, "NoAdapterError");
  assert.deepEqual([info.adapter, info.tier], ["CPU", "simd128, 1 threads"]);
  const { prompts } = JSON.parse(readFileSync(join(root, "assets/demo/recipe/golden.json"), "utf8"));
  for (const { messages, greedy_ids } of prompts.filter(({ tools }) => !tools)) {
    const answer = await page.evaluate(
      (messages) =>
        engine.chat.completions.create({ messages, temperature: 0, max_tokens: 64, return_token_ids: true }),
      messages,
    );
    assert.deepEqual(answer.choices[0].token_ids, greedy_ids, JSON.stringify(messages));
  }
  assert.deepEqual(errors, []);
});

test("while it computes, the worker streams, takes requests and cancels", async () => {
  const result = await page.evaluate(async () => {
    const story = { prompt: "Once upon a time", temperature: 0, max_tokens: 200, ignore_eos: true };
    const stream = await engine.completions.create({ ...story, stream: true });
    let pieces = 0;
    let during = null;
    for await (const chunk of stream) {
      if (!chunk.choices[0]?.text) continue;
      if (++pieces === 3) {
        // Another request is answered while this one runs.
        await engine.completions.create({ ...story, max_tokens: 2 });
        during = await engine.stats();
        break;
      }
    }
    let after = during;
    for (let turn = 0; turn < 200 && after.requestsRunning > 0; turn++) after = await engine.stats();
    return { pieces, during, after };
  });
  assert.equal(result.pieces, 3);
  assert.equal(result.during.requestsRunning, 1, "the stream still runs");
  assert.equal(result.after.requestsRunning, 0, "a stream that nobody reads is cancelled");
  assert.ok(result.after.generationTokens < 200 + 3 * 200, "before its end");
});

test("speculation changes no answer, and can be turned off", async () => {
  const [plain, speculating] = await page.evaluate(async () => {
    const prompt = "Rain falls on the roof. Rain falls on the road. ".repeat(2);
    const outcomes = [];
    for (const speculation of [false, undefined]) {
      const engine = await folio.load({ model: demo, device: "cpu", speculation });
      const texts = [];
      for (let turn = 0; turn < 2; turn++) {
        const answer = await engine.completions.create({ prompt, temperature: 0, max_tokens: 24, ignore_eos: true });
        texts.push(answer.choices[0].text);
      }
      outcomes.push({ texts, stats: await engine.stats() });
      await engine.unload();
    }
    return outcomes;
  });
  assert.deepEqual(speculating.texts, plain.texts);
  assert.equal(plain.stats.draftTokens, 0);
  const { draftTokens, acceptedTokens } = speculating.stats;
  assert.ok(draftTokens > 0 && acceptedTokens <= draftTokens, JSON.stringify(speculating.stats));
});

test("every kernel agrees with the reference, with and without SIMD128", async () => {
  const report = await page.evaluate(async () => {
    const engine = await import("/folio-web/engine.js");
    await engine.default({ module_or_path: "/folio-web/engine_bg.wasm" });
    return await engine.cpu_selftest();
  });
  assert.match(report, /^cpu \(cpu, portable, 1 threads\)$/m);
  assert.match(report, /^cpu \(cpu, simd128, 1 threads\)$/m);
  console.log(report.split("\n").filter((line) => line.includes(" cases, ")).join("; "));
});
