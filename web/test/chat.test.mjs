// The chat page of `folio serve` from a user's view: a real server on the fake device, whose answers are scripted, and
// a real browser. With FOLIO_PICTURES=../docs the screenshots of the documentation are taken.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { below, saying, start } from "./support/folio.mjs";
import { web } from "./support/server.mjs";

const SHOWCASE = `<think>
They want everything at once. A table, code and a formula will do.
</think>
Here is **all of it**: \`inline\`, [a link](https://example.org) and $E = mc^2$.

| Step | Cost |
|:-----|-----:|
| read | 1 |
| write | 22 |

\`\`\`python
def double(x: int) -> int:
    return 2 * x  # twice
\`\`\`

$$\\int_0^1 x^2 \\, dx = \\frac{1}{3}$$

<b>No markup</b> ![of](https://example.org/a.png) others.

H<sub>2</sub>O, <kbd>Ctrl</kbd>, up<br/>down, \\[y^3\\] in a line, a note[^1].
First line
second line

**强调。**了 <script>alert(1)</script>

- [x] done
- [ ] open

<details><summary>More</summary>

Folded **text**.

</details>

[^1]: The note.
`;
const CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>';
const SUNNY = "It is sunny in Oslo.";
const TOOLS = '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]';
const LAST = "That is all.";
const DESKTOP = { viewport: { width: 1280, height: 860 }, colorScheme: "light" };
const PHONE = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, colorScheme: "dark" };

const pictures = process.env.FOLIO_PICTURES;
const axe = readFileSync(join(web, "node_modules/axe-core/axe.min.js"), "utf8");
let browser, server, options, slow;

before(async () => {
  const script = await saying([SHOWCASE, CALL, SUNNY, LAST]);
  const on = (pause) => ["--device", `fake:pause=${pause},${script}`, "--reasoning-parser", "think"];
  // Answers of the slow one are still running when a test interrupts them.
  [options, slow] = [on(4), on(60)];
  [browser, server] = await Promise.all([launch({ webgpu: false }), start(options)]);
});
after(async () => {
  await browser?.close();
  await server?.kill();
});

/** Opens the page in a new profile; `page.errors` collects what its console says, `page.asked` its requests. */
async function open(how = DESKTOP, url = `${server.origin}/`) {
  const context = await browser.browser.newContext({ acceptDownloads: true, ...how });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  [page.errors, page.asked] = [[], []];
  page.on("console", (message) => message.type() === "error" && page.errors.push(message.text()));
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("request", (request) => page.asked.push(request));
  await page.goto(url);
  return page;
}

const ready = (page) => page.waitForSelector(".dot.ready");
const message = (page) => page.getByRole("textbox", { name: "Message", exact: true });
const button = (page, name) => page.getByRole("button", { name, exact: true });
const articles = (page, name) => page.getByRole("article", { name });
/** The last answer, once it has ended. */
async function ended(page, count) {
  await page.waitForFunction(
    (count) => document.querySelectorAll("article.assistant .figures").length === count,
    count,
  );
  return articles(page, "Answer").last();
}

async function ask(page, text, count = 1) {
  await message(page).fill(text);
  await message(page).press("Enter");
  return await ended(page, count);
}

/** The last request for an answer, as JSON. */
const lastBody = (page) =>
  page.asked.filter((request) => request.url().endsWith("/chat/completions")).at(-1).postDataJSON();

async function accessible(page, what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate("axe.run()");
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join("\n  ")}`);
  assert.deepEqual(found, [], what);
}

const fits = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
const picture = (page, name) => pictures && page.screenshot({ path: join(pictures, `page-${name}.png`) });

test("an answer: thoughts, markdown, code, formulas, figures, and all of it again after a reload", async () => {
  const page = await open();
  await ready(page);
  await accessible(page, "an empty page");
  const answer = await ask(page, "Show me everything.");
  assert.match(await answer.locator(".thoughts summary").textContent(), /Thought for \d+\.\d s/);
  assert.equal(await answer.locator(".thought-text").count(), 0, "thoughts are folded after the answer began");
  await answer.locator(".thoughts summary").click();
  assert.match(await answer.locator(".thought-text").textContent(), /They want everything/);
  assert.equal(await answer.locator("td.right").last().textContent(), "22");
  assert.ok((await answer.locator("pre .hljs-keyword").count()) >= 2, "code is coloured");
  assert.equal(await answer.locator("math mfrac").count(), 1);
  assert.equal(await answer.locator("b, img").count(), 0, "markup and pictures of the model are not inserted");
  assert.match(await answer.textContent(), /<b>No markup<\/b> of others/);
  for (const [selector, count] of [["sub", 1], ["kbd", 1], ["script", 0], ["math msup", 3], ["input:checked", 1]]) {
    assert.equal(await answer.locator(`.markdown ${selector}`).count(), count, selector);
  }
  assert.match(await answer.textContent(), /<script>alert\(1\)<\/script>/);
  const lines = await answer.locator("p", { hasText: "First line" }).innerHTML();
  assert.match(lines, /up<br>down[^]*First line<br>\s*second line/);
  assert.equal(await answer.locator("strong", { hasText: "强调。" }).count(), 1, "bold beside Chinese");
  assert.equal(await answer.locator("input[type=checkbox]").count(), 2);
  const folded = answer.locator(".markdown details");
  assert.equal(await folded.locator("strong").isVisible(), false);
  await folded.locator("summary", { hasText: "More" }).click();
  assert.equal(await folded.locator("strong").isVisible(), true);
  assert.match(await answer.locator("section.footnotes").textContent(), /The note\./);
  const link = answer.locator('a[href="https://example.org"]');
  assert.equal(await link.getAttribute("rel"), "noopener noreferrer");
  await answer.getByRole("button", { name: "Copy" }).nth(0).click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^def double.*\n {4}return 2 \* x/);
  const figures = await answer.locator(".figures").textContent();
  assert.match(figures, /\d+\.\d tokens\/s\d+ tokensprompt \d+, \d+ cachedfinished/);
  await page.waitForFunction(() => document.querySelector(".unseen[role=status]").textContent.startsWith("Answer: "));
  await accessible(page, "a page with an answer");
  await picture(page, "desktop");
  await page.reload();
  assert.match(await (await ended(page, 1)).textContent(), /Here is all of it/);
  assert.deepEqual(page.errors, []);
  const origins = new Set(page.asked.map((request) => new URL(request.url()).origin));
  assert.deepEqual([...origins].filter((origin) => origin !== "null"), [server.origin], "it asks its own server only");
  await page.context().close();
});

test("branches: another answer, an edited question, and the way back", async () => {
  const page = await open();
  await ready(page);
  await ask(page, "First wording");
  await articles(page, "Answer").hover();
  await button(page, "Answer again").click();
  await page.getByRole("img", { name: "Branch 2 of 2" }).waitFor();
  await ended(page, 1);
  await articles(page, "You").hover();
  await articles(page, "You").getByRole("button", { name: "Edit" }).click();
  await page.getByRole("textbox", { name: "Edit the question" }).fill("Second wording");
  await button(page, "Send").first().click();
  await page.waitForFunction(() => document.querySelector(".bubble")?.textContent === "Second wording");
  await ended(page, 1);
  assert.equal(await page.getByRole("img", { name: "Branch 2 of 2" }).count(), 1, "the question has branches");
  await articles(page, "You").hover();
  await articles(page, "You").getByRole("button", { name: "Previous branch" }).click();
  assert.equal(await page.locator(".bubble").textContent(), "First wording");
  assert.equal(await page.getByRole("img", { name: "Branch 2 of 2" }).count(), 1, "its answer has branches");
  assert.equal(lastBody(page).messages.at(-1).content, "Second wording");
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("by Tab alone to the message and to Send; texts from right to left; no motion where none is wanted", async () => {
  const page = await open({ ...DESKTOP, reducedMotion: "reduce" });
  await ready(page);
  await page.evaluate(() => document.activeElement.blur());
  const focused = () =>
    page.evaluate(() => {
      const { activeElement: at } = document;
      return { name: at.getAttribute("aria-label"), tag: at.tagName, shown: at.matches(":focus-visible") };
    });
  let at = null;
  for (let step = 0; at?.tag !== "TEXTAREA"; step++) {
    assert.ok(step < 20, "the message is among the first twenty stops");
    await page.keyboard.press("Tab");
    at = await focused();
    // After the last stop, the browser itself has the focus.
    assert.ok(at.shown || at.tag === "BODY", `${at.tag} ${at.name} shows that it has the focus`);
  }
  assert.equal(at.name, "Message");
  const direction = (element) => element.evaluate((element) => getComputedStyle(element).direction);
  assert.equal(await direction(message(page)), "ltr");
  await page.keyboard.type("שלום?");
  assert.equal(await direction(message(page)), "rtl");
  await page.keyboard.press("Tab");
  assert.equal((await focused()).name, "Send");
  await page.keyboard.press("Space");
  const answer = await ended(page, 1);
  assert.equal(await direction(page.locator(".bubble")), "rtl");
  assert.equal(await direction(answer.locator(".block").first()), "ltr");
  const motion = (page) =>
    page.evaluate(() => {
      const element = document.body.appendChild(document.createElement("span"));
      element.className = "spinner";
      const { animationName } = getComputedStyle(element);
      element.remove();
      return animationName;
    });
  assert.equal(await motion(page), "none");
  await page.emulateMedia({ reducedMotion: "no-preference" });
  assert.equal(await motion(page), "turn");
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("stop: by Escape, by the button and by a reload; what arrived stays, and the next question works", async () => {
  const own = await start(slow);
  const page = await open(DESKTOP, `${own.origin}/`);
  await ready(page);
  const stops = [() => page.keyboard.press("Escape"), () => button(page, "Stop (Esc)").click()];
  for (const stop of stops) {
    await button(page, "New chat").click();
    await message(page).fill("Show me everything.");
    await message(page).press("Enter");
    await page.locator("article.assistant .thoughts").waitFor();
    await stop();
    const answer = await ended(page, 1);
    assert.match(await answer.locator(".figures").textContent(), /stopped by you$/);
  }
  await ask(page, "And now?", 2);
  assert.match(lastBody(page).messages.at(-1).content, /And now\?$/);
  await button(page, "New chat").click();
  await message(page).fill("Show me everything.");
  await message(page).press("Enter");
  await page.locator("article.assistant .markdown").waitFor();
  // Another tab of the page lists the conversation that runs here, and shows what it has saved.
  const tab = await page.context().newPage();
  await tab.goto(page.url());
  await tab.getByRole("navigation").getByText("Show me everything.").nth(2).waitFor();
  await tab.locator("article.assistant .thoughts").waitFor();
  await tab.close();
  await page.reload();
  const answer = await ended(page, 1);
  assert.match(await answer.locator(".figures").textContent(), /interrupted$/);
  assert.equal(await answer.locator(".thoughts").count(), 1, "thoughts that had arrived are there");
  assert.deepEqual(page.errors, []);
  await page.context().close();
  await own.kill();
});

test("settings: fields of the server, a saved system prompt, a JSON schema, tools with results", async () => {
  const page = await open();
  await ready(page);
  await button(page, "Settings").click();
  const panel = page.getByRole("complementary", { name: "Settings" });
  await panel.getByLabel("Temperature").fill("0.25");
  await panel.getByLabel("Top k").pressSequentially("-2");
  await panel.getByLabel("Seed").fill("7");
  await panel.getByText("End", { exact: true }).click();
  await panel.getByLabel("Stop", { exact: true }).fill("###\nEND");
  await panel.getByRole("textbox", { name: "System prompt" }).fill("Be brief.");
  await button(page, "Save this system prompt").click();
  await panel.getByLabel("Name of the system prompt").fill("Short");
  await panel.getByLabel("Name of the system prompt").press("Enter");
  await panel.getByText("Tools", { exact: true }).click();
  await panel.getByLabel("Functions that the model may call, as JSON").fill(TOOLS);
  await accessible(page, "the settings");
  await ask(page, "Show me everything.");
  const { temperature, seed, stop, messages, tools, ...rest } = lastBody(page);
  assert.deepEqual([temperature, seed, stop, tools[0].function.name], [0.25, 7, ["###", "END"], "get_weather"]);
  assert.deepEqual(messages[0], { role: "system", content: "Be brief." });
  assert.ok(!("top_k" in rest), "what is out of range is not sent");
  const call = (await ask(page, "And the weather?", 2)).getByRole("region", { name: "Call of get_weather" });
  assert.match(await call.textContent(), /"city": "Oslo"/);
  await picture(page, "settings");
  await call.getByLabel("Result of get_weather").fill("sunny");
  await call.getByRole("button", { name: "Give result" }).click();
  assert.match(await (await ended(page, 3)).textContent(), new RegExp(SUNNY));
  assert.equal(lastBody(page).messages.at(-1).role, "tool");
  await button(page, "New chat").click();
  const saved = panel.getByLabel("Saved system prompts");
  await saved.selectOption("None");
  assert.equal(await panel.getByRole("textbox", { name: "System prompt" }).inputValue(), "");
  await saved.selectOption("Short");
  await panel.getByRole("button", { name: "Back to the server's defaults" }).click();
  await panel.getByLabel("Functions that the model may call, as JSON").fill("");
  await panel.getByLabel("Answer", { exact: true }).selectOption("JSON schema");
  await panel.getByLabel("Form of the answer").fill("{");
  await panel.getByText(/The JSON schema of the answer is not JSON/).waitFor();
  const schema = { type: "object", properties: {}, additionalProperties: false };
  await panel.getByLabel("Form of the answer").fill(JSON.stringify(schema));
  const answer = await ask(page, "As JSON");
  assert.deepEqual(lastBody(page).response_format.json_schema.schema, schema);
  assert.ok(!("temperature" in lastBody(page)));
  assert.match(await answer.locator("code").textContent(), /^\s*\{\s*\}/);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("limits, several answers, and two conversations side by side", async () => {
  const page = await open();
  await ready(page);
  await button(page, "Settings").click();
  const panel = page.getByRole("complementary", { name: "Settings" });
  await panel.getByLabel("Max completion tokens").fill("80");
  const cut = await ask(page, "Show me everything.");
  assert.match(await cut.locator(".figures").textContent(), /80 tokens.*reached the token limit$/);
  const before = await cut.locator(".markdown").last().textContent();
  await panel.getByLabel("Max completion tokens").fill("");
  await button(page, "Continue this answer").click();
  await page.getByText("finished").waitFor();
  const { continue_final_message, add_generation_prompt, messages } = lastBody(page);
  assert.deepEqual([continue_final_message, add_generation_prompt], [true, false]);
  assert.equal(messages.at(-1).role, "assistant");
  const whole = await cut.locator(".markdown").last().textContent();
  assert.ok(whole.length > before.length && whole.startsWith(before.slice(0, 20)), "the rest follows what was there");
  await panel.getByText("Several answers").click();
  await panel.getByLabel("N", { exact: true }).fill("2");
  await button(page, "Close settings").click();
  await button(page, "New chat").click();
  await ask(page, "Twice, please.");
  await page.getByRole("img", { name: "Branch 1 of 2" }).waitFor();
  await button(page, "Two conversations side by side").click();
  await page.getByLabel("Ask both").first().check();
  await message(page).last().fill("To both");
  await message(page).last().press("Enter");
  await ended(page, 3);
  await accessible(page, "two conversations");
  await message(page).last().press("ArrowUp");
  assert.equal(await page.getByRole("textbox", { name: "Edit the question" }).inputValue(), "To both");
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("conversations: rename, search, export, delete, import", async () => {
  const page = await open();
  await ready(page);
  await ask(page, "About whales");
  await button(page, "New chat").click();
  await ask(page, "About stars");
  const list = page.getByRole("navigation", { name: "Conversations" });
  await list.getByRole("button", { name: "More about About whales" }).click();
  await page.keyboard.press("Enter");
  await list.getByLabel("New title").fill("Sea animals");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("whales");
  await list.getByText("About stars").waitFor({ state: "detached" });
  await list.getByRole("button", { name: "Sea animals", exact: true }).waitFor();
  await accessible(page, "a search");
  const download = (name) => Promise.all([page.waitForEvent("download"), name.click()]).then(([file]) => file.path());
  const all = await download(button(page, "Export all conversations"));
  const { conversations } = JSON.parse(readFileSync(all, "utf8"));
  assert.deepEqual(conversations.map(({ title }) => title).sort(), ["About stars", "Sea animals"]);
  await list.getByRole("button", { name: "More about Sea animals" }).click();
  const markdown = readFileSync(await download(page.getByRole("menuitem", { name: "Export as Markdown" })), "utf8");
  assert.match(markdown, /^# Sea animals\n\n## You\n\nAbout whales\n\n## Assistant\n\nHere is \*\*all of it/);
  await page.getByLabel("Search conversations").fill("");
  page.once("dialog", (dialog) => dialog.accept());
  await button(page, "Delete all conversations").click();
  await list.getByText("No conversations yet.").waitFor();
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), button(page, "Import conversations").click()]);
  await chooser.setFiles({ name: "bad.json", mimeType: "application/json", buffer: Buffer.from('{"format": "x"}') });
  await page.getByText(/Not imported\. The file has no "format"/).waitFor();
  await chooser.setFiles(all);
  await list.getByRole("button", { name: "Sea animals", exact: true }).click();
  assert.match(await (await ended(page, 1)).textContent(), /Here is all of it/);
  await list.getByRole("button", { name: "More about Sea animals" }).click();
  await page.getByRole("menuitem", { name: "Delete" }).click();
  await list.getByText("Sea animals").waitFor({ state: "detached" });
  await button(page, "Undo").click();
  await list.getByText("Sea animals").waitFor();
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

/** The conversations that the page keeps in the browser. */
const keptBy = (page) =>
  page.evaluate(async () => {
    const [{ name }] = await indexedDB.databases();
    const result = (request) => new Promise((done) => (request.onsuccess = () => done(request.result)));
    const db = await result(indexedDB.open(name));
    const all = await result(db.transaction("conversations").objectStore("conversations").getAll());
    db.close();
    return all;
  });

/** Waits until the only conversation has these messages. */
async function keeps(page, texts, when) {
  let found;
  for (let tries = 0; tries < 50; tries++) {
    const [conversation] = await keptBy(page);
    found = Object.values(conversation.messages).map(({ text }) => text);
    if (texts.every((text) => found.includes(text))) return;
    await page.waitForTimeout(100);
  }
  assert.fail(`${when}: ${JSON.stringify(found)} lacks one of ${JSON.stringify(texts)}`);
}

test("two tabs and an old file: no message of a conversation is lost", async () => {
  const page = await open();
  await ready(page);
  await ask(page, "Before");
  await keeps(page, ["Before"], "after an answer");
  const backup = { format: "folio-conversations", version: 1, conversations: await keptBy(page) };
  const other = await page.context().newPage();
  other.setDefaultTimeout(30_000);
  await other.goto(page.url());
  await ended(other, 1);
  // Both ask before either is answered.
  let answer;
  const asked = new Promise((resolve) => (answer = resolve));
  for (const [tab, text] of [[page, "Here"], [other, "There"]]) {
    await tab.route("**/chat/completions", async (route) => {
      await asked;
      await route.continue();
    });
    await message(tab).fill(text);
    await message(tab).press("Enter");
    await button(tab, "Stop (Esc)").waitFor();
  }
  answer();
  await Promise.all([page, other].map((tab) => button(tab, "Stop (Esc)").waitFor({ state: "hidden" })));
  await keeps(page, ["Before", "Here", "There"], "after both were answered");
  const buffer = Buffer.from(JSON.stringify(backup));
  const chooser = page.locator('.sidebar-foot input[type="file"]');
  await chooser.setInputFiles({ name: "old.json", mimeType: "application/json", buffer });
  await page.waitForTimeout(500);
  await keeps(page, ["Before", "Here", "There"], "after an old file was imported");
  await page.context().close();
});

test("attachments: text files go along, others are refused by name", async () => {
  const page = await open();
  await ready(page);
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), button(page, "Attach text files").click()]);
  const file = (name, text) => ({ name, mimeType: "application/octet-stream", buffer: Buffer.from(text) });
  await chooser.setFiles([file("notes.md", "# Notes\n```\nx\n```\n"), file("photo.jpg", [0xff, 0xd8, 0, 1])]);
  await page.getByText("photo.jpg is not a text file in UTF-8.").waitFor();
  await ask(page, "Sum this up.");
  const { content } = lastBody(page).messages.at(-1);
  assert.equal(content, "File notes.md:\n````\n# Notes\n```\nx\n```\n````\n\nSum this up.");
  assert.equal(await articles(page, "You").locator(".attachment").count(), 1);
  await page.context().close();
});

test("the live view: figures and plots of the server", async () => {
  const page = await open();
  await ready(page);
  await button(page, "What the server does").click();
  const panel = page.getByRole("complementary", { name: "Server" });
  await panel.getByRole("img", { name: /^Running: 0 of \d+ now/ }).waitFor();
  await ask(page, "Show me everything.");
  await panel.getByRole("img", { name: /^Generated: .* at most ([1-9]\d*|0\.[1-9])/ }).waitFor();
  const memory = /KV blocks in host memory0 BKV blocks on disk0Weights\d+\.\d MBMemory of the process\d+\.\d MB/;
  assert.match(await panel.textContent(), /Tokens in the pool[\d,]+ of [\d,]+KV/);
  assert.match(await panel.textContent(), memory);
  await accessible(page, "the live view");
  await picture(page, "server");
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("an error keeps the question and what arrived, and retry works", async () => {
  let own = await start(slow);
  const page = await open(DESKTOP, `${own.origin}/`);
  await ready(page);
  await message(page).fill("Show me everything.");
  await message(page).press("Enter");
  await page.locator("article.assistant .thoughts").waitFor();
  const { port } = own;
  await own.kill();
  const answer = await ended(page, 1);
  await answer.getByText(/connection|network error|Failed to fetch/i).waitFor();
  assert.equal(await page.locator(".bubble").textContent(), "Show me everything.");
  await accessible(page, "an error");
  own = await start(options, port);
  await answer.getByRole("button", { name: "Retry" }).click();
  await page.getByText("finished").waitFor();
  assert.match(await articles(page, "Answer").last().textContent(), /Here is all of it/);
  await page.context().close();
  await own.kill();
});

test("with a key, below a path", async () => {
  const locked = await start([...options, "--api-key", "sesame-9"]);
  const proxy = await below("/apps/folio/", locked.origin);
  const page = await open(DESKTOP, proxy.url);
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  await accessible(page, "the question for the key");
  await dialog.getByLabel("API key").fill("wrong");
  await dialog.getByRole("button", { name: "Use it" }).click();
  await dialog.getByText("The server refused the last one.").waitFor();
  await dialog.getByLabel("API key").fill("sesame-9");
  await dialog.getByRole("button", { name: "Use it" }).click();
  await ready(page);
  await ask(page, "Show me everything.");
  const paths = new Set(page.asked.map((request) => request.url()).filter((url) => url.startsWith("http")));
  for (const path of paths) assert.ok(path.startsWith(proxy.url), path);
  await page.reload();
  await ready(page);
  await page.waitForSelector("nav .open");
  assert.equal(await dialog.count(), 0, "the key is kept for this tab");
  await page.context().close();
  await proxy.close();
  await locked.kill();
});

test("phone: a drawer for the list, and a panel that does not cover the answer", async () => {
  const page = await open(PHONE);
  await ready(page);
  assert.ok(await fits(page));
  await message(page).fill("Show me everything.");
  await button(page, "Send").tap();
  await ended(page, 1);
  assert.ok(await fits(page));
  await accessible(page, "a phone");
  await picture(page, "phone");
  await button(page, "Settings").tap();
  await page.getByLabel("Temperature").waitFor();
  const box = (selector) => page.locator(selector).boundingBox();
  const [panel, answer, form] = [await box(".panel"), await box(".scroller"), await box(".composer")];
  assert.ok(answer.height > 150 && answer.y + answer.height <= panel.y && form.y + form.height <= panel.y);
  assert.ok(await fits(page));
  await accessible(page, "the settings on a phone");
  await button(page, "Close settings").tap();
  await button(page, "Conversations").tap();
  await page.getByRole("navigation").getByText("Show me everything.").waitFor();
  await accessible(page, "the list on a phone");
  await button(page, "New chat").tap();
  await page.getByRole("navigation").waitFor({ state: "detached" });
  assert.deepEqual(page.errors, []);
  await page.context().close();
});
