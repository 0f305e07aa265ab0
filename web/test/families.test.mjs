// Families whose steps have options that the demo model lacks, in the tab: the tokens are the reference's, with
// subgroup operations and, for some families, without. With FAMILIES=all, every family that there is a golden model
// of, which takes some minutes.

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { hideFeatures, launch } from "./support/browser.mjs";
import { serve, unpacked } from "./support/server.mjs";

const GOLDEN = unpacked("golden");
/** Longer prompts take the browser's software adapter too long. Attention of prompts has tiles of 64 keys. */
const PROMPT_MAX = 130;

let server, browser;
/** Pages by tier. */
const pages = {};
before(async () => {
  server = await serve({ golden: GOLDEN });
  browser = await launch();
  for (const tier of ["T0", "T1"]) {
    const context = await browser.browser.newContext();
    if (tier === "T0") await hideFeatures(context);
    pages[tier] = await browser.page(server.origin, context);
  }
});
after(async () => {
  for (const { context, errors } of Object.values(pages)) {
    await context.close();
    assert.deepEqual(errors, []);
  }
  await browser.close();
  await server.close();
});

/** Runs in the page. */
async function generate({ model, cases }) {
  const engine = await folio.load({ model, device: "webgpu", limits: { maxNumSeqs: 4, maxModelLen: 192 } });
  const say = async ({ prompt, greedy }) => {
    const params = { prompt, temperature: 0, max_tokens: greedy.length, ignore_eos: true, return_token_ids: true };
    return (await engine.completions.create(params)).choices[0].token_ids;
  };
  // All at once, as one batch.
  const tokens = await Promise.all(cases.map(say));
  const { tier } = engine.info;
  await engine.unload();
  return { tier, tokens };
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

/** Attention of prompts with several tiles and in layers of two kinds; sums over experts; recurrent state. */
const withoutSubgroups = process.env.FAMILIES === "all" ? Object.keys(families) : ["cohere2", "qwen2_moe", "qwen3_5"];

async function speaks(family, tier) {
  const { cases } = JSON.parse(readFileSync(join(GOLDEN, family, "golden.json"), "utf8"));
  // The context is longer than those that longrope's short factors are for.
  const short = cases.filter(({ prompt, factors }) => prompt.length <= PROMPT_MAX && factors !== "short");
  const args = { model: `${server.origin}/golden/${family}`, cases: short };
  const found = await pages[tier].page.evaluate(generate, args);
  assert.ok(short.length >= 2 && found.tier.startsWith(tier), found.tier);
  assert.deepEqual(
    found.tokens,
    short.map(({ greedy }) => greedy),
  );
}

for (const [family, what] of Object.entries(families)) test(`${family}: ${what}`, () => speaks(family, "T1"));
for (const family of withoutSubgroups) test(`${family} without subgroup operations`, () => speaks(family, "T0"));
