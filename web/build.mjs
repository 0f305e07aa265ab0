// Builds dist/, the package: the engine as wasm and the package's TypeScript; the files of the demo model's package,
// demo/; and site/, the demo page with both. With the argument `demo` it builds demo/ alone; with `scripts`, all but
// the wasm, which must have been built before; with `page`, the server's chat page, into assets/page, where it is
// committed.
//
// dist/ needs cargo with the target wasm32-unknown-unknown; everything else comes with `npm ci`.

import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { SERVER_PAGE, bundleWorker, serverPage, tabPage } from "./bundle.mjs";

const web = dirname(fileURLToPath(import.meta.url));
const root = dirname(web);
const dist = join(web, "dist");
/** The folder that holds the worker, complete in itself; ts/start.ts says why it is named like the package. */
const inner = join(dist, "folio-web");
const INNER_FILES = ["worker.js", "engine.js", "engine_bg.wasm", "engine.d.ts", "engine_bg.wasm.d.ts"];
const demo = join(web, "demo");
const site = join(web, "site");
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
/** Maximum size of the engine's wasm, which a page downloads before it can load a model. */
const WASM_GZIP_BYTES_MAX = 4 << 20;
const DEMO_FILES = [
  "config.json",
  "generation_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "model.safetensors",
];
function run(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, { cwd: root, stdio: "inherit", ...options });
  if (error) throw error;
  if (status !== 0) throw new Error(`${command} ${args[0]} ended with ${status}`);
}

function wasm() {
  run("cargo", ["build", "--locked", "-p", "folio-web", "--target", "wasm32-unknown-unknown", "--profile", "wasm"]);
  const bindgen = join(target, "bindgen");
  run("cargo", ["build", "--locked", "--manifest-path", join(web, "bindgen/Cargo.toml"), "--target-dir", bindgen]);
  const built = join(target, "wasm32-unknown-unknown/wasm/folio_web.wasm");
  run(join(bindgen, "debug/folio-bindgen"), [built, inner, "engine"]);
  const module = join(inner, "engine_bg.wasm");
  const features = [
    "bulk-memory",
    "mutable-globals",
    "nontrapping-float-to-int",
    "reference-types",
    "sign-ext",
    "simd",
    "multivalue",
  ];
  const optimise = [join(web, "node_modules/binaryen/bin/wasm-opt"), "-O1", "--strip-debug", "--strip-producers"];
  run(process.execPath, [...optimise, ...features.map((name) => `--enable-${name}`), module, "-o", module]);
  const gzip = gzipSync(readFileSync(module)).length;
  console.log(`engine_bg.wasm: ${statSync(module).size} bytes, ${gzip} gzipped`);
  if (gzip > WASM_GZIP_BYTES_MAX) throw new Error(`more than ${WASM_GZIP_BYTES_MAX} bytes gzipped`);
}

async function typescript() {
  run(process.execPath, [join(web, "node_modules/typescript/bin/tsc"), "-p", web]);
  // Bundlers that know nothing of workers copy the folder: what the worker imports must be in it.
  await bundleWorker(join(web, "ts/folio-web/worker.ts"), join(inner, "worker.js"));
  for (const file of readdirSync(inner)) if (!INNER_FILES.includes(file)) rmSync(join(inner, file));
}

function demoPackage() {
  rmSync(join(demo, "folio-web-demo"), { recursive: true, force: true });
  for (const file of DEMO_FILES) {
    cpSync(join(root, "assets/demo", file), join(demo, "folio-web-demo", file.replace(/\.json$/, ".json.bin")));
  }
}

async function demoPage() {
  rmSync(site, { recursive: true, force: true });
  cpSync(dist, site, { recursive: true });
  cpSync(demo, join(site, "demo"), { recursive: true });
  write(site, await tabPage());
  stampPage();
}

function write(folder, files) {
  mkdirSync(folder, { recursive: true });
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
}

/** Files that the page may load besides index.html. The engine caches models itself. */
function pageFiles() {
  const all = readdirSync(site, { recursive: true }).map((file) => file.replaceAll("\\", "/"));
  return all.filter((file) => /\.(js|css|wasm|txt)$/.test(file)).sort();
}

/** Names the service worker's cache by a hash of the page's files, so that any change makes a new version. */
function stampPage() {
  const files = pageFiles();
  const hash = createHash("sha256");
  for (const file of ["index.html", ...files]) hash.update(readFileSync(join(site, file)));
  const script = readFileSync(join(web, "page/sw.js"), "utf8")
    .replace("VERSION_OF_THE_BUILD", hash.digest("hex").slice(0, 16))
    .replace("FILES_OF_THE_PAGE", JSON.stringify(files));
  writeFileSync(join(site, "sw.js"), script);
}

/** Compiles the page's TypeScript without output; it uses the package's types. */
function checkPage() {
  run(process.execPath, [join(web, "node_modules/typescript/bin/tsc"), "-p", join(web, "page")]);
}

const [part = "all"] = process.argv.slice(2);
if (part === "demo") demoPackage();
else if (part === "page") {
  checkPage();
  write(SERVER_PAGE, await serverPage());
} else {
  if (part !== "scripts") {
    rmSync(dist, { recursive: true, force: true });
    mkdirSync(inner, { recursive: true });
    wasm();
  }
  await typescript();
  demoPackage();
  checkPage();
  await demoPage();
}
