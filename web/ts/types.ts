// Types of the package. Requests are in requests.ts, which is generated from the engine's table of request fields.
// Responses have the fields of OpenAI's API that the engine supports; additional fields are marked.

import type { ChatRequest, CompletionRequest } from "./requests.js";

export type * from "./requests.js";

/** Progress of a load. */
export interface Progress {
  /** `download` and `cache` count the bytes of a file, `device` the bytes on the GPU; `ready` comes last. */
  phase: "download" | "cache" | "device" | "ready";
  /** Name of the file; empty if the progress concerns all files. */
  file: string;
  loaded: number;
  total: number;
}

/** Limits of an engine. An absent limit has the default in parentheses, or is chosen to fit the device. */
export interface Limits {
  /** Maximum tokens of a prompt and its answer together. */
  maxModelLen?: number;
  /** Maximum sequences computed at once (8). */
  maxNumSeqs?: number;
  /** Maximum tokens computed per step (256; 64 on the CPU). */
  maxNumBatchedTokens?: number;
  /** Tokens per KV block: 16, 32 or 64 (32). */
  blockSize?: number;
  /** Size of the KV pool in bytes. */
  kvCacheBytes?: number;
  /** Host memory in bytes for KV blocks that leave the pool and may return (0). */
  kvHostBytes?: number;
  /** Maximum bytes that a kernel may bind, if less than the device's limit. */
  bindingBytes?: number;
  /** Seed of requests without one. */
  seed?: number;
}

export interface LoadOptions {
  /** `demo`, a Hugging Face repository (`org/name`, `org/name@revision`), or the URL of a folder with its files. */
  model: string;
  onProgress?: (progress: Progress) => void;
  /** Where downloaded files are cached: in the browser's storage (`opfs`), or nowhere (`none`). */
  cache?: "opfs" | "none";
  /** Aborts the load. */
  signal?: AbortSignal;
  limits?: Limits;
  /**
   * Where the model is computed: on the GPU by WebGPU (`webgpu`), on one thread of the processor (`cpu`), or on the
   * processor only if the browser offers no GPU (`auto`, the default).
   */
  device?: "auto" | "webgpu" | "cpu";
  /** Share one engine between all pages of this site that load this model with this option. */
  shared?: boolean;
  /** The model's name in responses; by default `model`. */
  name?: string;
  /** URL of the hub, by default https://huggingface.co. */
  hub?: string;
  /** Bytes per range request (32 MiB). An interrupted download resumes at the last one. */
  rangeBytes?: number;
  /** URL of `worker.js`, if it is not beside this module. */
  worker?: string | URL;
}

/** The loaded model. */
export interface ModelInfo {
  /** Name of the GPU, as far as the browser reveals it, or `CPU`. */
  adapter: string;
  tier: string;
  vocab: number;
  maxModelLen: number;
  maxNumSeqs: number;
  blockSize: number;
  blocks: number;
  kvBytes: number;
  weightBytes: number;
  /** Notices of the engine, for example that the context was shortened. */
  notices: string[];
}

/** Counters and gauges after the last step. */
export interface Stats {
  ready: boolean;
  requestsRunning: number;
  requestsWaiting: number;
  blocksUsed: number;
  blocksTotal: number;
  tokensStored: number;
  prefixQueries: number;
  prefixHits: number;
  /** Those of them that came from host memory. */
  prefixHitsHost: number;
  promptTokens: number;
  generationTokens: number;
  finishedStop: number;
  finishedLength: number;
  finishedAbort: number;
  finishedError: number;
  preemptions: number;
  steps: number;
  recoveries: number;
}

/** A chat request with a streamed response. */
export interface ChatParamsStreaming extends ChatRequest {
  stream: true;
}

/** A chat request with a whole response. */
export interface ChatParamsWhole extends ChatRequest {
  stream?: false | null;
}

/** A completions request with a streamed response. */
export interface TextParamsStreaming extends CompletionRequest {
  stream: true;
}

/** A completions request with a whole response. */
export interface TextParamsWhole extends CompletionRequest {
  stream?: false | null;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Prompt tokens found in the prefix cache. */
  prompt_tokens_details?: { cached_tokens?: number; host_cached_tokens?: number };
  /** Tokens of the reasoning before the answer. */
  completion_tokens_details?: { reasoning_tokens?: number };
}

export type FinishReason = "stop" | "length" | "tool_calls";

/** A function that the model calls. */
export interface ToolCall {
  id: string;
  type: "function";
  /** `arguments` is a JSON object as a string. */
  function: { name: string; arguments: string };
}

/** A part of a {@link ToolCall}: the first part has the call's id and name, later parts add to its arguments. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  type?: "function";
  function?: { name?: string; arguments?: string };
}

export interface TokenLogprob {
  token: string;
  bytes: number[] | null;
  logprob: number;
}

export interface ChatLogprobs {
  content: (TokenLogprob & { top_logprobs: TokenLogprob[] })[] | null;
  refusal: null;
}

export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: {
    index: number;
    message: {
      role: "assistant";
      content: string | null;
      refusal: string | null;
      /** Not OpenAI's: the reasoning before the answer. */
      reasoning_content?: string;
      tool_calls?: ToolCall[];
    };
    logprobs: ChatLogprobs | null;
    finish_reason: FinishReason;
  }[];
  usage?: Usage;
}

export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: {
    index: number;
    delta: {
      role?: "assistant";
      content?: string | null;
      /** Not OpenAI's: the reasoning before the answer. */
      reasoning_content?: string;
      tool_calls?: ToolCallDelta[];
    };
    logprobs?: ChatLogprobs | null;
    finish_reason: FinishReason | null;
  }[];
  usage?: Usage | null;
}

/** A completion or a chunk of one; as in OpenAI's API, both have the same form. */
export interface Completion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: {
    index: number;
    text: string;
    logprobs: {
      tokens?: string[];
      token_logprobs?: number[];
      top_logprobs?: Record<string, number>[];
      text_offset?: number[];
    } | null;
    finish_reason: "stop" | "length";
  }[];
  usage?: Usage;
}

export interface Model {
  id: string;
  object: "model";
  created: number;
  owned_by: string;
}

export interface ModelList {
  object: "list";
  data: Model[];
}

/** The second argument of every call. */
export interface RequestOptions {
  signal?: AbortSignal | null;
}
