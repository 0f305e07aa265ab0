// `npm run speed` compares the tab with the native binary on the same software adapter, with one chat and with several,
// and times the first load, a second from the browser's cache, and the first token. Prints a table with each row's bar;
// the exit code is 1 if one is missed.
//
// Needs `cargo build --release` (or FOLIO, which names another binary) and a Chromium that ships SwiftShader's Vulkan
// driver beside its binary. Both get the same requests through the same API, alternately, so that other load slows
// both. Each figure is the median of ROUNDS.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { launch } from "./test/support/browser.mjs";
import { root, serve } from "./test/support/server.mjs";

const ROUNDS = Number(process.env.ROUNDS ?? 5);
const DRIVERS = ["/usr/lib/chromium/vk_swiftshader_icd.json", "/opt/google/chrome/vk_swiftshader_icd.json"];
const PORT = 8123;
const CHATS = [1, 2, 4];
/** Least share of the native tokens per second. */
const RATE_MIN = 0.85;
/** Most of the native time to the first token. */
const FIRST_MAX = 2;
/** Most seconds of a load of the demo from the browser's cache. */
const CACHED_MAX = 3;

const driver = process.env.SWIFTSHADER_ICD ?? DRIVERS.find((path) => existsSync(path));
if (!driver) throw new Error("SWIFTSHADER_ICD must name SwiftShader's vk_swiftshader_icd.json");

/** Tokens per second of `batch` equal sequences, and seconds to the first token. Runs both here and in the page. */
async function measure(fetch, batch, tokens) {
  const began = performance.now();
  const one = async (index) => {
    const prompt = Array.from({ length: 16 }, (_, at) => 5 + ((index * 31 + at * 7) % 4000));
    const body = { prompt, max_tokens: tokens, temperature: 0, ignore_eos: true, stream: true };
    body.stream_options = { include_usage: true, continuous_usage_stats: true };
    const headers = { "content-type": "application/json" };
    const init = { method: "POST", headers, body: JSON.stringify(body) };
    const response = await fetch("http://localhost:8123/v1/completions", init);
    const times = [];
    const decoder = new TextDecoder();
    for (let reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) return times;
      for (const [, count] of decoder.decode(value).matchAll(/"completion_tokens":(\d+)/g)) {
        times.push([performance.now(), Number(count)]);
      }
    }
  };
  const all = await Promise.all(Array.from({ length: batch }, (_, index) => one(index)));
  // Measured from the time when every sequence has its first token.
  const start = Math.max(...all.map((times) => times[0][0]));
  const end = Math.max(...all.map((times) => times.at(-1)[0]));
  const made = all.reduce((sum, times) => sum + tokens - times.findLast(([at]) => at <= start)[1], 0);
  return { rate: (1000 * made) / (end - start), first: (Math.min(...all.map((times) => times[0][0])) - began) / 1000 };
}

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

async function native() {
  const began = performance.now();
  const options = ["serve", "--port", String(PORT), "--device", "wgpu:0", "--max-num-seqs", "8"];
  const limits = ["--max-num-batched-tokens", "256", "--no-prefix-caching"];
  const env = { ...process.env, VK_DRIVER_FILES: driver, FOLIO_LOG: "folio=warn" };
  const program = process.env.FOLIO ?? join(root, "target/release/folio");
  const child = spawn(program, [...options, ...limits], { env, stdio: "ignore" });
  for (;;) {
    const ready = await fetch(`http://127.0.0.1:${PORT}/health`)
      .then(({ ok }) => ok)
      .catch(() => false);
    if (ready) break;
    if (child.exitCode !== null) throw new Error("the native server did not start");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return { child, loaded: (performance.now() - began) / 1000 };
}

/** Opens the page and loads the demo twice; seconds of both loads. */
async function open(page) {
  await page.addScriptTag({ content: `window.measure = ${measure}` });
  return await page.evaluate(async () => {
    const load = async () => {
      const began = performance.now();
      window.engine = await folio.load({ model: demo, device: "webgpu" });
      return (performance.now() - began) / 1000;
    };
    const first = await load();
    await engine.unload();
    return [first, await load()];
  });
}

let missed = false;
function row(what, tab, own, ratio, bar, isMet) {
  missed ||= !isMet;
  console.log(`| ${what} | ${tab} | ${own} | ${ratio} | ${bar} | ${bar ? (isMet ? "yes" : "**no**") : ""} |`);
}

const server = await serve();
const browser = await launch();
const { page } = await browser.page(server.origin);
const [download, cached] = await open(page);
const { child, loaded } = await native();
const inTab = (batch, tokens) =>
  page.evaluate(([batch, tokens]) => measure(engine.fetch, batch, tokens), [batch, tokens]);
const natively = (batch, tokens) => measure(fetch, batch, tokens);

// The first requests compile what no request needed before; they are not measured.
await Promise.all([inTab(1, 8), natively(1, 8)]);
console.log("| What | tab | native | Ratio | Bar | Met |\n|---|---|---|---|---|---|");
const seconds = (value) => `${value.toFixed(2)} s`;
row("first load", seconds(download), seconds(loaded), "", "", true);
row("load from the cache", seconds(cached), "", "", `at most ${CACHED_MAX} s`, cached <= CACHED_MAX);
for (const batch of CHATS) {
  const [tab, own] = [[], []];
  for (let round = 0; round < ROUNDS; round++) {
    own.push(await natively(batch, 48));
    tab.push(await inTab(batch, 48));
  }
  const of = (name) => {
    const ratio = median(tab.map((one, round) => one[name] / own[round][name]));
    return [median(tab.map((one) => one[name])), median(own.map((one) => one[name])), ratio];
  };
  if (batch === 1) {
    const [there, here, ratio] = of("first");
    row("first token", seconds(there), seconds(here), ratio.toFixed(2), `at most ${FIRST_MAX}`, ratio <= FIRST_MAX);
  }
  const [there, here, ratio] = of("rate");
  const rate = (value) => `${value.toFixed(1)} tokens/s`;
  const what = batch === 1 ? "one chat" : `${batch} chats at once`;
  row(what, rate(there), rate(here), ratio.toFixed(2), `at least ${RATE_MIN}`, ratio >= RATE_MIN);
}
child.kill();
await browser.close();
await server.close();
process.exitCode = missed ? 1 : 0;
