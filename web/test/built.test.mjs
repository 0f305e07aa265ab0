// The built files of the server's page, which are committed, are what their source gives; and they are small.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { SERVER_PAGE, serverPage } from "../bundle.mjs";

const GZIP_BYTES_MAX = 400_000;

test("the committed page is built from its source, and small", async () => {
  const files = await serverPage();
  assert.deepEqual(readdirSync(SERVER_PAGE).sort(), Object.keys(files).sort());
  for (const [name, text] of Object.entries(files)) {
    const held = readFileSync(join(SERVER_PAGE, name), "utf8");
    assert.ok(held === text, `assets/page/${name} is not what web/page gives: run \`npm run page\` in web`);
  }
  const bytes = Object.values(files).reduce((sum, text) => sum + gzipSync(text).length, 0);
  assert.ok(bytes <= GZIP_BYTES_MAX, `${bytes} bytes gzipped, of at most ${GZIP_BYTES_MAX}`);
});

test("the licences of all bundled libraries ship with the page", async () => {
  const { "licences.txt": licences } = await serverPage();
  const names = ["preact", "@preact/signals", "markdown-it", "@mdit/plugin-tex", "dompurify", "highlight.js", "temml"];
  for (const name of [...names, "idb", "lucide", "linkify-it", "mdurl", "entities"]) {
    assert.match(licences, new RegExp(`^${name} \\d+\\.\\d+\\.\\d+ \\(.+\\)$`, "m"));
  }
});
