// A headless Chromium on its software WebGPU adapter or without WebGPU, with pages that have the package as `folio`.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const CANDIDATES = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/**
 * Starts a browser; `page(origin)` opens a page and collects the errors of its console. `hosts` are the browser's own
 * rules for names of hosts.
 */
export async function launch({ webgpu = true, hosts } = {}) {
  const executablePath = CANDIDATES.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error("chromium is not installed; CHROMIUM may name it");
  const gpu = webgpu
    ? ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
    : ["--disable-gpu", "--disable-blink-features=WebGPU"];
  const rules = hosts ? [`--host-resolver-rules=${hosts}`] : [];
  const args = [...gpu, ...rules, "--disable-dev-shm-usage", "--no-sandbox"];
  const browser = await chromium.launch({ executablePath, args });
  return {
    browser,
    /** Opens a page in a new profile, or another page of `context`. */
    async page(origin, context) {
      context ??= await browser.newContext();
      const page = await context.newPage();
      page.setDefaultTimeout(300_000);
      const errors = [];
      page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
      page.on("pageerror", (error) => errors.push(String(error)));
      await page.goto(`${origin}/test/blank.html`);
      await page.waitForFunction(() => "folio" in window);
      return { page, context, errors };
    },
    close: () => browser.close(),
  };
}

/** Hides the optional features of adapters from the package's worker in all pages of a context. */
export async function hideFeatures(context) {
  const hide = 'Object.defineProperty(GPUAdapter.prototype, "features", { value: new Set() });\n';
  await context.route("**/folio-web/worker.js", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: hide + (await response.text()) });
  });
}
