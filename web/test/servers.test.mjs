// Servers that misbehave: nothing wrong is loaded or kept, what can be loaded is loaded, and errors name the cause.

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { demoFile, GREEDY, misbehave, PAGE, tiny, TINY, tokens } from "./support/misbehaving.mjs";
import { serve } from "./support/server.mjs";

let pages, server, browser, page, context;
before(async () => {
  const files = (path) => (path.endsWith(".gguf") ? tiny : demoFile(path.replace(/^folder\//, "")));
  [pages, server, browser] = await Promise.all([serve(), misbehave(files), launch({ webgpu: false })]);
  ({ page, context } = await browser.page(pages.origin));
});
after(async () => {
  await context.close();
  await browser.close();
  await Promise.all([pages.close(), server.close()]);
});
beforeEach(async () => {
  server.begin();
  await page.evaluate(() => folio.clearCache());
});

const gguf = () => `${server.origin}/${TINY}`;
const folder = () => `${server.origin}/folder/`;
/** A conversation with the folder's model, in few slices. */
const hello = (more) => tokens(page, { model: folder(), text: "Hello!", rangeBytes: 1 << 24, ...more });

/** Loads the small file from a server with this rule and compares its answer. */
async function loads(rule, options = {}) {
  server.begin(rule);
  const result = await tokens(page, { model: gguf(), ...options });
  assert.equal(result.message, undefined);
  assert.deepEqual(result.tokens, GREEDY);
  return result;
}

/** Fails to load the small file. */
async function refuses(rule, message, name = "NetworkError") {
  server.begin(rule);
  const result = await tokens(page, { model: gguf() });
  assert.equal(result.name, name, result.message);
  assert.match(result.message, message);
}

test("a page in place of a missing file is no file of the model", async () => {
  const alone = await hello();
  await page.evaluate(() => folio.clearCache());
  for (const type of ["text/html", "application/octet-stream"]) {
    server.begin(({ path }) => (demoFile(path.replace("folder/", "")) ? {} : { page: PAGE, type }));
    const hosted = await hello();
    assert.equal(hosted.message, undefined);
    assert.deepEqual(hosted.tokens, alone.tokens, "the prompt is the model's");
  }
  server.begin(({ path }) => (path.endsWith("config.json") ? { page: PAGE } : {}));
  await page.evaluate(() => folio.clearCache());
  const needed = await hello();
  assert.equal(needed.name, "NetworkError");
  assert.match(needed.message, /config\.json: the server answered with an HTML page/);
});

test("what a server sends in place of a model is not kept", async () => {
  await refuses(() => ({ page: PAGE }), /the server answered with an HTML page/);
  const login = Buffer.from("<!-- a comment -->\n<html><body>Log in</body></html>");
  await refuses(() => ({ page: login }), /the server answered with an HTML page/);
  const pointer = Buffer.from("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  await refuses(() => ({ page: pointer }), /the server answered with a Git LFS pointer/);
  const xml = Buffer.from('<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>');
  await refuses(() => ({ page: xml }), /the server answered with an XML document/);
  const error = Buffer.from('{"error":"quota"}');
  await refuses(() => ({ page: error, type: "application/json" }), /not a GGUF file/, "ModelError");
  await loads();
});

test("a file that a script sends with the type of a page is a file", async () => {
  await loads(() => ({ type: "text/html; charset=utf-8" }));
});

test("the bytes of another range are refused", async () => {
  const wrong = /the server sent bytes 0-262143 instead of 262144-524287/;
  await refuses(() => ({ instead: (first, last) => [0, last - first] }), wrong);
  const behind = /the server sent bytes 262244-524287 instead of 262144-524287/;
  await refuses(() => ({ instead: (first, last) => [first && first + 100, last] }), behind);
  await loads();
});

test("a range that begins before its start, as proxies send whole blocks, is cut", async () => {
  await loads(() => ({ instead: (first, last) => [first - (first % 100_000), last + 1000] }));
});

test("a stalled connection is resumed, and a lasting silence is an error", async () => {
  const result = await loads(({ count }) => (count < 2 ? { stallAt: 1000 } : {}), { silenceMs: 400 });
  assert.ok(result.phases.retry >= 2, JSON.stringify(result.phases));
  await page.evaluate(() => folio.clearCache());
  server.begin(() => ({ delay: 60_000 }));
  const silent = await tokens(page, { model: gguf(), silenceMs: 100 });
  assert.equal(silent.name, "NetworkError");
  assert.match(silent.message, /the server sent nothing for 0\.1 seconds/);
});

test("an import of KV blocks from a silent server ends", async () => {
  server.begin(({ path }) => (path.endsWith(".kv") ? { delay: 60_000 } : {}));
  const result = await page.evaluate(async (model) => {
    const engine = await folio.load({ model, device: "cpu", silenceMs: 100, limits: { maxModelLen: 64 } });
    const imported = await outcome(() => engine.cache.import(model.replace(".gguf", ".kv")));
    await engine.unload();
    return imported;
  }, gguf());
  assert.equal(result.name, "NetworkError");
  assert.match(result.message, /the server sent nothing for 0\.1 seconds/);
});

test("as long as bytes arrive, a download goes on", async () => {
  await loads(() => ({ cap: 40_000 }));
  await page.evaluate(() => folio.clearCache());
  await loads(({ count }) => (count < 6 ? { cutAt: 30_000 } : {}), { rangeBytes: 1 << 20 });
});

test("what was received of a slice is kept for the next load", async () => {
  server.begin(({ count }) => (count === 0 ? { cutAt: 100_000 } : { status: 404 }));
  assert.equal((await tokens(page, { model: gguf(), rangeBytes: 1 << 20 })).name, "NetworkError");
  await loads(() => ({}), { rangeBytes: 1 << 20 });
  const [, from] = /^bytes=(\d+)-/.exec(server.requests[0].range);
  assert.ok(Number(from) > 0, "it begins behind what was received");
});

test("compressed files are loaded as one stream", async () => {
  for (const rule of [() => ({ gzip: true, noRanges: true }), () => ({ gzip: true, noLength: true })]) {
    await page.evaluate(() => folio.clearCache());
    await loads(rule);
    const again = await loads(rule);
    assert.deepEqual([again.tokens, server.requests], [GREEDY, []]);
  }
  server.begin(({ path }) => (path.endsWith("tokenizer.json") ? { gzip: true } : {}));
  const mixed = await hello();
  assert.equal(mixed.message, undefined);
});

test("storage on another origin that forbids HEAD and exposes nothing is read", async () => {
  await loads(({ method }) => (method === "HEAD" ? { status: 403, plainCors: true } : { plainCors: true }));
  await page.evaluate(() => folio.clearCache());
  server.begin(({ range }) => ({ plainCors: true, ...(range ? { cap: 1000 } : { status: 403 }) }));
  const { message } = await tokens(page, { model: gguf() });
  assert.match(message, /Content-Length .*\(GET: status 403, HEAD: status 403\)/);
});

test("every file of a folder is asked for with the folder's query", async () => {
  server.begin(({ query }) => (query.get("sig") === "1" ? {} : { status: 403 }));
  const result = await hello({ model: `${folder()}?sig=1` });
  assert.equal(result.message, undefined);
  server.begin();
  assert.equal((await hello({ model: `${folder()}?sig=2` })).message, undefined);
  assert.deepEqual(server.requests, [], "the query is not a part of the cache's key");
  await page.evaluate(() => folio.clearCache());
  server.begin(() => ({ status: 403 }));
  assert.match((await tokens(page, { model: folder() })).message, /status 403 \(access is denied\)/);
});

test("a failed fetch names its likely cause", async () => {
  await refuses(() => ({ noCors: true }), /the server answers, but .*Access-Control-Allow-Origin: http:\/\/localhost/);
  await page.evaluate(() => folio.clearCache());
  const offline = await page.evaluate((model) => {
    const { origin } = location;
    // A worker without a network for the model.
    const script = `import "${origin}/test/hold.js";
      Object.defineProperty(WorkerNavigator.prototype, "onLine", { value: false });
      const { fetch } = self;
      self.fetch = (url, init) => fetch(String(url).endsWith(".gguf") ? "http://[::1]:1/" : url, init);
      await import("${origin}/folio-web/worker.js");
      release();`;
    const worker = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    return outcome(() => folio.load({ model, device: "cpu", worker }));
  }, gguf());
  assert.match(offline.message, /this device is offline/);
});

test("a list of files that is none is told with its address", async () => {
  server.begin(() => ({ page: PAGE }));
  const portal = await tokens(page, { model: "org/name", hub: server.origin });
  assert.equal(portal.name, "NetworkError");
  assert.match(portal.message, /localhost:\d+\/api\/models\/org\/name.*is not a list of files.*\.\/org\/name\//);
  assert.equal((await tokens(page, { model: "org/name", hub: server.origin })).name, "NetworkError");
  assert.equal(server.requests.length, 2, "nothing is kept of it");
});
