// The colder tiers of the KV pool. A page brings the KV blocks of its system prompt: written by the command line, found
// by prompts in the tab. Blocks that leave a small pool return from host memory.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { run } from "./support/folio.mjs";
import { serve } from "./support/server.mjs";

const SYSTEM = "You are the guide of a small museum. ".repeat(20);

let server, browser, page, folder;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "folio-cache-"));
  const prompt = join(folder, "prompt.txt");
  writeFileSync(prompt, SYSTEM);
  const export_ = (out, ...options) =>
    run(["cache", "export", "--device", "cpu", ...options, prompt, join(folder, out)]);
  export_("museum.kv");
  export_("q8.kv", "--quantization", "q8");
  writeFileSync(join(folder, "cut.kv"), readFileSync(join(folder, "museum.kv")).subarray(0, -1));
  server = await serve({ kv: folder });
  browser = await launch();
  ({ page } = await browser.page(server.origin));
  await page.evaluate(async (system) => {
    // A block takes 96 KiB. The pool has room for one long prompt and a half.
    const limits = { maxModelLen: 512, kvCacheBytes: (24 * 96) << 10, kvHostBytes: 16 << 20 };
    window.engine = await folio.load({ model: demo, device: "webgpu", limits });
    window.ask = async (question) => {
      const messages = [
        { role: "system", content: system },
        { role: "user", content: question },
      ];
      return await engine.chat.completions.create({ messages, temperature: 0, max_tokens: 16 });
    };
  }, SYSTEM);
});
after(async () => {
  await browser.close();
  await server.close();
  rmSync(folder, { recursive: true });
});

test("files of something else are refused", async () => {
  const fault = (name) => page.evaluate((url) => engine.cache.import(url).catch(String), `/kv/${name}`);
  assert.match(await fault("q8.kv"), /q8\.kv: it has another model/);
  assert.match(await fault("cut.kv"), /cut\.kv: it is too short/);
  assert.match(await fault("none.kv"), /NetworkError: .*none\.kv: status 404/);
});

test("an exported system prompt is a hit", async () => {
  const blocks = await page.evaluate(() => engine.cache.import("/kv/museum.kv"));
  assert.ok(blocks >= 2, `${blocks} blocks`);
  const answer = await page.evaluate(() => ask("Hello!"));
  const { cached_tokens, disk_cached_tokens } = answer.usage.prompt_tokens_details;
  assert.ok(disk_cached_tokens >= 64 && cached_tokens === disk_cached_tokens, JSON.stringify(answer.usage));
  assert.equal((await page.evaluate(() => engine.stats())).prefixHitsDisk, disk_cached_tokens);
  const computed = await page.evaluate(async () => {
    await engine.reload();
    return await ask("Hello!");
  });
  assert.equal(computed.usage.prompt_tokens_details.cached_tokens, 0);
  assert.deepEqual(answer.choices[0].message, computed.choices[0].message);
});

test("a conversation whose blocks have left the pool returns from host memory", async () => {
  const [first, again, stats] = await page.evaluate(async () => {
    const first = await ask("Hello!");
    for (const start of [100, 1000]) {
      const prompt = Array.from({ length: 400 }, (_, place) => start + ((place * 7) % 800));
      await engine.completions.create({ prompt, max_tokens: 2 });
    }
    return [first, await ask("Hello!"), await engine.stats()];
  });
  const { cached_tokens, host_cached_tokens } = again.usage.prompt_tokens_details;
  assert.ok(host_cached_tokens >= 64 && cached_tokens >= host_cached_tokens, JSON.stringify(again.usage));
  assert.ok(stats.prefixHitsHost >= host_cached_tokens, JSON.stringify(stats));
  assert.deepEqual(again.choices[0].message, first.choices[0].message);
});
