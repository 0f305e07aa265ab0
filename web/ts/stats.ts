// Counters and gauges of the engine, made from its table. Do not edit; to write it anew:
// FOLIO_REFRESH=1 cargo test --test http document

/** Counters and gauges after the last step. */
export interface Stats {
  /** Whether requests are taken. */
  ready: boolean;
  /** Requests that run. */
  requestsRunning: number;
  /** Requests that wait. */
  requestsWaiting: number;
  /** KV blocks in use. Cached blocks without holders do not count. */
  blocksUsed: number;
  /** Entries of all block tables: KV blocks in use, where a shared block counts once for each of its holders. */
  blocksHeld: number;
  /** KV blocks of all groups. */
  blocksTotal: number;
  /** Tokens stored in the KV blocks in use; divided by their slots, it shows how well the pool is filled. */
  tokensStored: number;
  /** Bytes of KV blocks in host memory. */
  hostBytesUsed: number;
  /** Most bytes of KV blocks that host memory may hold. */
  hostBytesTotal: number;
  /** Whether the folder of KV blocks cannot be used. */
  diskFailing: number;
  /** KV blocks that can be read from disk. */
  blocksOnDisk: number;
  /** Kernels that the last step was dispatched as; 0 if the device does not count them. */
  stepDispatches: number;
  /** Recoveries from a lost device. */
  recoveries: number;
  /** Requests that left the queue for the first time, by admission or by abort. */
  requestsDequeued: number;
  /** Prompt tokens looked up in the cache. */
  prefixQueries: number;
  /** Prompt tokens found in the cache. */
  prefixHits: number;
  /** Those of them that came from host memory. */
  prefixHitsHost: number;
  /** Those of `prefix_hits` that were read from disk. */
  prefixHitsDisk: number;
  /** Lookups in the cache, by why they ended. */
  prefixEnds: Record<"end_of_prompt" | "difference" | "salt" | "eviction" | "no_snapshot" | "disabled", number>;
  /** KV blocks moved to host memory. */
  blocksSaved: number;
  /** KV blocks moved back. */
  blocksRestored: number;
  /** Files of KV blocks written. */
  filesWritten: number;
  /** Files of KV blocks read. */
  filesRead: number;
  /** Files that were damaged or of somebody else. */
  filesRefused: number;
  /** Tokens of prompts. */
  promptTokens: number;
  /** Generated tokens. */
  generationTokens: number;
  /** Choices that ended at an end token or stop token, or that were complete for another reason. */
  finishedStop: number;
  /** Choices that reached their length limit. */
  finishedLength: number;
  /** Choices whose receiver was dropped before they were complete. */
  finishedAbort: number;
  /** Choices that ended with an error. */
  finishedError: number;
  /** Preemptions. */
  preemptions: number;
  /** Requests that ended because of invalid numbers. */
  corruptedRequests: number;
  /** Steps of the engine. */
  steps: number;
  /** Tokens of a step of the engine. */
  stepTokens: Record<string, number>;
  /** Steps of a sequence that verified drafts. */
  drafts: number;
  /** Drafts. */
  draftTokens: number;
  /** Draws of a sequence without drafts, by why there were none. */
  draftSkips: Record<"nothing_found" | "not_worthwhile" | "many_sequences" | "no_room", number>;
  /** Drafts that were right, by their place in a step. */
  acceptedAt: Record<number, number>;
  /** Prompt tokens found in the cache. */
  promptTokensCached: number;
  /** Tokens of prompts, by where they came from. */
  promptTokensBySource: Record<"local_compute" | "local_cache_hit", number>;
  /** Drafts that were right. */
  acceptedTokens: number;
  /** Prompt tokens found in the cache, by where. */
  prefixHitsByTier: Record<"device" | "host" | "disk", number>;
}
