// What the browser's storage keeps of models: damaged files, newer files on the server, several pages, and deleting.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, beforeEach, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { GREEDY, misbehave, PAGE, tiny, TINY, tokens } from "./support/misbehaving.mjs";
import { serve } from "./support/server.mjs";

let pages, server, browser, page, context;
before(async () => {
  const oid = createHash("sha256").update(tiny).digest("hex");
  const list = Buffer.from(JSON.stringify([{ type: "file", path: TINY, size: tiny.length, lfs: { oid } }]));
  const files = (path) => (path.startsWith("api/") ? list : path.endsWith(TINY) ? tiny : undefined);
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

const gguf = () => ({ model: `${server.origin}/${TINY}` });
const repository = () => ({ model: "org/tiny", hub: server.origin });

async function loads(options = gguf()) {
  server.requests.length = 0;
  const result = await tokens(page, options);
  assert.equal(result.message, undefined);
  assert.deepEqual(result.tokens, GREEDY);
  return result;
}

/**
 * Changes the stored file whose name ends like this: all its bytes become zeros, or as many as are left of them.
 * `sealed`: with the right checksum behind them.
 */
async function damage(end, bytesLeft, sealed = false) {
  const count = await page.evaluate(
    async ({ end, bytesLeft, sealed }) => {
      const models = await (await navigator.storage.getDirectory()).getDirectoryHandle("folio");
      let count = 0;
      for await (const folder of models.values()) {
        for await (const file of folder.values()) {
          if (!file.name.endsWith(end)) continue;
          const { size } = await file.getFile();
          const stream = await file.createWritable();
          const bytes = new Uint8Array(bytesLeft ?? size - (sealed ? 32 : 0));
          await stream.write(bytes);
          if (sealed) await stream.write(await crypto.subtle.digest("SHA-256", bytes));
          await stream.close();
          count++;
        }
      }
      return count;
    },
    { end, bytesLeft, sealed },
  );
  assert.equal(count, 1, `a stored file ends with ${end}`);
}

test("a slice that has gone bad is fetched again, and only that one", async () => {
  for (const options of [gguf(), repository()]) {
    await page.evaluate(() => folio.clearCache());
    await loads(options);
    for (const slice of [0, 1]) {
      await damage(`gguf.${slice}`);
      await loads(options);
      const first = slice * 262_144;
      assert.deepEqual(
        server.requests.map(({ range }) => range),
        [`bytes=${first}-${first + 262_143}`],
      );
    }
    await loads(options);
    assert.deepEqual(server.requests, []);
  }
});

test("damaged metadata counts as none", async () => {
  await loads(repository());
  for (const bytesLeft of [0, undefined]) {
    await damage("gguf.json", bytesLeft);
    await loads(repository());
    await damage("listing", bytesLeft);
    await loads(repository());
    assert.equal(server.requests.length, 1, "the list alone is asked for");
  }
});

test("a cached model with which the load fails is fetched anew", async () => {
  const error = Buffer.from("not a model at all");
  server.begin(() => ({ page: error, type: "text/plain" }));
  assert.equal((await tokens(page, gguf())).name, "ModelError");
  server.begin();
  await loads();
  await damage("gguf.0", undefined, true);
  await loads();
  assert.equal(server.requests.length, Math.ceil(tiny.length / 262_144));
});

test("`revalidate` fetches a newer file, and uses the old one without a network", async () => {
  const options = { ...gguf(), cache: "revalidate" };
  await loads(options);
  await loads(options);
  assert.deepEqual(
    server.requests.map(({ range }) => range),
    ["bytes=0-0"],
  );
  server.begin(() => ({ etag: '"newer"' }));
  await loads(options);
  assert.equal(server.requests.length, 1 + Math.ceil(tiny.length / 262_144));
  for (const rule of [() => ({ status: 403 }), () => ({ page: PAGE })]) {
    server.begin(rule);
    const { notices } = await loads(options);
    assert.match(notices.join(), /the cached files are used, because/);
  }
});

test("models are listed with their sizes, and one of them is deleted", async () => {
  await loads();
  await loads(repository());
  const list = () => page.evaluate(() => folio.cachedModels());
  const both = (await list()).sort((a, b) => a.name.length - b.name.length);
  assert.deepEqual(
    both.map(({ name, address, bytes }) => [name, address, bytes > tiny.length && bytes < tiny.length + 2000]),
    [
      ["org/tiny", `${server.origin}/org/tiny`, true],
      ["tiny-qwen3-Q4_0", `${server.origin}/${TINY}`, true],
    ],
  );
  await page.evaluate((model) => folio.clearCache(model), both[0]);
  assert.deepEqual(
    (await list()).map(({ name }) => name),
    ["tiny-qwen3-Q4_0"],
  );
  await loads();
  assert.deepEqual(server.requests, [], "the other one is kept");
  await page.evaluate(({ model }) => folio.clearCache(model), gguf());
  assert.deepEqual(await list(), []);
});

test("slices of another size are read as they are", async () => {
  await loads();
  await loads({ ...gguf(), rangeBytes: 1 << 16 });
  assert.deepEqual(server.requests, []);
});

test("a cache that another page deletes is made again", async () => {
  server.begin(() => ({ delay: 300 }));
  const loading = tokens(page, gguf());
  await new Promise((resolve) => setTimeout(resolve, 700));
  await page.evaluate(() => folio.clearCache());
  const { message, tokens: found } = await loading;
  assert.equal(message, undefined);
  assert.deepEqual(found, GREEDY);
});

test("two pages that load the same model download it once", async () => {
  const { page: other } = await browser.page(pages.origin, context);
  server.begin(() => ({ delay: 100 }));
  const both = await Promise.all([page, other].map((each) => tokens(each, gguf())));
  for (const result of both) assert.deepEqual(result.tokens, GREEDY, result.message);
  assert.equal(server.requests.length, Math.ceil(tiny.length / 262_144));
  await other.close();
});

test("a page can ask the browser to keep a model", async () => {
  const [asked, notices] = await page.evaluate(async (model) => {
    let asked = 0;
    navigator.storage.persist = async () => ++asked > 1;
    const notices = [];
    for (const persist of [true, true, false]) {
      const engine = await folio.load({ model, device: "cpu", persist, limits: { maxModelLen: 64 } });
      notices.push(engine.info.notices.filter((text) => text.includes("refused to keep it")).length);
      await engine.unload();
    }
    return [asked, notices];
  }, gguf().model);
  assert.deepEqual([asked, notices], [2, [1, 0, 0]]);
});
