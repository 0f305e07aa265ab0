// Starting and ending: several reloads at once, workers that do not start, and pages of every kind.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { GREEDY, misbehave, PAGE, tiny, TINY, tokens } from "./support/misbehaving.mjs";
import { serve, web } from "./support/server.mjs";

const COEP = { "cross-origin-embedder-policy": "require-corp" };
const COOP = { "cross-origin-opener-policy": "same-origin" };

let pages, server, browser, page, context;
before(async () => {
  [pages, server, browser] = await Promise.all([
    serve(),
    misbehave((path) => (path.endsWith(TINY) ? tiny : undefined)),
    launch({ webgpu: false }),
  ]);
  ({ page, context } = await browser.page(pages.origin));
});
after(async () => {
  await context.close();
  await browser.close();
  await Promise.all([pages.close(), server.close()]);
});

const gguf = () => `${server.origin}/${TINY}`;

/** A page of its own whose files get these headers or contents. `change(path)` returns what `route.fulfill` takes. */
async function changed(change) {
  const own = await browser.browser.newContext();
  await own.route(`${pages.origin}/**`, async (route) => {
    const { pathname } = new URL(route.request().url());
    const more = change(pathname);
    if (!more) return await route.continue();
    if (more.body !== undefined) return await route.fulfill(more);
    const response = await route.fetch();
    await route.fulfill({ response, ...more, headers: { ...response.headers(), ...more.headers } });
  });
  return await browser.page(pages.origin, own);
}

/** The error of a load in such a page. */
async function failure(change, options = {}) {
  const { page, context } = await changed(change);
  const result = await tokens(page, { model: gguf(), ...options });
  await context.close();
  return result;
}

test("reloads at once load once, and nothing is left after an unload", async () => {
  /** The browser tells of the end of a worker a little later. */
  const noWorkers = async () => {
    for (let tries = 0; tries < 100 && page.workers().length > 0; tries++) await page.waitForTimeout(20);
    assert.equal(page.workers().length, 0);
  };
  const results = await page.evaluate(async (model) => {
    const engine = await folio.load({ model, device: "cpu", limits: { maxModelLen: 64 } });
    const ways = [1, 2, 3].map(() => outcome(() => engine.reload()));
    const results = await Promise.all(ways);
    await engine.unload();
    window.engine = engine;
    return results;
  }, gguf());
  assert.deepEqual(
    results.map(({ message }) => message),
    [undefined, undefined, undefined],
  );
  await noWorkers();
  const [reloaded, stats] = await page.evaluate(async () => {
    const reload = outcome(() => engine.reload());
    await new Promise((resolve) => setTimeout(resolve, 60));
    await engine.unload();
    return [await reload, await outcome(() => engine.stats())];
  });
  assert.deepEqual([reloaded.name, stats.name], ["UnloadedError", "UnloadedError"]);
  await noWorkers();
  const [left, joined] = await page.evaluate(async () => {
    const signal = AbortSignal.timeout(20);
    const both = await Promise.all([outcome(() => engine.reload({ signal })), outcome(() => engine.reload())]);
    await engine.unload();
    return both;
  });
  assert.deepEqual([left.name, joined.name], ["TimeoutError", undefined], "one that leaves does not end the load");
  await noWorkers();
});

test("a file in place of the engine's module is blamed, not the browser", async () => {
  const module = readFileSync(join(web, "dist/folio-web/engine_bg.wasm"));
  const instead = (body, contentType) => (path) => path.endsWith(".wasm") && { body, contentType };
  const html = await failure(instead(PAGE, "text/html"));
  assert.equal(html.name, "NetworkError");
  assert.match(html.message, /engine_bg\.wasm is not WebAssembly \(the server sent an HTML page\)/);
  const half = await failure(instead(module.subarray(0, module.length / 2), "application/wasm"));
  assert.equal(half.name, "NetworkError");
  assert.match(half.message, /engine_bg\.wasm is cut or damaged \(\d+ bytes\)/);
});

test("a worker that does not start says why", async () => {
  const told = async (change, options) => {
    const { name, message } = await failure(change, options);
    return `${name}: ${message}`;
  };
  const worker = "/folio-web/worker.js";
  const html = (path) => path === worker && { body: PAGE, contentType: "text/html" };
  assert.match(await told(html), /^NetworkError: .*worker\.js.*: the server answered with an HTML page/);
  assert.match(await told(html, { shared: true }), /^NetworkError: .*worker\.js.*: the server answered with an HTML/);
  const imported = (path) => path === "/folio-web/engine.js" && { status: 404, body: "" };
  assert.match(await told(imported), /^NetworkError: .*engine\.js.*: the server responded with status 404/);
  const policy = { "content-security-policy": "worker-src 'none'" };
  const closed = (path) => path.endsWith(".html") && { headers: policy };
  assert.match(await told(closed), /^BrowserError: .*Content-Security-Policy must allow .* in worker-src/);
  const isolated = (path) => ({ headers: path === worker ? {} : { ...COEP, ...COOP } });
  assert.match(await told(isolated), /^BrowserError: .*worker\.js: .* needs the header Cross-Origin-Embedder-Policy/);
});

test("a policy that forbids the model's address is named with the address", async () => {
  const headers = { "content-security-policy": "connect-src 'self'" };
  const closed = (path) => (path.endsWith(".html") || path.endsWith("/worker.js")) && { headers };
  const { name, message } = await failure(closed);
  assert.equal(name, "NetworkError", message);
  const told = `: the page's Content-Security-Policy must allow ${server.origin} in connect-src`;
  assert.ok(message.endsWith(told), message);
});

test("a sandboxed frame is told that its origin is opaque", async () => {
  const open = await serve();
  open.fault = () => ({ headers: { "access-control-allow-origin": "*" } });
  const { page, context } = await browser.page(open.origin);
  const message = await page.evaluate(async (model) => {
    const frame = document.createElement("iframe");
    frame.sandbox = "allow-scripts";
    const { origin } = location;
    frame.srcdoc = `<script type="module">
      const loads = async () => {
        const { load } = await import("${origin}/index.js");
        await load({ model: "${model}", worker: "${origin}/folio-web/worker.js" });
      };
      loads().catch(({ name, message }) => parent.postMessage(name + ": " + message, "*"));
    </script>`;
    const told = new Promise((resolve) => addEventListener("message", ({ data }) => resolve(data), { once: true }));
    document.body.append(frame);
    return await told;
  }, gguf());
  await context.close();
  await open.close();
  assert.match(message, /^BrowserError: .*opaque origin/);
});

test("pages that share an engine see its progress, and a notice for each option that differs", async () => {
  const { page: other } = await browser.page(pages.origin, context);
  server.begin(({ count }) => ({ delay: count === 0 ? 0 : 500 }));
  await page.evaluate(() => folio.clearCache());
  const load = (page, options) =>
    page.evaluate(
      async ({ model, options }) => {
        const phases = [];
        const onProgress = ({ phase }) => phases.push(phase);
        const common = { model, device: "cpu", shared: true, rangeBytes: 1 << 18, onProgress };
        window.engine = await folio.load({ ...common, ...options });
        return { phases: [...new Set(phases)], notices: engine.info.notices };
      },
      { model: gguf(), options },
    );
  const limits = { maxModelLen: 128, maxNumSeqs: 2 };
  const first = load(page, { limits });
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const second = await load(other, { limits: { maxModelLen: 64, maxNumSeqs: 2 }, name: "mine" });
  await first;
  assert.ok(second.phases.includes("download") && second.phases.includes("ready"), second.phases.join());
  assert.deepEqual(second.notices.slice(-2), [
    'name: the shared engine was loaded with "tiny-qwen3-Q4_0", not "mine"',
    "limits.maxModelLen: the shared engine was loaded with 128, not 64",
  ]);
  for (const each of [page, other]) await each.evaluate(() => engine.unload());
  await other.close();
});

test("a page over plain http loads without an error, shared too, and is told why it keeps nothing", async () => {
  const plain = await launch({ webgpu: false, hosts: "MAP app.test 127.0.0.1" });
  const { page, errors } = await plain.page(pages.origin.replace("localhost", "app.test"));
  for (const shared of [false, true]) {
    const result = await tokens(page, { model: gguf(), shared });
    assert.deepEqual(result.tokens, GREEDY, result.message);
    assert.match(result.notices.join(), /a page that was not loaded over https or from localhost: every load/);
  }
  await page.evaluate(() => folio.clearCache());
  assert.deepEqual(await page.evaluate(() => folio.cachedModels()), []);
  await plain.close();
  assert.deepEqual(errors, []);
});

test("a page that requires Trusted Types", async () => {
  const policy = "require-trusted-types-for 'script'; trusted-types folio-web mine";
  const strict = (path) => path.endsWith(".html") && { headers: { "content-security-policy": policy } };
  const { page, context } = await changed(strict);
  assert.deepEqual((await tokens(page, { model: gguf() })).tokens, GREEDY);
  const given = await page.evaluate(async (model) => {
    const policy = trustedTypes.createPolicy("mine", { createScriptURL: (url) => url });
    const script = policy.createScriptURL("/folio-web/worker.js");
    const results = [];
    for (const worker of [script, () => new Worker(script, { type: "module" })]) {
      const result = await outcome(async () => {
        const engine = await folio.load({ model, device: "cpu", worker, limits: { maxModelLen: 64 } });
        await engine.unload();
      });
      results.push(result);
    }
    return results;
  }, gguf());
  assert.deepEqual(
    given.map(({ message }) => message),
    [undefined, undefined],
  );
  await context.close();
});

test("a service worker is told to load in a page", async () => {
  const body = `import { load } from "/index.js";
    const failure = () => load({ model: "a" }).catch(String);
    addEventListener("message", async ({ source }) => source.postMessage(await failure()));`;
  const script = { contentType: "text/javascript", body };
  const { page, context } = await changed((path) => path === "/test/service.js" && script);
  const message = await page.evaluate(async () => {
    const registration = await navigator.serviceWorker.register("/test/service.js", { type: "module" });
    const worker = registration.installing ?? registration.active;
    const told = new Promise((resolve) => (navigator.serviceWorker.onmessage = ({ data }) => resolve(data)));
    await navigator.serviceWorker.ready.then(({ active }) => active.postMessage(0));
    return (await told) + (worker ? "" : " no worker");
  });
  assert.match(message, /^BrowserError: .*call load\(\) in a page, with shared: true.*offscreen document$/);
  await context.close();
});

test("a signal keeps nothing of the requests that have ended", async () => {
  const counts = await page.evaluate(async (model) => {
    const engine = await folio.load({ model, device: "cpu", limits: { maxModelLen: 64 } });
    let listeners = 0;
    const { addEventListener, removeEventListener } = AbortSignal.prototype;
    AbortSignal.prototype.addEventListener = function (...args) {
      listeners++;
      return addEventListener.apply(this, args);
    };
    AbortSignal.prototype.removeEventListener = function (...args) {
      listeners--;
      return removeEventListener.apply(this, args);
    };
    const { signal } = new AbortController();
    const ask = (params) => engine.completions.create({ prompt: "a", max_tokens: 1, ...params }, { signal });
    const counts = [];
    await ask({});
    counts.push(listeners);
    await ask({ temperature: 9 }).catch(() => {});
    counts.push(listeners);
    for await (const _ of await ask({ stream: true }));
    counts.push(listeners);
    for await (const _ of await ask({ stream: true })) break;
    counts.push(listeners);
    const running = ask({ max_tokens: 50, ignore_eos: true }).catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 5));
    await engine.unload();
    await running;
    counts.push(listeners);
    Object.assign(AbortSignal.prototype, { addEventListener, removeEventListener });
    return counts;
  }, gguf());
  assert.deepEqual(counts, [0, 0, 0, 0, 0]);
});
