// Where a model's files are: what `load()` was given, as the worker needs it.

import { FolioError } from "./errors.js";
import { checkedLimits, checkOptions, MODEL } from "./options.js";
import type { ModelPlace } from "./protocol.js";
import type { Contents, LoadOptions, ModelSource } from "./types.js";

const HUB = "https://huggingface.co";
const RANGE_BYTES = 32 << 20;
const SILENCE_MS = 30_000;
/** `org/name`, with a revision after `@` and a quantization or GGUF file after `:`. */
const REPOSITORY = /^(\w[\w.-]*\/[\w.-]+)(?:@([\w./+=-]+))?(?::([^:]+))?$/;
/** The end of a GGUF file's name, with its number if it is a part of a model. */
const GGUF = /(-\d{5}-of-\d{5})?\.gguf$/i;
/** Addresses of what the page itself has. */
const OWN = /^(blob|data):/i;

/** What the location of a model decides. */
type Found = Pick<ModelPlace, "name" | "key" | "address" | "base"> & Partial<ModelPlace>;

/** The location and name of the model that `options` ask for. Fails if an option is not what it may be. */
export async function findModel(options: LoadOptions): Promise<ModelPlace> {
  checkOptions(options);
  const { name, cache, limits, speculation, device, rangeBytes, silenceMs } = options;
  const found = await findFiles(options);
  return {
    files: null,
    query: "",
    listing: null,
    gguf: null,
    folder: null,
    requested: null,
    ...found,
    name: name ?? found.name,
    cache: cache ?? "opfs",
    limits: checkedLimits(limits),
    speculation: speculation ?? true,
    device: device ?? "auto",
    rangeBytes: Math.floor(rangeBytes ?? RANGE_BYTES),
    silenceMs: silenceMs ?? SILENCE_MS,
  };
}

async function findFiles({ model, hub }: Pick<LoadOptions, "model" | "hub">): Promise<Found> {
  const address = model instanceof URL ? model.href : model;
  if (typeof address !== "string") return await findBySource(address);
  if (OWN.test(address)) return await findBySource(await ownContents(address));
  const hubAddress = String(hub ?? HUB).replace(/\/+$/, "");
  return findRepository(address, hubAddress) ?? findByAddress(address);
}

function findRepository(model: string, hub: string): Found | null {
  const repository = REPOSITORY.exec(model);
  if (!repository || (GGUF.test(model) && repository[3] === undefined)) return null;
  const [, repo, revision = "main", requested = null] = repository;
  const at = encodeURIComponent(revision);
  const listing = `${hub}/api/models/${repo}/tree/${at}?recursive=true`;
  const base = `${hub}/${repo}/resolve/${at}/`;
  return { name: model.replace(/@[^:]*/, ""), key: base, address: `${hub}/${repo}`, base, listing, requested };
}

/** A GGUF file, or a folder. Only its contents tell what an address is that ends like neither of them. */
function findByAddress(model: string): Found {
  const url = parsed(model);
  const query = url.search;
  [url.search, url.hash] = ["", ""];
  const last = url.pathname.split("/").filter(Boolean).at(-1) ?? "model";
  if (url.pathname.endsWith("/")) {
    return { name: decoded(last), key: url.href, address: url.href, base: url.href, query };
  }
  const gguf = decoded(last);
  const base = new URL(".", url).href;
  const file = { name: gguf.replace(GGUF, ""), key: base + gguf, address: url.href, base, gguf, query };
  if (GGUF.test(url.pathname)) return file;
  const folder = `${url.href}/`;
  return { ...file, key: folder, folder };
}

function parsed(address: string): URL {
  try {
    if (address.trim() !== "") return new URL(address, globalThis.location?.href);
  } catch {
    // Refused below.
  }
  throw new FolioError(`model: ${JSON.stringify(address)} is neither a repository (org/name) nor a URL`);
}

function decoded(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

async function findBySource(model: Exclude<LoadOptions["model"], string | URL>): Promise<Found> {
  const source = asSource(model);
  const given = Object.entries(source.files);
  if (given.length === 0) throw new FolioError("model: it has no files");
  const files = Object.fromEntries(
    await Promise.all(given.map(async ([name, file]) => [name, await asFile(name, file)] as const)),
  );
  const identity = (file: string | Blob) => {
    if (typeof file === "string") return file.replace(/[?#].*/, "");
    return `${file.size} bytes, ${file instanceof File ? file.lastModified : "in memory"}`;
  };
  const names = Object.keys(files);
  const key = names.map((name) => `${name}: ${identity(files[name]!)}`).join("\n");
  const gguf = names.find((name) => GGUF.test(name)) ?? (await unnamedGguf(files));
  const name = source.name ?? gguf?.replace(GGUF, "") ?? "model";
  const address = Object.values(files).find((file) => typeof file === "string") ?? "";
  return { name, key, address, base: "", files, gguf: names.some((each) => GGUF.test(each)) ? null : gguf };
}

/** A GGUF file whose name does not end like one: a single file can be nothing else; of several, the contents tell. */
async function unnamedGguf(files: Record<string, string | Blob>): Promise<string | null> {
  const names = Object.keys(files);
  if (names.length === 1) return names[0]!;
  for (const name of names) {
    const file = files[name]!;
    if (file instanceof Blob && (await file.slice(0, 4).text().catch(() => "")) === "GGUF") return name;
  }
  return null;
}

/** A file of its own, or several, as files by name. */
function asSource(model: Exclude<LoadOptions["model"], string | URL>): ModelSource {
  if (isContents(model)) return { files: { [nameOf(model)]: model } };
  if ("length" in model) {
    const list = Array.from(model);
    if (list.every(isContents)) return { files: Object.fromEntries(list.map((file) => [nameOf(file), file])) };
  } else if (typeof model.files === "object" && model.files !== null) return model;
  throw new FolioError(`model: must be ${MODEL}`);
}

function nameOf(file: Contents): string {
  return (file instanceof File && file.name) || "model.gguf";
}

function isContents(value: unknown): value is Contents {
  return value instanceof Blob || value instanceof ArrayBuffer || ArrayBuffer.isView(value);
}

/** A file's contents, or its address. */
async function asFile(name: string, file: unknown): Promise<string | Blob> {
  if (file instanceof Blob) return file;
  if (isContents(file)) return new Blob([file as BlobPart]);
  if (typeof file === "string" || file instanceof URL) {
    const { href } = parsed(String(file));
    return OWN.test(href) ? await ownContents(href) : href;
  }
  throw new FolioError(`model: ${name} must be a URL, a File, a Blob or an ArrayBuffer`);
}

/** What is behind an address of the page's own. A blob's bytes are not copied. */
async function ownContents(address: string): Promise<Blob> {
  try {
    return await (await fetch(address)).blob();
  } catch {
    throw new FolioError(`model: ${address.slice(0, 60)} cannot be read; a blob's URL may have been revoked`);
  }
}
