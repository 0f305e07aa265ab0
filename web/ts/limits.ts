// The engine's numbers, made from its table. Do not edit; to write it anew:
// FOLIO_REFRESH=1 cargo test --test http document

/** Limits of an engine that are the same on every device. */
export interface EngineLimits {
  /** Maximum tokens of a prompt and its answer together. */
  maxModelLen?: number;
  /** Size of the KV pool, in place of a share of the memory. In bytes. */
  kvCacheBytes?: number;
  /** Number of states kept for requests with a common prefix, for models with a recurrent state. */
  stateSnapshots?: number;
  /** Seed for requests that have none. */
  seed?: number;
  /** Maximum number of sequences computed at once. */
  maxNumSeqs?: number;
  /** Maximum tokens computed per step (prefill and decode together). */
  maxNumBatchedTokens?: number;
  /** Tokens per KV block: 16, 32 or 64. */
  blockSize?: number;
  /** Host memory for KV blocks that leave the pool; they return when a prompt needs them. In bytes. */
  kvHostBytes?: number;
  /** Number of LoRA adapters that may be used in one step; their matrices have room on the device. */
  maxLoras?: number;
  /** Maximum rank of a LoRA adapter, rounded up to a multiple of 8. */
  maxLoraRank?: number;
  /** Rows of images that are held at once, of models that read images; 0: they read text only. */
  maxImageRows?: number;
  /** Maximum number of waiting requests; more are refused with status 429. */
  queueRequestsMax?: number;
}

/** The values of a limit, and whether it counts bytes, which are often computed as a share. */
export interface Range {
  least: number;
  most: number;
  bytes?: true;
}

export const ENGINE_LIMITS: Record<keyof EngineLimits, Range> = {
  maxModelLen: { least: 2, most: 4294967295 },
  kvCacheBytes: { least: 0, most: Number.MAX_SAFE_INTEGER, bytes: true },
  stateSnapshots: { least: 0, most: 65536 },
  seed: { least: 0, most: Number.MAX_SAFE_INTEGER },
  maxNumSeqs: { least: 1, most: 1024 },
  maxNumBatchedTokens: { least: 1, most: 65536 },
  blockSize: { least: 16, most: 64 },
  kvHostBytes: { least: 0, most: Number.MAX_SAFE_INTEGER, bytes: true },
  maxLoras: { least: 0, most: 1024 },
  maxLoraRank: { least: 1, most: 512 },
  maxImageRows: { least: 0, most: 1048576 },
  queueRequestsMax: { least: 1, most: 65536 },
};
