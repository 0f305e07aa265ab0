// Bundles the chat page, the one that `folio serve` embeds and the demo page of the package; and the package's worker.

import { build } from "esbuild";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const web = dirname(fileURLToPath(import.meta.url));
/** Where the built page of the server lies, so that `cargo build` needs no Node. */
export const SERVER_PAGE = join(dirname(web), "assets/page");

/** Bundles an entry of page/ and returns its script, style and licences as texts. */
async function bundle(entry) {
  const { outputFiles, metafile } = await build({
    absWorkingDir: web,
    entryPoints: { app: `page/${entry}`, style: "page/style.css" },
    outdir: "out",
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    format: "esm",
    target: ["chrome120", "firefox121", "safari17"],
    jsx: "automatic",
    jsxImportSource: "preact",
    alias: { react: "preact/compat", "react-dom": "preact/compat" },
    charset: "utf8",
    legalComments: "none",
    logLevel: "warning",
  });
  const text = (name) => outputFiles.find(({ path }) => path.endsWith(name)).text;
  return { script: text("app.js"), style: text("style.css"), licences: licences(Object.keys(metafile.inputs)) };
}

/** Bundles the package's worker, except the engine's module beside it, which wasm-bindgen has made. */
export async function bundleWorker(entry, outfile) {
  const external = ["./engine.js"];
  await build({ entryPoints: [entry], outfile, bundle: true, format: "esm", target: "es2022", external });
}

/** The licences of the packages that these files belong to. */
function licences(files) {
  const folder = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//;
  const packages = new Set(files.map((file) => folder.exec(file)?.[1]).filter(Boolean));
  const parts = [...packages].sort().map((path) => {
    const { name, version, license } = JSON.parse(readFileSync(join(web, path, "package.json"), "utf8"));
    const texts = readdirSync(join(web, path)).filter((file) => /^licen[cs]e/i.test(file));
    if (texts.length === 0) throw new Error(`${name} has no file with its licence`);
    const text = texts.map((file) => readFileSync(join(web, path, file), "utf8").trim()).join("\n\n");
    return `${name} ${version} (${license})\n\n${text.replaceAll("\r\n", "\n")}\n`;
  });
  return `Licences of the libraries in folio's chat page.\n\n${parts.join(`\n${"-".repeat(78)}\n\n`)}`;
}

/** The files of the server's page, by name. */
export async function serverPage() {
  const { script, style, licences } = await bundle("server.tsx");
  const html = readFileSync(join(web, "page/server.html"), "utf8");
  return { "index.html": html, "app.js": script, "style.css": style, "licences.txt": licences };
}

/** The files of the package's demo page, by name. It loads the package's own `index.js`. */
export async function tabPage() {
  const { script, style, licences } = await bundle("tab.tsx");
  const html = readFileSync(join(web, "page/index.html"), "utf8");
  return { "index.html": html, "page.js": script, "style.css": style, "licences.txt": licences };
}
