// Servers that misbehave on purpose, on another origin than the pages of the tests.

import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { root, unpacked } from "./server.mjs";

export const PAGE = Buffer.from("<!doctype html>\n<title>Home</title>\n<p>Welcome!</p>\n");

/**
 * Starts a server of `files(path)`, which gives bytes or nothing. `server.rule(request)` says how it answers a request
 * (`path`, `method`, `range`, `query`, and `count`, the number of its predecessors for the same path):
 * - `page`: with this content and status 200, by default with the type of a page;
 * - `status`: with this status;
 * - `noCors`, `plainCors`: without CORS headers, or without exposing any other header;
 * - `noRanges`: with the whole file; `noLength`: without saying its length; `gzip`: compressed;
 * - `instead(first, last)`: with the bytes of another range than that which was asked for;
 * - `cap`: with at most so many bytes of a range; `cutAt`, `stallAt`: breaking or falling silent after so many;
 * - `etag`, `type`: with these headers; `delay`: after so many milliseconds.
 */
export async function misbehave(files, rule = () => ({})) {
  const state = { rule, requests: [], origin: "", gone: 0 };
  const counts = new Map();
  const server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url, "http://localhost");
    const path = decodeURIComponent(pathname).slice(1);
    const count = counts.get(path) ?? 0;
    counts.set(path, count + 1);
    const { method, headers } = request;
    const entry = { path, method, range: headers.range ?? null, query: searchParams, count };
    state.requests.push(entry);
    const fault = state.rule(entry) ?? {};
    setTimeout(() => answer(entry, response, files(path), fault), fault.delay ?? 0);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  state.origin = `http://localhost:${server.address().port}`;
  state.asked = (part) => state.requests.filter(({ path }) => path.includes(part));
  /** Forgets earlier requests, and follows this rule. */
  state.begin = (rule = () => ({})) => {
    state.rule = rule;
    state.requests.length = 0;
    counts.clear();
  };
  state.close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return state;
}

function answer({ method, range }, response, bytes, fault) {
  const headers = corsHeaders(fault);
  if (fault.status) return response.writeHead(fault.status, headers).end("no");
  const { page } = fault;
  if (page) return response.writeHead(200, { ...headers, "content-type": fault.type ?? "text/html" }).end(page);
  if (!bytes) return response.writeHead(404, headers).end();
  headers["content-type"] = fault.type ?? "application/octet-stream";
  headers.etag = fault.etag ?? `"${bytes.length}"`;
  let [status, body] = [200, bytes];
  const asked = /^bytes=(\d+)-(\d+)$/.exec(range ?? "");
  if (asked && !fault.noRanges) {
    const wanted = asked.slice(1).map(Number);
    if (wanted[0] >= bytes.length) return response.writeHead(416, headers).end();
    const [first, last] = fault.instead?.(...wanted) ?? wanted;
    body = bytes.subarray(first, Math.min(last + 1, first + (fault.cap ?? Infinity)));
    headers["content-range"] = `bytes ${first}-${first + body.length - 1}/${bytes.length}`;
    status = 206;
  }
  if (fault.gzip) {
    body = gzipSync(body);
    headers["content-encoding"] = "gzip";
  }
  if (!fault.noLength) headers["content-length"] = body.length;
  response.writeHead(status, headers);
  if (method === "HEAD") return response.end();
  const stop = fault.cutAt ?? fault.stallAt;
  if (stop === undefined || stop >= body.length) return response.end(body);
  response.write(body.subarray(0, stop), () => {
    if (fault.cutAt !== undefined) setTimeout(() => response.destroy(), 20);
  });
}

function corsHeaders({ noCors, plainCors }) {
  if (noCors) return {};
  const headers = { "access-control-allow-origin": "*" };
  if (!plainCors) headers["access-control-expose-headers"] = "Content-Range, ETag, Content-Encoding";
  return headers;
}

const DATA = unpacked("gguf");
/** A small GGUF file, and what it answers. */
export const TINY = "tiny-qwen3-Q4_0.gguf";
export const tiny = readFileSync(join(DATA, TINY));
const [, { prompt, greedy }] = JSON.parse(readFileSync(join(DATA, "reference.json"), "utf8")).cases[TINY].cases;
export const GREEDY = greedy;

/** The demo model's folder. */
export function demoFile(path) {
  const file = join(root, "assets/demo", path);
  return path !== "" && existsSync(file) ? readFileSync(file) : undefined;
}

/**
 * Loads a model in a page, on the processor, and resolves to its greedy tokens after a fixed prompt, the notices, and
 * the events of progress; or to the error. `options.text` is a conversation instead, and `tokens` is the number of
 * tokens of its prompt.
 */
export async function tokens(page, options) {
  return await page.evaluate(inPage, { options, prompt, count: greedy.length });
}

async function inPage({ options: { text, ...options }, prompt, count }) {
  const phases = {};
  const onProgress = ({ phase }) => (phases[phase] = (phases[phase] ?? 0) + 1);
  const result = await outcome(async () => {
    const common = { device: "cpu", limits: { maxNumSeqs: 1, maxModelLen: 128 }, rangeBytes: 1 << 18, onProgress };
    const engine = await folio.load({ ...common, ...options });
    const limits = { temperature: 0, max_tokens: count, ignore_eos: true, return_token_ids: true };
    const messages = [{ role: "user", content: text }];
    const { choices, usage } = text
      ? await engine.chat.completions.create({ messages, ...limits, max_tokens: 1 })
      : await engine.completions.create({ prompt, ...limits });
    const { notices } = engine.info;
    await engine.unload();
    return { tokens: text ? usage.prompt_tokens : choices[0].token_ids, notices };
  });
  return { ...result, ...result.value, phases };
}
