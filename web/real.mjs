// `npm run real -- MODEL.gguf` compares a real model in the tab with the native binary: the same prompts, the same
// greedy tokens. DEVICE is webgpu (the default) or cpu. `.ci/real` downloads such a model.
//
// Needs `cargo build --release` (or FOLIO, which names another binary). Prints the time of the first load, of a second
// from the browser's cache, and the speed of one answer.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { launch } from "./test/support/browser.mjs";
import { root, serve } from "./test/support/server.mjs";

const TOKENS = 32;
const PROMPTS_MAX = 4;

const [model] = process.argv.slice(2);
if (!model) throw new Error("name a GGUF file");
const device = process.env.DEVICE ?? "webgpu";
const prompts = Object.values(JSON.parse(readFileSync(join(root, "tests/real/prompts.json"), "utf8")));
const bodies = prompts.slice(0, PROMPTS_MAX).map((prompt) => {
  return { prompt, max_tokens: TOKENS, temperature: 0, ignore_eos: true, return_token_ids: true };
});

function natively() {
  const folder = mkdtempSync(join(tmpdir(), "folio-real-"));
  const input = join(folder, "requests.jsonl");
  const lines = bodies.map((body, at) => ({ custom_id: String(at), method: "POST", url: "/v1/completions", body }));
  writeFileSync(input, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  const program = process.env.FOLIO ?? join(root, "target/release/folio");
  const options = ["run", "--device", "cpu", "--model", model, "--input", input, "--kv-cache-bytes", "64MiB"];
  const answers = execFileSync(program, options, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
  rmSync(folder, { recursive: true });
  return answers
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line).response.body.choices[0].token_ids);
}

async function inTab() {
  const server = await serve({ models: dirname(resolve(model)) });
  const browser = await launch({ webgpu: device === "webgpu" });
  const { page } = await browser.page(server.origin);
  const result = await page.evaluate(
    async ({ url, device, bodies }) => {
      const seconds = async (work) => {
        const began = performance.now();
        const value = await work();
        return [value, (performance.now() - began) / 1000];
      };
      const limits = { maxNumSeqs: 4, maxModelLen: 512, kvCacheBytes: 64 << 20 };
      const load = () => folio.load({ model: url, device, limits });
      const [first, download] = await seconds(load);
      await first.unload();
      const [engine, start] = await seconds(load);
      const answers = [];
      let spent = 0;
      for (const body of bodies) {
        const [answer, took] = await seconds(() => engine.completions.create(body));
        answers.push(answer.choices[0].token_ids);
        spent += took;
      }
      return { answers, download, start, rate: answers.flat().length / spent, info: engine.info };
    },
    { url: `${server.origin}/models/${basename(model)}`, device, bodies },
  );
  await browser.close();
  await server.close();
  return result;
}

const expected = natively();
const { answers, download, start, rate, info } = await inTab();
const times = `first load ${download.toFixed(1)} s, from the cache ${start.toFixed(1)} s`;
console.log(`${info.adapter} (${info.tier}): ${times}`);
console.log(`${rate.toFixed(1)} tokens/s with the prompt, one answer at a time`);
const same = answers.filter((ids, at) => String(ids) === String(expected[at])).length;
console.log(`${same} of ${answers.length} answers have the native tokens`);
if (same < answers.length) {
  answers.forEach((ids, at) => console.log(`tab ${ids}\nnative ${expected[at]}`));
  process.exitCode = 1;
}
