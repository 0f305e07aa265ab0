// Families whose steps have options that the demo model lacks, in the tab: the tokens are the reference's. With
// FAMILIES=all, every family that there is a golden model of, which takes some minutes.

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { root, serve } from "./support/server.mjs";

const GOLDEN = join(root, "tests/data/golden");
/** Longer prompts take the browser's software adapter too long. */
const PROMPT_MAX = 40;

let server, browser, page, context, errors;
before(async () => {
  server = await serve({ golden: GOLDEN });
  browser = await launch();
  ({ page, context, errors } = await browser.page(server.origin));
});
after(async () => {
  await context.close();
  assert.deepEqual(errors, []);
  await browser.close();
  await server.close();
});

/** Runs in the page. */
async function generate({ model, cases }) {
  const engine = await folio.load({ model, limits: { maxNumSeqs: 4, maxModelLen: 128 } });
  const say = async ({ prompt, greedy }) => {
    const params = { prompt, temperature: 0, max_tokens: greedy.length, ignore_eos: true, return_token_ids: true };
    return (await engine.completions.create(params)).choices[0].token_ids;
  };
  // All at once, as one batch.
  const tokens = await Promise.all(cases.map(say));
  await engine.unload();
  return tokens;
}

const chosen = {
  "gemma4-e": "per-layer embeddings, layers that share keys and values",
  "gemma4-wide": "heads of 512",
  cohere2: "interleaved rope in some layers only, attention beside the MLP",
  qwen2_moe: "a gated shared expert",
  lfm2_moe: "short convolutions",
  qwen3_5: "a gated delta rule",
  nemotron_h: "Mamba-2",
  glm4_moe_lite: "latent attention",
};
const isModel = (name) => existsSync(join(GOLDEN, name, "golden.json"));
const families =
  process.env.FAMILIES === "all"
    ? Object.fromEntries(readdirSync(GOLDEN).filter(isModel).map((name) => [name, "golden tokens"]))
    : chosen;

for (const [family, what] of Object.entries(families)) {
  test(`${family}: ${what}`, async () => {
    const { cases } = JSON.parse(readFileSync(join(GOLDEN, family, "golden.json"), "utf8"));
    // The context is longer than those that longrope's short factors are for.
    const short = cases.filter(({ prompt, factors }) => prompt.length <= PROMPT_MAX && factors !== "short");
    const tokens = await page.evaluate(generate, { model: `${server.origin}/golden/${family}`, cases: short });
    assert.ok(short.length >= 2);
    assert.deepEqual(
      tokens,
      short.map(({ greedy }) => greedy),
    );
  });
}
