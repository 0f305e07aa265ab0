// Loading: good and bad servers, the cache, and the errors that a page gets.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { root, serve } from "./support/server.mjs";

const MIB = 1 << 20;
const demoFile = (file) => readFileSync(join(root, "assets/demo", file));
const weights = demoFile("model.safetensors");

/** The demo model split into two files with an index. */
function sharded() {
  const length = Number(weights.readBigUInt64LE(0));
  const header = JSON.parse(weights.subarray(8, 8 + length));
  const shards = [0, 1].map(() => ({ header: {}, data: [], bytes: 0 }));
  const weight_map = {};
  Object.entries(header).forEach(([name, info], index) => {
    if (name === "__metadata__") return;
    const shard = shards[index % 2];
    const [from, to] = info.data_offsets;
    shard.header[name] = { ...info, data_offsets: [shard.bytes, shard.bytes + to - from] };
    shard.data.push(weights.subarray(8 + length + from, 8 + length + to));
    shard.bytes += to - from;
    weight_map[name] = `model-0000${(index % 2) + 1}-of-00002.safetensors`;
  });
  const files = { "model.safetensors.index.json": Buffer.from(JSON.stringify({ weight_map })) };
  shards.forEach(({ header, data }, index) => {
    const json = Buffer.from(JSON.stringify(header));
    const start = Buffer.alloc(8);
    start.writeBigUInt64LE(BigInt(json.length));
    files[`model-0000${index + 1}-of-00002.safetensors`] = Buffer.concat([start, json, ...data]);
  });
  return files;
}

const parts = sharded();
/** What hosts of single-page applications send for files that are not there. */
const PAGE = Buffer.from("<!doctype html><title>Home</title>");
const shardFile = (path) => parts[path] ?? (path === "model.safetensors" ? undefined : safe(path));
/** A config with shapes that differ from the weights. */
const wrongFile = (path) => {
  if (path !== "config.json") return safe(path);
  const config = JSON.parse(demoFile(path));
  return Buffer.from(JSON.stringify({ ...config, intermediate_size: config.intermediate_size * 2 }));
};
/** A hub: listings with digests, and files. `corrupt` changes a byte of the weights. */
const hub = (corrupt) => (path) => {
  if (path.startsWith("api/")) {
    const names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    const entry = (name, bytes) => ({ type: "file", path: name, size: bytes.length });
    const oid = createHash("sha256").update(weights).digest("hex");
    const list = names.map((name) => entry(name, demoFile(name)));
    return Buffer.from(JSON.stringify([...list, { ...entry("model.safetensors", weights), lfs: { oid } }]));
  }
  const bytes = safe(path.split("/resolve/main/")[1] ?? "none");
  if (!corrupt || bytes?.length !== weights.length) return bytes;
  const changed = Buffer.from(bytes);
  changed[changed.length - 5] ^= 1;
  return changed;
};

function safe(path) {
  try {
    return demoFile(path);
  } catch {
    return undefined;
  }
}

let server, browser;
before(async () => {
  const hosted = (path) => shardFile(path) ?? PAGE;
  server = await serve({ sharded: shardFile, hosted, wrong: wrongFile, hub: hub(false), badhub: hub(true) });
  browser = await launch();
});
after(async () => {
  await browser.close();
  await server.close();
});

/** Loads a model in a page and says hello; sums up progress by phase. */
const hello = (page, options) =>
  page.evaluate(async (options) => {
    const phases = {};
    const onProgress = ({ phase, file, loaded, total }) => ((phases[phase] ??= {})[file] = [loaded, total]);
    const limits = { maxNumSeqs: 2, maxModelLen: 128 };
    const result = await outcome(async () => {
      const engine = await folio.load({ device: "webgpu", limits, ...options, onProgress });
      const messages = [{ role: "user", content: "Hello!" }];
      const answer = await engine.chat.completions.create({ messages, temperature: 0, max_tokens: 32 });
      await engine.unload();
      return { text: answer.choices[0].message.content, notices: engine.info.notices };
    });
    return { ...result, value: result.value?.text, notices: result.value?.notices, phases };
  }, options);

/** The same on the processor, without kernels: what is fetched, kept and refused does not depend on the device. */
const fetched = (page, options) => hello(page, { device: "cpu", ...options });

const HELLO = "Hi! What can I do for you?";
const asked = (part) => server.requests.filter(({ path }) => path.includes(part));

/** A fresh profile and a server with this fault. Fails if the page's console has an error other than network errors. */
async function scene(fault, run) {
  server.fault = fault;
  server.requests.length = 0;
  const { page, context, errors } = await browser.page(server.origin);
  await run(page, context);
  const own = errors.filter((text) => !/Failed to load resource|net::ERR/.test(text));
  await context.close();
  assert.deepEqual(own, []);
}

test("ranges, then a second load without any request for the model", () =>
  scene(
    () => ({}),
    async (page, context) => {
      const options = { model: `${server.origin}/folder/`, rangeBytes: MIB };
      const first = await hello(page, options);
      assert.equal(first.value, HELLO, first.message);
      const ranges = asked("model.safetensors").map(({ range }) => range);
      assert.equal(ranges.length, Math.ceil(weights.length / MIB));
      assert.deepEqual(first.phases.download["model.safetensors"], [weights.length, weights.length]);
      assert.deepEqual(first.phases.device[""][0], first.phases.device[""][1]);
      server.requests.length = 0;
      await context.setOffline(true);
      const second = await hello(page, options).catch((error) => ({ message: String(error) }));
      await context.setOffline(false);
      // The worker's own scripts come from the server; the model must not.
      assert.deepEqual(asked("/folder/"), []);
      if (second.value === undefined) {
        const online = await hello(page, options);
        assert.equal(online.value, HELLO, online.message);
      }
      assert.deepEqual(asked("/folder/"), []);
    },
  ));

test("an interrupted download goes on where it was", () =>
  scene(
    ({ range }) => (range?.startsWith(`bytes=${4 * MIB}-`) ? { status: 503 } : {}),
    async (page) => {
      const options = { model: `${server.origin}/folder/`, rangeBytes: MIB };
      const broken = await fetched(page, options);
      assert.deepEqual([broken.name, broken.code], ["NetworkError", "network"]);
      assert.match(broken.message, /model\.safetensors.*503/);
      const got = new Set(asked("model.safetensors").map(({ range }) => range));
      server.fault = () => ({});
      server.requests.length = 0;
      const whole = await fetched(page, options);
      assert.equal(whole.value, HELLO, whole.message);
      const again = asked("model.safetensors").filter(({ range }) => got.has(range));
      assert.ok(again.length <= 1, `only what was missing is fetched: ${again.map(({ range }) => range)}`);
    },
  ));

test("a file that changes meanwhile is fetched anew, but not for ever", () => {
  let requests = 0;
  const version = (path, etag) => (path.endsWith("model.safetensors") ? { etag: `"${etag}"` } : {});
  return scene(
    ({ path }) => version(path, path.endsWith("model.safetensors") && requests++ < 3 ? "old" : "new"),
    async (page) => {
      const options = { model: `${server.origin}/folder/`, rangeBytes: MIB };
      const answer = await fetched(page, options);
      assert.equal(answer.value, HELLO, answer.message);
      const versions = asked("model.safetensors").filter(({ range }) => range === `bytes=0-${MIB - 1}`);
      assert.equal(versions.length, 2, "it began again, once");
      server.fault = ({ path }) => version(path, requests++);
      await page.evaluate(() => folio.clearCache());
      const never = await fetched(page, options);
      assert.deepEqual([never.name, never.code], ["NetworkError", "network"]);
      assert.match(never.message, /model\.safetensors has changed/);
    },
  );
});

test("a connection that is cut is picked up", () => {
  let cuts = 0;
  return scene(
    ({ path }) => (path.endsWith("model.safetensors") && cuts++ < 2 ? { cutAt: 300_000, delay: 50 } : {}),
    async (page) => {
      const answer = await fetched(page, { model: `${server.origin}/folder/`, rangeBytes: 4 * MIB });
      assert.equal(answer.value, HELLO, answer.message);
      assert.ok(cuts > 2);
    },
  );
});

for (const cache of ["opfs", "none"]) {
  test(`a server without ranges is read as one stream (cache: ${cache})`, () =>
    scene(
      () => ({ noRanges: true }),
      async (page) => {
        const answer = await hello(page, { model: `${server.origin}/folder/`, rangeBytes: MIB, cache });
        assert.equal(answer.value, HELLO, answer.message);
        assert.equal(asked("model.safetensors").length, 1);
      },
    ));
}

for (const folder of ["sharded", "hosted"]) {
  test(`shards and their index, with nothing kept (${folder})`, () =>
    scene(
      () => ({ delay: 5 }),
      async (page) => {
        const answer = await fetched(page, { model: `${server.origin}/${folder}`, rangeBytes: MIB, cache: "none" });
        assert.equal(answer.value, HELLO, answer.message);
      },
    ));
}

test("a repository's digests are compared", () =>
  scene(
    () => ({}),
    async (page) => {
      const good = await fetched(page, { model: "org/tiny", hub: `${server.origin}/hub`, rangeBytes: 4 * MIB });
      assert.equal(good.value, HELLO, good.message);
      const bad = await fetched(page, { model: "org/tiny", hub: `${server.origin}/badhub`, rangeBytes: 4 * MIB });
      assert.deepEqual([bad.name, bad.code], ["IntegrityError", "integrity"]);
      assert.match(bad.message, /model\.safetensors.*SHA-256/);
    },
  ));

test("what is wrong with a model is told by type, file and field", () =>
  scene(
    ({ path }) => (path.startsWith("/folder/model") ? { shorten: 1000 } : {}),
    async (page) => {
      const short = await fetched(page, { model: `${server.origin}/folder/` });
      assert.deepEqual([short.name, short.code], ["ModelError", "model"]);
      assert.match(short.message, /model\.safetensors: tensor .* is truncated: \d+ bytes are missing/);
      const wrong = await fetched(page, { model: `${server.origin}/wrong/` });
      assert.deepEqual([wrong.name, wrong.code], ["ModelError", "model"]);
      assert.match(wrong.message, /shape .*config\.json expects/);
      const missing = await fetched(page, { model: `${server.origin}/nothing/` });
      assert.equal(missing.name, "ModelError");
      assert.match(missing.message, /config\.json: there is no such file/);
      server.fault = ({ path }) => (path.startsWith("/sharded/") ? { status: 403 } : {});
      const closed = await fetched(page, { model: `${server.origin}/sharded/`, cache: "none" });
      assert.deepEqual([closed.name, closed.code], ["NetworkError", "network"]);
    },
  ));

test("a load can be aborted", () =>
  scene(
    ({ path }) => (path.endsWith("model.safetensors") ? { delay: 2000 } : {}),
    async (page) => {
      const aborted = await page.evaluate((model) => {
        const signal = AbortSignal.timeout(700);
        return outcome(() => folio.load({ model, signal, rangeBytes: 1 << 20 }));
      }, `${server.origin}/folder/`);
      assert.equal(aborted.name, "TimeoutError");
    },
  ));

test("where the storage is full, a model loads all the same, and a notice says that it is not kept", () =>
  scene(
    () => ({}),
    async (page, context) => {
      const session = await context.newCDPSession(page);
      await session.send("Storage.overrideQuotaForOrigin", { origin: server.origin, quotaSize: 3 * MIB });
      const full = await fetched(page, { model: `${server.origin}/folder/`, rangeBytes: MIB });
      assert.equal(full.value, HELLO, full.message);
      const told = full.notices.filter((text) => text.includes("does not fit in this site's storage"));
      assert.equal(told.length, 1, full.notices.join("\n"));
      assert.match(told[0], /^model\.safetensors \([\d.]+ MiB\) .* [KM]iB of .* are in use: the next load downloads/);
      server.fault = () => ({ noRanges: true });
      server.requests.length = 0;
      await page.evaluate(() => folio.clearCache());
      const stream = await fetched(page, { model: `${server.origin}/folder/`, rangeBytes: MIB });
      assert.equal(stream.value, HELLO, stream.message);
      assert.equal(asked("model.safetensors").length, 1);
    },
  ));
