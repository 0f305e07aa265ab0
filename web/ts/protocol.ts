// Messages between a page and the worker that owns the engine. `id` identifies a call of the page.

import type { WireError } from "./errors.js";
import type { Limits, ModelInfo, Progress } from "./types.js";

/** The location of a model's files, and how to load and cache them. */
export interface ModelPlace {
  /** The model's name in responses. */
  name: string;
  /** Identifies the files: in the cache, and for pages that share an engine. */
  key: string;
  /** Where the files are, for people. */
  address: string;
  /** URL of the folder, with a trailing slash; not used if there are `files`. */
  base: string;
  /** What follows every URL of the folder, such as a signature. */
  query: string;
  /** All files, by name: URLs, or contents. */
  files: Record<string, string | Blob> | null;
  /** URL of the list of the files with sizes and digests, in the form of the hub's API. */
  listing: string | null;
  /** The GGUF file to open, if it was named. */
  gguf: string | null;
  /** URL of the folder of the same address, if only the contents tell whether it is a GGUF file. */
  folder: string | null;
  /** What selects one of several GGUF files: a quantization or a file name. */
  requested: string | null;
  cache: "opfs" | "revalidate" | "none";
  /** Bytes per range request. */
  rangeBytes: number;
  /** Milliseconds without a byte after which a request counts as interrupted. */
  silenceMs: number;
  limits: Limits;
  speculation: boolean;
  device: "auto" | "webgpu" | "cpu";
}

export type ToWorker =
  /** `lock`: name of a lock that the page holds until it closes. */
  | { id: number; op: "hello"; lock: string }
  /** The page closes; said where there are no locks, and before a page drops its port. */
  | { id: number; op: "bye" }
  | { id: number; op: "load"; place: ModelPlace }
  | { id: number; op: "fetch"; method: string; url: string; headers: string[]; body: Uint8Array }
  /** The page is ready for one more chunk of the response. */
  | { id: number; op: "pull" }
  | { id: number; op: "cancel" }
  | { id: number; op: "stats" }
  /** A file of KV blocks, at an absolute URL. */
  | { id: number; op: "import"; url: string }
  | { id: number; op: "unload" };

export type ToPage =
  | { id: number; op: "progress"; progress: Progress }
  | { id: number; op: "done"; value: unknown }
  | { id: number; op: "error"; error: WireError }
  | { id: number; op: "head"; status: number; headers: string[] }
  | { id: number; op: "chunk"; bytes: Uint8Array }
  | { id: number; op: "end" }
  /** The engine has ended by itself. */
  | { op: "gone"; error: WireError };

/** The result of a load. */
export interface LoadResult {
  info: ModelInfo;
}

/** Chunks of a response that the worker may send before the page asks for more. */
export const PIECES_AHEAD = 8;
