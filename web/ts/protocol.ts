// What goes through the port between a page and the worker that owns the engine. `id` names a call of the page.

import type { WireError } from "./errors.js";
import type { Limits, ModelInfo, Progress } from "./types.js";

/** Where a model's files are and what to do with them. */
export interface ModelPlace {
  /** The model's name in answers. */
  name: string;
  /** The folder's address, with a slash at its end. */
  base: string;
  /** Where sizes and digests of the folder's files are listed, in the form of the hub's API. */
  listing: string | null;
  cache: "opfs" | "none";
  /** Bytes of one range request. */
  rangeBytes: number;
  limits: Limits;
}

export type ToWorker =
  /** `lock`: a lock that the page holds as long as it is there. */
  | { id: number; op: "hello"; lock: string }
  | { id: number; op: "load"; place: ModelPlace }
  | { id: number; op: "fetch"; method: string; url: string; headers: string[]; body: Uint8Array }
  /** The page has room for one more piece of that answer. */
  | { id: number; op: "pull" }
  | { id: number; op: "cancel" }
  | { id: number; op: "stats" }
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

/** The answer to a load. */
export interface LoadResult {
  info: ModelInfo;
}

/** Pieces of an answer that the worker may send before the page asks for more. */
export const PIECES_AHEAD = 8;
