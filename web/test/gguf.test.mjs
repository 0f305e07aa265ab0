// GGUF in the tab: by URL, from the user's files, by the hub's names; whole and split. The tokens are the reference's.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { split } from "./support/gguf.mjs";
import { serve, unpacked } from "./support/server.mjs";

const DATA = unpacked("gguf");
const NAME = "tiny-qwen3-Q4_0";
const whole = readFileSync(join(DATA, `${NAME}.gguf`));
const parts = split(whole, NAME, 3);
const cases = JSON.parse(readFileSync(join(DATA, "reference.json"), "utf8")).cases[`${NAME}.gguf`].cases.slice(1);

/** A repository with several files, one of them split and in a folder. */
const files = Object.fromEntries(Object.entries(parts).map(([name, bytes]) => [`Q4_0/${name}`, bytes]));
files["tiny-llama-Q4_K_M.gguf"] = readFileSync(join(DATA, "tiny-llama-Q4_K_M.gguf"));
files["README.md"] = Buffer.from("# Tiny");
const listing = Object.entries(files).map(([path, bytes]) => {
  const oid = createHash("sha256").update(bytes).digest("hex");
  return { type: "file", path, size: bytes.length, lfs: { oid } };
});
listing.push({ type: "directory", path: "Q4_0", size: 0 });
const hub = (path) =>
  path.startsWith("api/") ? Buffer.from(JSON.stringify(listing)) : files[path.split("/resolve/main/")[1]];

let server, browser;
before(async () => {
  const gguf = (path) => parts[path] ?? (path === `${NAME}.gguf` ? whole : undefined);
  server = await serve({ gguf, hub });
  browser = await launch({ webgpu: false });
});
after(async () => {
  await browser.close();
  await server.close();
});

/** Loads a model in a new profile and compares its greedy tokens with the reference. */
async function prove(options, name, run = async () => {}) {
  server.requests.length = 0;
  const { page, context, errors } = await browser.page(server.origin);
  const load = () => page.evaluate(generate, { options, cases });
  const result = await load();
  assert.equal(result.message, undefined);
  assert.deepEqual(
    result.value.tokens,
    cases.map(({ greedy }) => greedy),
  );
  assert.equal(result.value.name, name);
  await run(load);
  await context.close();
  assert.deepEqual(errors, []);
}

/** Runs in the page. The names of `options.files` are fetched and given as the user's files. */
async function generate({ options, cases }) {
  const { files, ...rest } = options;
  const file = async (name) => new File([await (await fetch(`/gguf/${name}`)).blob()], name);
  const model = files ? await Promise.all(files.map(file)) : options.model;
  return await outcome(async () => {
    const engine = await folio.load({ limits: { maxNumSeqs: 2, maxModelLen: 128 }, ...rest, model });
    const tokens = [];
    for (const { prompt, greedy } of cases) {
      const params = { prompt, temperature: 0, max_tokens: greedy.length, ignore_eos: true, return_token_ids: true };
      tokens.push((await engine.completions.create(params)).choices[0].token_ids);
    }
    const name = (await engine.models.list()).data[0].id;
    await engine.unload();
    return { name, tokens };
  });
}

const asked = (part) => server.requests.filter(({ path }) => path.includes(part));

test("by URL, in ranges, and from the cache the second time", () =>
  prove({ model: `${server.origin}/gguf/${NAME}.gguf?signature=1`, rangeBytes: 1 << 18 }, NAME, async (load) => {
    assert.equal(asked(".gguf").length, Math.ceil(whole.length / (1 << 18)));
    server.requests.length = 0;
    assert.equal((await load()).value.name, NAME);
    assert.deepEqual(asked(".gguf"), []);
  }));

test("by the URL of the first of its parts", () =>
  prove({ model: `${server.origin}/gguf/${NAME}-00001-of-00003.gguf` }, NAME));

test("from the user's file, and from its parts in any order", async () => {
  await prove({ files: [`${NAME}.gguf`] }, NAME);
  await prove({ files: Object.keys(parts).reverse() }, NAME);
});

test("by the hub's name with a quantization, and from the cache the second time", () =>
  prove({ model: "org/tiny-GGUF:Q4_0", hub: `${server.origin}/hub` }, "org/tiny-GGUF:Q4_0", async (load) => {
    assert.deepEqual(asked("tiny-llama"), []);
    server.requests.length = 0;
    assert.equal((await load()).value.name, "org/tiny-GGUF:Q4_0");
    assert.deepEqual(asked("/hub/"), []);
  }));

test("what is wrong with a choice is told by name", async () => {
  const { page, context } = await browser.page(server.origin);
  const refused = (options) => page.evaluate(generate, { options, cases });
  const hub = `${server.origin}/hub`;
  const none = await refused({ model: "org/tiny-GGUF:Q8_0", hub });
  assert.equal(none.name, "ModelError");
  assert.match(none.message, /org\/tiny-GGUF:Q8_0: no GGUF file matches `Q8_0` \(files: Q4_0\/tiny-qwen3-Q4_0-00001/);
  const half = await refused({ files: Object.keys(parts).slice(0, 2) });
  assert.match(half.message, /3 parts, but only 2 are present/);
  const other = await refused({ model: `${server.origin}/gguf/none.gguf` });
  assert.match(other.message, /none\.gguf: there is no such file/);
  await context.close();
});
