// The demo page from a visitor's view: on a phone, on a desktop, and offline on the second visit. What all pages share
// is tested on the server's page, in `chat.test.mjs`.

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
  page.setDefaultTimeout(300_000);
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(`${server.origin}/`);
  await page.waitForSelector(".composer");
  return errors;
};

const fitsItsWidth = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
const message = (page, pane = 0) => page.getByRole("textbox", { name: "Message", exact: true }).nth(pane);

async function load(page) {
  await page.getByRole("button", { name: "Load", exact: true }).click();
  await page.waitForSelector(".dot.ready");
}

/** Asks here, or everywhere, until every answer has text. */
async function ask(page, panes) {
  await message(page).fill("Tell me a story about a robot.");
  await message(page).press("Enter");
  await page.waitForFunction(
    (panes) => document.querySelectorAll("article.assistant .markdown").length === panes,
    panes,
  );
}

test("desktop: two chats stream side by side", async () => {
  const context = await browser.browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light" });
  const page = await context.newPage();
  const errors = await open(page);
  assert.ok(await fitsItsWidth(page));
  await load(page);
  await page.getByLabel("Ask both").first().check();
  await ask(page, 2);
  const tops = await page.$$eval(".chat", (chats) => chats.map((chat) => chat.getBoundingClientRect().top));
  assert.equal(tops[0], tops[1], "the chats stand side by side");
  await page.waitForTimeout(2500);
  if (pictures) await page.screenshot({ path: join(pictures, "page-tab.png") });
  await page.$$eval(".stop", (buttons) => buttons.forEach((button) => button.click()));
  await page.waitForFunction(() => document.querySelectorAll("article.assistant .figures").length === 2);
  await page.getByLabel("Ask both").first().uncheck();
  await message(page).fill("Hello!");
  await message(page).press("Enter");
  await page.waitForFunction(() => document.querySelectorAll("article.assistant .figures").length === 3);
  const figures = await page.locator(".chat").first().locator(".figures").last().textContent();
  assert.match(figures, /prompt \d+, [1-9]\d* cached/, "the shared system prompt was cached");
  assert.match(await page.textContent(".models .state"), /on CPU \(simd128/);
  await page.getByRole("button", { name: "What the server does" }).click();
  await page.getByRole("img", { name: /^Running: 0 of 8 now/ }).waitFor();
  assert.deepEqual(errors, []);
  await context.close();
});

test("phone: one chat, and a model that is not there", async () => {
  const context = await browser.browser.newContext({
    viewport: { width: 390, height: 844 },
    isMobile: true,
    colorScheme: "dark",
  });
  const page = await context.newPage();
  await open(page);
  assert.ok(await fitsItsWidth(page));
  await page.getByLabel("Model").fill(`${server.origin}/nothing/`);
  await page.getByRole("button", { name: "Load", exact: true }).click();
  const alert = page.getByRole("alert");
  await alert.waitFor();
  assert.match(await alert.textContent(), /config\.json: there is no such file/);
  await page.getByLabel("Model").fill("demo");
  await load(page);
  await ask(page, 1);
  assert.ok(await fitsItsWidth(page));
  await context.close();
});

test("after the first visit it needs no server", async () => {
  const context = await browser.browser.newContext();
  const page = await context.newPage();
  await open(page);
  await page.evaluate(() => navigator.serviceWorker.ready);
  await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  await load(page);
  await ask(page, 1);
  await server.close();
  await page.goto(`${server.origin}/`);
  await load(page);
  await ask(page, 1);
  await context.close();
});
