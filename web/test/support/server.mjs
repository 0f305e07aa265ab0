// A static server for the tests: the package, test pages, models, and faults of a bad server.

import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

export const web = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
export const root = dirname(web);

/** The folder of the packed models `golden` or `gguf`. */
export const unpacked = (name) =>
  execFileSync(join(root, ".ci/unpacked"), [name], { encoding: "utf8" }).trimEnd();

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".wasm": "application/wasm",
};

/**
 * Starts a server. `folders` maps the first part of a path to a folder, or to a function from a path to bytes.
 * `server.fault(request)` may return faults of the response: `status`, `delay`, `noRanges`, `cutAt` (bytes), `etag`,
 * `shorten` (bytes), `headers`. `server.requests` lists the requests.
 */
export async function serve(folders = {}) {
  const own = { "": join(web, "site"), test: join(web, "test/pages"), folder: join(root, "assets/demo") };
  const places = { ...own, ...folders };
  const state = { fault: () => ({}), requests: [], server: null, origin: "" };
  state.server = createServer((request, response) => {
    const url = new URL(request.url, "http://localhost");
    const [, first, ...rest] = decodeURIComponent(url.pathname).split("/");
    const [place, path] =
      first in places && first !== "" ? [places[first], rest.join("/")] : [places[""], [first, ...rest].join("/")];
    const entry = { path: url.pathname, method: request.method, range: request.headers.range ?? null };
    state.requests.push(entry);
    const fault = state.fault(entry) ?? {};
    setTimeout(() => answer(request, response, place, path, fault), fault.delay ?? 0);
  });
  await new Promise((resolve) => state.server.listen(0, "127.0.0.1", resolve));
  state.origin = `http://localhost:${state.server.address().port}`;
  state.close = () => {
    state.server.closeAllConnections();
    return new Promise((resolve) => state.server.close(resolve));
  };
  return state;
}

function answer(request, response, place, path, fault) {
  if (fault.status) return response.writeHead(fault.status, { "content-type": "text/plain" }).end("no");
  let bytes;
  if (typeof place === "function") bytes = place(path);
  else {
    const file = join(place, normalize(`/${path}`));
    const index = existsSync(file) && statSync(file).isDirectory() ? join(file, "index.html") : file;
    if (existsSync(index)) bytes = readFileSync(index);
    path = index;
  }
  if (!bytes) return response.writeHead(404).end();
  if (fault.shorten) bytes = bytes.subarray(0, bytes.length - fault.shorten);
  const etag = fault.etag ?? `"${bytes.length}"`;
  const headers = {
    "content-type": TYPES[extname(path)] ?? "application/octet-stream",
    etag,
    "cache-control": "no-cache",
    ...fault.headers,
  };
  const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "") ?? [];
  let [status, body] = [200, bytes];
  if (from !== undefined && !fault.noRanges) {
    const end = to ? Math.min(Number(to) + 1, bytes.length) : bytes.length;
    if (Number(from) >= bytes.length)
      return response.writeHead(416, { "content-range": `bytes */${bytes.length}` }).end();
    body = bytes.subarray(Number(from), end);
    headers["content-range"] = `bytes ${from}-${end - 1}/${bytes.length}`;
    status = 206;
  }
  headers["content-length"] = body.length;
  response.writeHead(status, headers);
  if (request.method === "HEAD") return response.end();
  if (fault.cutAt === undefined || fault.cutAt >= body.length) return response.end(body);
  response.write(body.subarray(0, fault.cutAt), () => setTimeout(() => response.destroy(), 30));
}
