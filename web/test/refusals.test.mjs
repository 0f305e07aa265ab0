// The table of bad requests that the native tests run (`tests/data/http/bad_requests.json`), through `engine.fetch`:
// each gets the same error as there, a concurrent stream is unchanged, and the engine is healthy afterwards.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { root, serve } from "./support/server.mjs";

let server, browser, page, errors;
const BATCH = 40;

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

/** Expands the table's shorthands for long values. */
function expand(value) {
  if (Array.isArray(value)) return value.map(expand);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value);
  const [key, argument] = entries.length === 1 ? entries[0] : [];
  if (key === "$repeat") return argument[0].repeat(argument[1]);
  if (key === "$list") return Array(argument[1]).fill(expand(argument[0]));
  if (key === "$keys") return Object.fromEntries(Array.from({ length: argument }, (_, index) => [index, 1]));
  if (key === "$nest") return Array.from({ length: argument }).reduce((inner) => [inner], 1);
  return Object.fromEntries(entries.map(([name, item]) => [name, expand(item)]));
}

const PATHS = { chat: "/v1/chat/completions", completions: "/v1/completions" };
const BASES = {
  chat: { messages: [{ role: "user", content: "Hello!" }], temperature: 0, max_tokens: 24 },
  completions: { prompt: "Hello", max_tokens: 4, temperature: 0 },
  // With messages it would be another request.
  "/v1/embeddings": {},
};

/** The parts of a case that a page can send: browsers resolve paths and set some headers themselves. */
function sendable({ to = "chat", method = "POST", headers = {}, raw, bytes, depth, with: more }) {
  const url = new URL(PATHS[to] ?? to, "http://folio");
  const names = Object.keys(headers);
  if (url.host !== "folio" || url.pathname !== (PATHS[to] ?? to)) return null;
  if (names.some((name) => !["content-type", "content-encoding"].includes(name) || headers[name] === null)) return null;
  const body =
    raw ??
    (bytes && Uint8Array.from(bytes)) ??
    (depth && "[".repeat(depth)) ??
    JSON.stringify({ ...(BASES[to] ?? BASES.chat), ...expand(more ?? {}) });
  const written = typeof body === "string" ? body : { bytes };
  return { url: url.href, method, headers: { "content-type": "application/json", ...headers }, body: written };
}

test("every bad request is refused and disturbs nobody", async () => {
  const table = JSON.parse(readFileSync(join(root, "tests/data/http/bad_requests.json"), "utf8"));
  const cases = table.map((entry) => ({ entry, request: sendable(entry) })).filter(({ request }) => request);
  assert.ok(cases.length >= 200, `${cases.length} cases can be sent by a page`);
  const faults = [];
  for (let start = 0; start < cases.length; start += BATCH) {
    const batch = cases.slice(start, start + BATCH);
    const { answers, canary, neighbour, alone, load } = await page.evaluate(
      async (requests) => {
        const messages = [{ role: "user", content: "Hello!" }];
        const say = (more) => engine.chat.completions.create({ messages, ...more });
        const text = (answer) => answer.choices[0].message.content;
        const long = { temperature: 1, seed: 5, ignore_eos: true, max_tokens: 48 };
        const alone = (window.alone ??= text(await say(long)));
        const running = say(long);
        const answers = [];
        for (const { url, method, headers, body } of requests) {
          const bytes = typeof body === "string" ? body : Uint8Array.from(body.bytes);
          const init = { method, headers, body: ["GET", "HEAD"].includes(method) ? undefined : bytes };
          let [answer, time] = [null, Infinity];
          // The software adapter computes the concurrent stream meanwhile, so only a request that is slow three times
          // counts as slow.
          for (let tries = 0; tries < 3 && time > 1000; tries++) {
            const start = performance.now();
            const response = await engine.fetch(url, init);
            answer = { status: response.status, text: await response.text() };
            time = Math.min(time, performance.now() - start);
          }
          answers.push({ ...answer, time });
        }
        const neighbour = text(await running);
        const canary = text(await say({ temperature: 0, max_tokens: 32 }));
        // Blocks used by the last step in flight are freed when it has ended.
        let load;
        for (let tries = 0; tries < 100; tries++) {
          [load] = (await (await engine.fetch("http://folio/v1/loads")).json()).loads;
          if (load.num_used_tokens === 0) break;
          await new Promise((done) => setTimeout(done, 20));
        }
        return { answers, canary, neighbour, alone, load };
      },
      batch.map(({ request }) => request),
    );
    batch.forEach(({ entry }, index) => {
      const fault = faultOf(entry, answers[index]);
      if (fault) faults.push(`${JSON.stringify(entry).slice(0, 300)}: ${fault}: ${answers[index].text.slice(0, 300)}`);
    });
    assert.equal(canary, "Hi! What can I do for you?");
    assert.equal(neighbour, alone, "a neighbour's answer does not change");
    assert.deepEqual([load.num_total_reqs, load.num_used_tokens], [0, 0], "nothing is held");
  }
  console.log(`${cases.length} of ${table.length} cases can be sent by a page; ${faults.length} faults`);
  assert.deepEqual(faults, []);
});

/** What is wrong with a refusal. */
function faultOf({ status, param, code = "invalid_value" }, answer) {
  if (answer.time > 1000) return `took ${Math.round(answer.time)} ms`;
  if (answer.status !== status) return `status ${answer.status}`;
  const json = JSON.parse(answer.text);
  // Ollama's form has the message as a text, with the rest beside it.
  const ollama = typeof json.error === "string";
  const error = ollama ? json : json.error;
  const message = ollama ? json.error : error.message;
  const keys = ollama ? "error,param,code" : "message,type,param,code";
  if (String(Object.keys(error)) !== keys) return `keys ${Object.keys(error)}`;
  if (!message || message.length >= 500) return "the message is empty or long";
  if (param !== undefined && error.param !== param) return "another param";
  return error.code === code ? null : "another code";
}
