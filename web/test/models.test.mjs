// The chat page of a server of several models: it tells which of them are loaded, and a question loads the one that was
// chosen.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { saying, start } from "./support/folio.mjs";

let browser, server, folder;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "folio-models-"));
  const file = join(folder, "models.toml");
  const device = `device = "fake:${await saying(["I am here."])}"`;
  const missing = `[models.missing]\nmodel = ${JSON.stringify(join(folder, "no.gguf"))}\n`;
  writeFileSync(file, `offline = true\n${device}\n[models.first]\n[models.second]\n${missing}`);
  [browser, server] = await Promise.all([launch({ webgpu: false }), start(["--config", file])]);
});
after(async () => {
  await browser?.close();
  await server?.kill();
  rmSync(folder, { recursive: true, force: true });
});

test("models are chosen, and loaded by the first question", async () => {
  const page = await (await browser.browser.newContext()).newPage();
  page.setDefaultTimeout(30_000);
  await page.goto(`${server.origin}/`);
  const models = page.getByRole("combobox", { name: "Model", exact: true });
  await models.waitFor();
  const names = () => models.locator("option").allTextContents();
  assert.deepEqual(await names(), ["first (unloaded)", "second (unloaded)", "missing (failed)"]);
  await models.selectOption("second");
  const message = page.getByRole("textbox", { name: "Message", exact: true });
  await message.fill("Who is there?");
  await message.press("Enter");
  await page.getByText("I am here.", { exact: true }).waitFor();
  const second = models.locator("option", { hasText: /^second$/ });
  await second.waitFor({ state: "attached" });
  assert.deepEqual(await names(), ["first (unloaded)", "second", "missing (failed)"]);
  await models.selectOption("missing");
  await page.getByRole("status").filter({ hasText: "no.gguf" }).waitFor();
});
