// The packages in a minimal project, built by each bundler as it comes, without configuration, and run in a browser.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { build as esbuild } from "esbuild";
import { launch } from "./support/browser.mjs";
import { serve, unpacked, web } from "./support/server.mjs";

const GGUF = unpacked("gguf");
const project = join(web, "test/bundlers");
const modules = join(project, "node_modules");
const out = mkdtempSync(join(tmpdir(), "folio-bundlers-"));
const tool = async (name) => await import(pathToFileURL(createRequire(join(project, "main.js")).resolve(name)).href);
let browser;

before(async () => {
  // Versions are those of the lock file. `npm ci` would also want packages for other systems, which a registry's mirror
  // may lack.
  const install = ["install", "--no-save", "--no-audit", "--no-fund"];
  if (!existsSync(modules)) execFileSync("npm", install, { cwd: project, stdio: "inherit" });
  // Copies, as npm would install them: bundlers treat links into another folder differently.
  for (const folder of [web, join(web, "demo")]) {
    const { name, files } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const installed = join(modules, name);
    rmSync(installed, { recursive: true, force: true });
    mkdirSync(installed);
    const copy = (file) => cpSync(join(folder, file), join(installed, file), { recursive: true });
    ["package.json", ...files].forEach(copy);
  }
  for (const cache of [".vite", "../.next"]) rmSync(join(modules, cache), { recursive: true, force: true });
  browser = await launch({ webgpu: false });
});
after(async () => {
  await browser.close();
  rmSync(out, { recursive: true });
});

/** Opens the built page and compares what it says. */
async function says(url, expected = "Hi! What can I do for you? UnloadedError true") {
  const page = await browser.browser.newPage();
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(url);
  const deadline = Date.now() + 120_000;
  let text = "";
  while (text.trim() === "" && errors.length === 0 && Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    // Vite's development server may load the page again once it knows the dependencies.
    text = await page.evaluate(() => document.body.innerText).catch(() => "");
  }
  await page.close();
  assert.deepEqual(errors, []);
  assert.equal(text.trim(), expected);
}

/** Serves a built folder, and with `query` opens its page once more. */
async function saysBuilt(folder, query, expected) {
  const server = await serve({ "": folder, gguf: GGUF });
  try {
    await says(`${server.origin}/index.html`);
    if (query) await says(`${server.origin}/index.html?${query}`, expected);
  } finally {
    await server.close();
  }
}

test("Vite, development server", async () => {
  const { createServer } = await tool("vite");
  const server = await createServer({ root: project, configFile: false, logLevel: "warn", server: { port: 0 } });
  try {
    await server.listen();
    await says(server.resolvedUrls.local[0]);
  } finally {
    await server.close();
  }
});

test("Vite, build; there with a GGUF file of the user too", async () => {
  const { build } = await tool("vite");
  const outDir = join(out, "vite");
  await build({ root: project, configFile: false, logLevel: "warn", build: { outDir } });
  const name = "tiny-qwen3-Q4_0.gguf";
  const { prompt, greedy } = JSON.parse(readFileSync(join(GGUF, "reference.json"), "utf8")).cases[name].cases[1];
  const query = new URLSearchParams({ file: `/gguf/${name}`, prompt: JSON.stringify(prompt) });
  await saysBuilt(outDir, query, greedy.join());
});

test("esbuild, with the folders of the worker and of the demo beside the bundle", async () => {
  const outdir = join(out, "esbuild");
  await esbuild({ entryPoints: [join(project, "main.js")], outdir, bundle: true, format: "esm", logLevel: "warning" });
  cpSync(join(modules, "folio-web/dist/folio-web"), join(outdir, "folio-web"), { recursive: true });
  cpSync(join(modules, "folio-web-demo/folio-web-demo"), join(outdir, "folio-web-demo"), { recursive: true });
  const html = '<link rel="icon" href="data:,"><body></body><script type="module" src="main.js"></script>';
  writeFileSync(join(outdir, "index.html"), html);
  await saysBuilt(outdir);
});

test("webpack", async () => {
  const { default: webpack } = await tool("webpack");
  const path = join(out, "webpack");
  const stats = await new Promise((resolve, reject) =>
    webpack({ mode: "production", context: project, entry: "./main.js", output: { path } }, (error, stats) =>
      error ? reject(error) : resolve(stats),
    ),
  );
  assert.deepEqual(stats.toJson({ all: false, errors: true }).errors, []);
  const html = '<link rel="icon" href="data:,"><body></body><script src="main.js"></script>';
  writeFileSync(join(path, "index.html"), html);
  await saysBuilt(path);
});

test("Next", async () => {
  const env = { ...process.env, NEXT_TELEMETRY_DISABLED: "1", NODE_ENV: "production" };
  const next = [join(modules, "next/dist/bin/next")];
  execFileSync(process.execPath, [...next, "build"], { cwd: project, env, stdio: ["ignore", "ignore", "inherit"] });
  const child = spawn(process.execPath, [...next, "start", "--port", "0"], {
    cwd: project,
    env,
    stdio: ["ignore", "pipe", "inherit"],
  });
  try {
    const url = await new Promise((resolve, reject) => {
      let said = "";
      child.stdout.setEncoding("utf8").on("data", (text) => {
        said += text;
        const local = /http:\/\/localhost:[1-9]\d*/.exec(said);
        if (local) resolve(local[0]);
      });
      child.on("exit", () => reject(new Error(`the server ended: ${said}`)));
    });
    await says(url);
  } finally {
    child.kill();
  }
});

test("Node, which has no worker for it, says so", () => {
  const script = `
    const { load } = await import("folio-web");
    const { default: demo } = await import("folio-web-demo");
    await load({ model: demo }).catch(({ name, message }) => console.log(name, message));`;
  const options = { cwd: project, encoding: "utf8" };
  const said = execFileSync(process.execPath, ["--input-type=module", "-e", script], options);
  assert.match(said, /^BrowserError .*folio serve/);
});
