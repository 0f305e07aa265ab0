// What `load()` may be given: each wrong option is refused at once by its own name, and models by all their names.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { GREEDY, misbehave, tiny, TINY, tokens } from "./support/misbehaving.mjs";
import { serve } from "./support/server.mjs";

let pages, server, browser, page;
before(async () => {
  const files = (path) => (path === TINY || path === "blob/123" ? tiny : undefined);
  [pages, server, browser] = await Promise.all([serve(), misbehave(files), launch({ webgpu: false })]);
  ({ page } = await browser.page(pages.origin));
});
after(async () => {
  await browser.close();
  await Promise.all([pages.close(), server.close()]);
});

test("wrong options are refused at once, each by its name", async () => {
  const wrong = [
    [{ rangeBytes: 0 }, "LimitError", /^rangeBytes: must be from 65536/],
    [{ rangeBytes: "1" }, "LimitError", /^rangeBytes: must be/],
    [{ cache: "indexeddb" }, "FolioError", /^cache: indexeddb is not opfs, revalidate or none/],
    [{ onprogress: 1 }, "FolioError", /^onprogress: there is no such option; there are model, onProgress/],
    [{ onProgress: 1 }, "FolioError", /^onProgress: must be a function/],
    [{ signal: {} }, "FolioError", /^signal: must be an AbortSignal/],
    [{ shared: "yes" }, "FolioError", /^shared: must be true or false/],
    [{ speculation: 1 }, "FolioError", /^speculation: must be true or false/],
    [{ name: 7 }, "FolioError", /^name: must be a string/],
    [{ device: "gpu" }, "FolioError", /^device: gpu is not auto, webgpu or cpu/],
    [{ silenceMs: -1 }, "FolioError", /^silenceMs: must be from 1/],
    [{ limits: "many" }, "LimitError", /^limits: must be an object/],
    [{ limits: { maxNumSeqs: 0 } }, "LimitError", /^limits\.maxNumSeqs: must be a whole number from 1 to 1024, not 0/],
    [{ limits: { maxModelLen: 1.5 } }, "LimitError", /^limits\.maxModelLen: must be a whole number/],
    [{ limits: { kvCacheBytes: -1 } }, "LimitError", /^limits\.kvCacheBytes: must be a whole number from 0/],
    [{ limits: { kvCacheBytes: 1e15 } }, "LimitError", /^limits\.kvCacheBytes: must be .* to 17179869184, not 10{15}/],
    [{ limits: { kvHostBytes: NaN } }, "LimitError", /^limits\.kvHostBytes: .*not NaN/],
    [{ limits: { blockSize: 20 } }, "LimitError", /^limits\.blockSize: must be 16, 32 or 64, not 20/],
    [{ limits: { maxNumBatchedTokens: 2 } }, "LimitError", /^limits\.maxNumBatchedTokens: must be from \d+/],
    [{ limits: { maxSeqs: 1 } }, "LimitError", /^limits\.maxSeqs: there is no such limit; there are maxModelLen, /],
  ];
  const told = await page.evaluate(
    async ({ model, options }) =>
      await Promise.all(options.map((more) => outcome(() => folio.load({ model, device: "cpu", ...more })))),
    { model: `${server.origin}/${TINY}`, options: wrong.map(([options]) => options) },
  );
  wrong.forEach(([options, name, message], at) => {
    assert.match(String(told[at].message), message, JSON.stringify(options));
    assert.equal(told[at].name, name, told[at].message);
  });
});

test("a pool larger than a tab's memory is refused with both numbers", async () => {
  const limits = { kvCacheBytes: 12 * 2 ** 30 + 12_000_000 };
  const { name, message } = await tokens(page, { model: `${server.origin}/${TINY}`, limits });
  assert.equal(name, "LimitError", message);
  assert.match(message, /12\.0 GiB.* 3\.8 GiB.*tab's 4 GiB.* limits\.kvCacheBytes .*; or load it with WebGPU/);
});

test("fractions of bytes are cut off, and null is a default", async () => {
  const limits = { kvCacheBytes: 0.003 * 2 ** 30, maxNumSeqs: null, maxModelLen: 128 };
  const result = await tokens(page, { model: `${server.origin}/${TINY}`, limits, name: null, rangeBytes: 1e5 + 0.5 });
  assert.deepEqual(result.tokens, GREEDY, result.message);
});

test("a model is found by its contents where its name does not tell", async () => {
  const found = await page.evaluate(async (url) => {
    const bytes = await (await fetch(url)).arrayBuffer();
    const models = [
      new URL(url),
      URL.createObjectURL(new Blob([bytes])),
      url.replace(/[^/]+$/, "blob/123"),
      new File([bytes], "sha256-0123"),
      bytes,
      new Uint8Array(bytes),
      { files: { "m.gguf": bytes } },
      { files: { weights: new Uint8Array(bytes) } },
      { files: { weights: url } },
    ];
    const found = [];
    for (const model of models) {
      const result = await outcome(async () => {
        const engine = await folio.load({ model, device: "cpu", limits: { maxModelLen: 64 } });
        await engine.unload();
      });
      found.push(result.message ?? "loaded");
    }
    return found;
  }, `${server.origin}/${TINY}`);
  assert.deepEqual(found, Array(9).fill("loaded"));
  server.begin();
  assert.deepEqual((await tokens(page, { model: `${server.origin}/blob/123` })).tokens, GREEDY);
  assert.deepEqual(server.requests, [], "from the cache the second time");
});

test("what is no model is refused in words that say what one may be", async () => {
  const [refused, missing] = await page.evaluate(async (origin) => {
    const models = [undefined, null, 7, true, "", " ", [], {}, { files: [] }, { files: { a: 1 } }, ["a"], "http://["];
    const all = (models) => Promise.all(models.map((model) => outcome(() => folio.load({ model, device: "cpu" }))));
    return [await all(models), await all(["demo", `${origin}/none`, "blob:none"])];
  }, server.origin);
  for (const { name, message } of refused) {
    assert.equal(name, "FolioError", message);
    assert.match(message, /^model: /);
  }
  assert.match(missing[0].message, /config\.json: .*http:\/\/localhost:\d+\/test\/demo/);
  assert.match(missing[1].message, /config\.json: there is no such file \(at http:\/\/localhost:\d+\/none/);
  assert.match(missing[2].message, /^model: blob:none cannot be read/);
});
