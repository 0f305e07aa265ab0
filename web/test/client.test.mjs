// OpenAI's own client on `engine.fetch`, and the routes of other APIs: calls that work with a server work in the tab.

import assert from "node:assert/strict";
import { buildSync } from "esbuild";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { serve, web } from "./support/server.mjs";

let server, browser, page, errors;

before(async () => {
  const entryPoints = [join(web, "test/pages/openai.entry.mjs")];
  const { outputFiles } = buildSync({ entryPoints, bundle: true, format: "esm", platform: "browser", write: false });
  server = await serve({ bundle: () => Buffer.from(outputFiles[0].contents) });
  browser = await launch();
  ({ page, errors } = await browser.page(server.origin));
  await page.addScriptTag({ type: "module", url: "/bundle/openai.js" });
  await page.waitForFunction(() => "OpenAI" in window);
  await page.evaluate(async () => {
    window.engine = await folio.load({ model: demo, device: "webgpu" });
    const baseURL = "http://folio/v1";
    window.client = new OpenAI({
      baseURL,
      apiKey: "x",
      fetch: engine.fetch,
      dangerouslyAllowBrowser: true,
      maxRetries: 0,
    });
    window.model = "folio-tiny";
    window.hello = [{ role: "user", content: "Hello!" }];
    window.greedy = { model, messages: hello, temperature: 0, max_tokens: 32 };
  });
});
after(async () => {
  await browser.close();
  await server.close();
});

const HELLO = "Hi! What can I do for you?";

/** Runs `work` in the page and checks its result here. */
const check = (name, work, judge) => test(name, async () => judge(await page.evaluate(work)));

check(
  "models are listed",
  () => client.models.list(),
  ({ data }) => assert.equal(data[0].id, "folio-tiny"),
);

check(
  "a model is retrieved",
  () => client.models.retrieve(model),
  ({ object }) => assert.equal(object, "model"),
);

check(
  "chat, whole",
  () => client.chat.completions.create(greedy),
  (answer) => {
    assert.equal(answer.object, "chat.completion");
    assert.deepEqual(answer.choices[0].message, { role: "assistant", content: HELLO, refusal: null });
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },
);

const readStream = async () => {
  const chunks = [];
  const params = { ...greedy, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(params)) chunks.push(chunk);
  return chunks;
};
check("chat, streamed", readStream, (chunks) => {
  assert.equal(chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join(""), HELLO);
  assert.equal(new Set(chunks.map(({ id }) => id)).size, 1);
  assert.equal(chunks.filter(({ choices }) => choices[0]?.delta.role === "assistant").length, 1);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
});

check(
  "the client's own helper for streams",
  () => client.chat.completions.stream(greedy).finalContent(),
  (content) => assert.equal(content, HELLO),
);

check(
  "leaving a stream stops the answer",
  async () => {
    const before = (await engine.stats()).finishedAbort;
    const stream = await client.chat.completions.create({ ...greedy, max_tokens: 500, stream: true, ignore_eos: true });
    for await (const _ of stream) break;
    for (let tries = 0; tries < 200; tries++) {
      const { finishedAbort, requestsRunning } = await engine.stats();
      if (finishedAbort > before && requestsRunning === 0) return true;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return false;
  },
  (stopped) => assert.ok(stopped),
);

check(
  "an abort signal",
  () => {
    const signal = AbortSignal.timeout(150);
    return outcome(() => client.chat.completions.create({ ...greedy, max_tokens: 1500, ignore_eos: true }, { signal }));
  },
  ({ name, message, value }) => assert.ok(value === undefined && /abort/i.test(`${name} ${message}`), message),
);

check(
  "n choices of one prompt",
  () => client.chat.completions.create({ ...greedy, temperature: 1.2, n: 3, seed: 5 }),
  ({ choices }) =>
    assert.deepEqual(
      choices.map(({ index }) => index),
      [0, 1, 2],
    ),
);

check(
  "n choices, streamed",
  async () => (await collect(await client.chat.completions.create({ ...greedy, n: 2, stream: true }))).texts,
  (texts) => assert.deepEqual(texts, { 0: HELLO, 1: HELLO }),
);

check(
  "a stop string ends the text before itself",
  () => client.chat.completions.create({ ...greedy, stop: "can I" }),
  ({ choices }) => assert.deepEqual([choices[0].message.content, choices[0].finish_reason], ["Hi! What ", "stop"]),
);

check(
  "several stop strings, streamed",
  async () =>
    (await collect(await client.chat.completions.create({ ...greedy, stop: ["never", "do for"], stream: true }))).texts,
  (texts) => assert.deepEqual(texts, { 0: "Hi! What can I " }),
);

check(
  "a length ends it too",
  () => client.chat.completions.create({ ...greedy, max_tokens: 2 }),
  ({ choices, usage }) => assert.deepEqual([choices[0].finish_reason, usage.completion_tokens], ["length", 2]),
);

check(
  "equal seeds draw equal tokens, others do not",
  async () => {
    const say = async (seed) => {
      const params = { ...greedy, temperature: 1.5, seed, top_k: 0 };
      return (await client.chat.completions.create(params)).choices[0].message.content;
    };
    const first = await Promise.all([1, 2, 3, 4].map(say));
    return [first, await say(1)];
  },
  ([first, again]) => {
    assert.equal(again, first[0]);
    assert.ok(new Set(first).size > 1);
  },
);

check(
  "logprobs of a chat",
  () => client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 3 }),
  ({ choices, usage }) => {
    const { content } = choices[0].logprobs;
    assert.equal(content.length, usage.completion_tokens);
    for (const { token, logprob, top_logprobs } of content) {
      assert.ok(logprob <= 0 && top_logprobs.length === 3);
      assert.equal(top_logprobs[0].token, token);
    }
  },
);

check(
  "completions of several prompts",
  () => client.completions.create({ model, prompt: ["Once upon a time", "Hello"], max_tokens: 4, temperature: 0 }),
  ({ object, choices }) => assert.deepEqual([object, choices.length], ["text_completion", 2]),
);

check(
  "completions of token ids, with logprobs",
  () => client.completions.create({ model, prompt: [5, 6, 7], max_tokens: 3, temperature: 0, logprobs: 2 }),
  ({ choices, usage }) => {
    assert.equal(usage.prompt_tokens, 3);
    assert.equal(choices[0].logprobs.tokens.length, 3);
  },
);

check(
  "completions, streamed",
  async () => {
    const params = { model, prompt: "Once upon a time", max_tokens: 6, temperature: 0 };
    let text = "";
    for await (const chunk of await client.completions.create({ ...params, stream: true }))
      text += chunk.choices[0].text;
    return [text, (await client.completions.create(params)).choices[0].text];
  },
  ([streamed, whole]) => assert.equal(streamed, whole),
);

check(
  "responses: whole, streamed, and a turn that continues a stored one",
  async () => {
    const ask = { model, input: "Hello!", temperature: 0, max_output_tokens: 32 };
    const whole = await client.responses.create(ask);
    const events = [];
    for await (const event of await client.responses.create({ ...ask, stream: true })) events.push(event);
    const next = await client.responses.create({ ...ask, input: "Thanks!", previous_response_id: whole.id });
    return { text: whole.output_text, usage: whole.usage, events, next: next.usage };
  },
  ({ text, usage, events, next }) => {
    assert.equal(text, HELLO);
    assert.deepEqual(
      events.map((event) => event.sequence_number),
      [...events.keys()],
    );
    assert.deepEqual([events[0].type, events.at(-1).type], ["response.created", "response.completed"]);
    const deltas = events.filter(({ type }) => type === "response.output_text.delta");
    assert.ok(deltas.length > 1, "the text comes in pieces");
    assert.equal(deltas.map(({ delta }) => delta).join(""), HELLO);
    assert.ok(next.input_tokens > usage.total_tokens, "the prompt holds the stored turn");
  },
);

check(
  "Anthropic's messages: whole, streamed, counted",
  async () => {
    const headers = { "content-type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": "x" };
    const post = (path, more) => {
      const body = JSON.stringify({ model, messages: hello, temperature: 0, max_tokens: 32, ...more });
      return engine.fetch(`/v1/messages${path}`, { method: "POST", headers, body });
    };
    const [whole, streamed, counted] = [await post(""), await post("", { stream: true }), await post("/count_tokens")];
    const refused = await post("", { max_tokens: 0 });
    const type = streamed.headers.get("content-type");
    const answers = { whole: await whole.json(), stream: await streamed.text(), counted: await counted.json() };
    return { ...answers, type, refused: [refused.status, await refused.json()] };
  },
  ({ whole, stream, type, counted, refused }) => {
    assert.deepEqual([whole.content, whole.stop_reason], [[{ type: "text", text: HELLO }], "end_turn"]);
    assert.match(type, /^text\/event-stream/);
    const pairs = [...stream.matchAll(/^event: (.+)\ndata: (.+)$/gm)];
    const events = pairs.map(([, name, data]) => [name, JSON.parse(data)]);
    assert.ok(events.every(([name, data]) => name === data.type));
    assert.deepEqual([events[0][0], events.at(-1)[0]], ["message_start", "message_stop"]);
    const deltas = events.filter(([name]) => name === "content_block_delta");
    assert.equal(deltas.map(([, { delta }]) => delta.text).join(""), HELLO);
    assert.equal(counted.input_tokens, whole.usage.input_tokens + (whole.usage.cache_read_input_tokens ?? 0));
    assert.deepEqual([refused[0], refused[1].type, refused[1].error.type], [400, "error", "invalid_request_error"]);
  },
);

check(
  "Ollama's chat: streamed by default, whole if asked for",
  async () => {
    const post = async (path, body) => {
      const init = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
      const response = await engine.fetch(path, init);
      return { type: response.headers.get("content-type"), text: await response.text() };
    };
    const ask = { model, messages: hello, options: { temperature: 0, num_predict: 32 } };
    const [streamed, whole] = [await post("/api/chat", ask), await post("/api/chat", { ...ask, stream: false })];
    const tags = await (await engine.fetch("/api/tags")).json();
    return { streamed, whole, tags };
  },
  ({ streamed, whole, tags }) => {
    assert.equal(streamed.type, "application/x-ndjson");
    const lines = streamed.text.trimEnd().split("\n").map((line) => JSON.parse(line));
    assert.equal(lines.map(({ message }) => message.content).join(""), HELLO);
    assert.deepEqual(
      lines.map(({ done }) => done),
      lines.map((_, index) => index === lines.length - 1),
    );
    assert.ok(lines.at(-1).eval_count > 0 && lines.at(-1).total_duration > 0);
    assert.equal(JSON.parse(whole.text).message.content, HELLO);
    assert.match(tags.models[0].name, /^folio-tiny/);
  },
);

/** The client's error for a request: its class, status, code and param. */
const refusal = (name, work, ...expected) =>
  check(`refused: ${name}`, work, (error) =>
    assert.deepEqual([error.status, error.code, error.param], expected, JSON.stringify(error)),
  );

refusal(
  "an unknown model",
  () => outcome(() => client.chat.completions.create({ ...greedy, model: "x" })),
  404,
  "model_not_found",
  "model",
);
refusal(
  "a temperature of 3",
  () => outcome(() => client.chat.completions.create({ ...greedy, temperature: 3 })),
  400,
  "invalid_value",
  "temperature",
);
refusal(
  "no messages",
  () => outcome(() => client.chat.completions.create({ model })),
  400,
  "missing_required_parameter",
  "messages",
);
refusal(
  "a prompt beyond the context",
  () => outcome(() => client.completions.create({ model, prompt: Array(9000).fill(5) })),
  400,
  "context_length_exceeded",
  "prompt",
);

check(
  "an unknown route",
  async () => {
    const response = await engine.fetch("/v1/nothing");
    return [response.status, await response.json()];
  },
  ([status, { error }]) =>
    assert.deepEqual([status, Object.keys(error).sort()], [404, ["code", "message", "param", "type"]]),
);

test("nothing of this was an error to the console", () => assert.deepEqual(errors, []));
