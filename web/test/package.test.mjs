// The package as users get it: its types, the packed files, and a page that follows the README.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { launch } from "./support/browser.mjs";
import { serve, web } from "./support/server.mjs";

/** Maximum size of the package without the demo model. */
const PACKED_BYTES_MAX = 4 << 20;

function compile(project) {
  const compiler = join(web, "node_modules/typescript/bin/tsc");
  execFileSync(process.execPath, [compiler, "-p", join(web, "test", project)], {
    stdio: ["ignore", "inherit", "inherit"],
  });
}

test("requests and answers have OpenAI's types", () => compile("tsconfig.json"));

test("types hold in a page that is compiled as strictly as possible", () => compile("tsconfig.consumer.json"));

test("the packed package works in an empty folder, by its README alone", async () => {
  const folder = mkdtempSync(join(tmpdir(), "folio-web-"));
  const npm = (...args) => execFileSync("npm", args, { cwd: folder, encoding: "utf8" });
  const packed = JSON.parse(npm("pack", web, join(web, "demo"), "--ignore-scripts", "--json"));
  const [names, demoNames] = packed.map(({ files }) => files.map(({ path }) => path));
  assert.ok(names.includes("dist/folio-web/engine_bg.wasm") && names.includes("dist/index.d.ts"), names.join());
  assert.ok(!names.some((name) => /^(src|test|ts|bindgen|demo|site|page)\//.test(name)), names.join());
  assert.ok(demoNames.includes("folio-web-demo/model.safetensors"), demoNames.join());
  assert.ok(packed[0].size < PACKED_BYTES_MAX, `${packed[0].size} bytes packed`);
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "empty", private: true }));
  npm("install", "--offline", "--no-audit", "--no-fund", ...packed.map(({ filename }) => join(folder, filename)));

  const [, page] = /```html\n([\s\S]*?)```/.exec(readFileSync(join(web, "README.md"), "utf8"));
  assert.ok(page.trim().split("\n").length <= 12, "it is a ten-line page");
  writeFileSync(join(folder, "index.html"), page);
  const server = await serve({ "": folder });
  const browser = await launch();
  try {
    const tab = await browser.browser.newPage();
    await tab.goto(`${server.origin}/index.html`);
    const said = () => document.body.textContent.includes("Hi! What can I do for you?");
    await tab.waitForFunction(said, null, { timeout: 300_000 });
  } finally {
    await browser.close();
    await server.close();
    rmSync(folder, { recursive: true });
  }
});
