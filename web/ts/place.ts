// Where a model's files are: what `load()` was given, as the worker needs it.

import { FolioError } from "./errors.js";
import type { ModelPlace } from "./protocol.js";
import type { LoadOptions, ModelSource } from "./types.js";

const HUB = "https://huggingface.co";
const RANGE_BYTES = 32 << 20;
/** `org/name`, with a revision after `@` and a quantization or GGUF file after `:`. */
const REPOSITORY = /^(\w[\w.-]*\/[\w.-]+)(?:@([\w./+=-]+))?(?::([^:]+))?$/;
/** The end of a GGUF file's name, with its number if it is a part of a model. */
const GGUF = /(-\d{5}-of-\d{5})?\.gguf$/i;

/** What the location of a model decides. */
type Found = Pick<ModelPlace, "name" | "key" | "base"> & Partial<ModelPlace>;

/** The location and name of the model that `options` ask for. */
export function findModel(options: LoadOptions): ModelPlace {
  const { model, name, cache, limits, speculation, device, hub, rangeBytes } = options;
  const found = typeof model === "string" ? findByName(model, hub ?? HUB) : findBySource(model);
  return {
    files: null,
    query: "",
    listing: null,
    gguf: null,
    requested: null,
    ...found,
    name: name ?? found.name,
    cache: cache ?? "opfs",
    limits: limits ?? {},
    speculation: speculation ?? true,
    device: device ?? "auto",
    rangeBytes: rangeBytes ?? RANGE_BYTES,
  };
}

function findByName(model: string, hub: string): Found {
  const repository = REPOSITORY.exec(model);
  if (repository && !(GGUF.test(model) && repository[3] === undefined)) {
    const [, repo, revision = "main", requested = null] = repository;
    const at = encodeURIComponent(revision);
    const listing = `${hub}/api/models/${repo}/tree/${at}?recursive=true`;
    const base = `${hub}/${repo}/resolve/${at}/`;
    return { name: model.replace(/@[^:]*/, ""), key: base, base, listing, requested };
  }
  let url: URL;
  try {
    url = new URL(model, globalThis.location?.href);
  } catch {
    throw new FolioError(`${JSON.stringify(model)} is neither a repository (org/name) nor a URL`);
  }
  if (GGUF.test(url.pathname)) {
    const gguf = decodeURIComponent(url.pathname.split("/").at(-1)!);
    const base = new URL(".", url).href;
    return { name: gguf.replace(GGUF, ""), key: base + gguf, base, gguf, query: url.search };
  }
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  return { name: url.pathname.split("/").at(-2) || "model", key: url.href, base: url.href };
}

function findBySource(model: File | ArrayLike<File> | ModelSource): Found {
  const source = asSource(model);
  const files: Record<string, string | Blob> = {};
  for (const [name, file] of Object.entries(source.files)) {
    files[name] = file instanceof Blob ? file : new URL(file, globalThis.location?.href).href;
  }
  const names = Object.keys(files);
  if (names.length === 0) throw new FolioError("the model has no files");
  const identity = (file: string | Blob) => {
    if (typeof file === "string") return file;
    return `${file.size} bytes, ${file instanceof File ? file.lastModified : "in memory"}`;
  };
  const key = names.map((name) => `${name}: ${identity(files[name]!)}`).join("\n");
  const gguf = names.find((name) => GGUF.test(name));
  return { name: source.name ?? gguf?.replace(GGUF, "") ?? "model", key, base: "", files };
}

/** A file of its own, or several, as files by name. */
function asSource(model: File | ArrayLike<File> | ModelSource): ModelSource {
  const files = model instanceof Blob ? [model as File] : model;
  if (!isList(files)) return files;
  return { files: Object.fromEntries(Array.from(files, (file) => [file.name || "model.gguf", file])) };
}

function isList(files: ArrayLike<File> | ModelSource): files is ArrayLike<File> {
  return "length" in files;
}
