// The package as users get it: its types, the packed files, and a page that follows the README.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { launch } from "./support/browser.mjs";
import { serve, web } from "./support/server.mjs";

test("requests and answers have OpenAI's types", () => {
  execFileSync(process.execPath, [join(web, "node_modules/typescript/bin/tsc"), "-p", join(web, "test")], {
    encoding: "utf8",
    stdio: ["ignore", "inherit", "inherit"],
  });
});

test("the packed package works in an empty folder, by its README alone", async () => {
  const folder = mkdtempSync(join(tmpdir(), "folio-web-"));
  const npm = (...args) => execFileSync("npm", args, { cwd: folder, encoding: "utf8" });
  const packed = JSON.parse(npm("pack", web, "--ignore-scripts", "--json"))[0];
  const names = packed.files.map(({ path }) => path);
  assert.ok(names.includes("dist/demo/model.safetensors") && names.includes("dist/index.d.ts"), names.join());
  assert.ok(!names.some((name) => /^(src|test|ts|bindgen)\//.test(name)), names.join());
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "empty", private: true }));
  npm("install", "--offline", "--no-audit", "--no-fund", join(folder, packed.filename));

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
