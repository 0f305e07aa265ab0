// Checks what a page has passed to `load()`, for pages without TypeScript.

import { FolioError, LimitError } from "./errors.js";
import { ENGINE_LIMITS, type Range } from "./limits.js";
import type { Limits, LoadOptions } from "./types.js";

const RANGE_BYTES_MIN = 64 << 10;
const RANGE_BYTES_MAX = 1 << 30;

/** Checks a value; returns what is wrong with it. */
type Check = (value: unknown) => string | null;

/** What a model may be. */
export const MODEL = "a repository (org/name), a URL, a File, a list of files, or an object with `files`";

const isText: Check = (value) => (typeof value === "string" ? null : "must be a string");
const isFlag: Check = (value) => (typeof value === "boolean" ? null : "must be true or false");
const isFunction: Check = (value) => (typeof value === "function" ? null : "must be a function");
const isObject: Check = (value) => (typeof value === "object" ? null : "must be an object");
const isAddress: Check = (value) =>
  typeof value === "string" || value instanceof URL ? null : "must be a string or a URL";
const isSignal: Check = (value) => (value instanceof AbortSignal ? null : "must be an AbortSignal");
const isScript: Check = (value) =>
  ["string", "function"].includes(typeof value) || isObject(value) === null ? null : "must be a URL or a function";
const oneOf =
  (...values: unknown[]): Check =>
  (value) =>
    values.includes(value) ? null : `${say(value)} is not ${values.slice(0, -1).join(", ")} or ${values.at(-1)}`;
const between =
  (least: number, most: number): Check =>
  (value) =>
    typeof value === "number" && value >= least && value <= most ? null : `must be from ${least} to ${most}`;

const OPTIONS: Record<keyof LoadOptions, Check> = {
  model: (value) => (typeof value === "string" || typeof value === "object" ? null : `must be ${MODEL}`),
  onProgress: isFunction,
  cache: oneOf("opfs", "revalidate", "none"),
  signal: isSignal,
  limits: isObject,
  speculation: isFlag,
  device: oneOf("auto", "webgpu", "cpu"),
  shared: isFlag,
  name: isText,
  hub: isAddress,
  rangeBytes: between(RANGE_BYTES_MIN, RANGE_BYTES_MAX),
  silenceMs: between(1, 2 ** 31 - 1),
  persist: isFlag,
  worker: isScript,
};

/** Browsers end themselves when a page wants far more memory than there is. */
const POOL_BYTES_MAX = 16 * 2 ** 30;
/** The limits' ranges. */
const LIMITS: Record<keyof Limits, Range> = {
  ...ENGINE_LIMITS,
  kvCacheBytes: { ...ENGINE_LIMITS.kvCacheBytes, most: POOL_BYTES_MAX },
  bindingBytes: { least: 0, most: Number.MAX_SAFE_INTEGER, bytes: true },
};

/** Checks the names, types and ranges of options. Fails with the option's name and what it may be. */
export function checkOptions(options: LoadOptions): void {
  if (typeof options !== "object" || options === null) throw new FolioError("load() needs an object with `model`");
  if (options.model === undefined || options.model === null) throw new FolioError(`model: must be ${MODEL}`);
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(OPTIONS, name)) {
      throw new FolioError(`${name}: there is no such option; there are ${Object.keys(OPTIONS).join(", ")}`);
    }
    if (value === undefined || value === null) continue;
    const wrong = OPTIONS[name as keyof LoadOptions](value);
    if (wrong) throw new (["rangeBytes", "limits"].includes(name) ? LimitError : FolioError)(`${name}: ${wrong}`);
  }
}

/** The given limits, checked. Fractions of bytes are cut off. */
export function checkedLimits(limits: Limits | null | undefined): Limits {
  const checked: Limits = {};
  for (const [name, value] of Object.entries(limits ?? {}) as [keyof Limits, unknown][]) {
    if (!Object.hasOwn(LIMITS, name)) {
      throw new LimitError(`limits.${name}: there is no such limit; there are ${Object.keys(LIMITS).join(", ")}`);
    }
    if (value === undefined || value === null) continue;
    checked[name] = checkedLimit(name, value);
  }
  return checked;
}

function checkedLimit(name: keyof Limits, value: unknown): number {
  const { least, most, bytes } = LIMITS[name];
  const number = typeof value === "number" ? value : NaN;
  const whole = bytes ? Math.floor(number) : number;
  if (Number.isSafeInteger(whole) && whole >= least && whole <= most) return whole;
  throw new LimitError(`limits.${name}: must be a whole number from ${least} to ${most}, not ${say(value)}`);
}

function say(value: unknown): string {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
