// The demo page from a visitor's view: on a phone, on a desktop, and offline on the second visit.

import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { serve } from "./support/server.mjs";

let server, browser;
/** A folder for screenshots of the page. */
const pictures = process.env.FOLIO_PICTURES;

before(async () => {
  server = await serve();
  browser = await launch();
});
after(async () => {
  await browser.close();
  await server.close().catch(() => {});
});

const open = async (page) => {
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(`${server.origin}/`);
  return errors;
};

const fitsItsWidth = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);

async function chat(page) {
  await page.click("#start");
  await page.waitForSelector("body.ready");
  await page.fill("#both-text", "Tell me a story about a robot.");
  await page.click("#both button");
  const busy = () => document.querySelectorAll(".busy").length;
  await page.waitForFunction(
    `(${busy})() === 2 && [...document.querySelectorAll(".busy")].every((line) => line.textContent)`,
  );
}

test("desktop: two chats stream side by side", async () => {
  const context = await browser.browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(300_000);
  const errors = await open(page);
  assert.ok(await fitsItsWidth(page));
  await chat(page);
  const tops = await page.$$eval(".chat", (chats) => chats.map((chat) => chat.getBoundingClientRect().top));
  assert.equal(tops[0], tops[1], "the chats stand side by side");
  await page.waitForTimeout(2500);
  if (pictures) await page.screenshot({ path: join(pictures, "desktop.png") });
  await page.click(".chat:nth-child(1) .stop");
  await page.waitForFunction(() => document.querySelectorAll(".busy").length === 0);
  await page.fill(".chat:nth-child(1) input", "Hello!");
  await page.click(".chat:nth-child(1) form button");
  await page.waitForFunction(
    () => document.querySelectorAll(".busy").length === 0 && document.querySelectorAll(".assistant").length === 3,
  );
  const cached = await page.textContent(".chat:nth-child(1) .cached");
  assert.match(cached, /^[1-9]\d* of \d+$/, "the shared system prompt was cached");
  assert.match(await page.textContent(".chat:nth-child(2) .rate"), /^\d+\.\d$/);
  assert.match(await page.textContent("#adapter"), /swiftshader/i);
  assert.match(await page.textContent("#kv"), /^\d+ of \d+ blocks$/);
  assert.deepEqual(errors, []);
  await context.close();
});

test("phone: the same in one column, and a model that is not there", async () => {
  const context = await browser.browser.newContext({
    viewport: { width: 390, height: 844 },
    isMobile: true,
    colorScheme: "dark",
  });
  const page = await context.newPage();
  page.setDefaultTimeout(300_000);
  await open(page);
  assert.ok(await fitsItsWidth(page));
  await page.fill("#model", `${server.origin}/nothing/`);
  await page.click("#start");
  await page.waitForSelector("#error:not([hidden])");
  assert.match(await page.textContent("#error"), /config\.json: there is no such file/);
  await page.fill("#model", "demo");
  await chat(page);
  assert.ok(await fitsItsWidth(page));
  if (pictures) await page.screenshot({ path: join(pictures, "phone.png"), fullPage: true });
  await context.close();
});

test("after the first visit it needs no server", async () => {
  const context = await browser.browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(300_000);
  await open(page);
  await page.evaluate(() => navigator.serviceWorker.ready);
  await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  await chat(page);
  await server.close();
  await page.reload();
  await chat(page);
  await context.close();
});
