// Types of the package. Requests are in requests.ts, which is made from the engine's table of request fields. Answers
// are those of OpenAI's API as far as the engine has them; a field that is not OpenAI's says so.

import type { ChatRequest, CompletionRequest } from "./requests.js";

export type * from "./requests.js";

/** Progress of a load. */
export interface Progress {
  /** `download` and `cache` count a file's bytes, `device` those on the GPU; `ready` is the last. */
  phase: "download" | "cache" | "device" | "ready";
  /** Name of the file; empty if the progress is about all of them. */
  file: string;
  loaded: number;
  total: number;
}

/** Limits of an engine. An absent one is chosen to fit the device. */
export interface Limits {
  /** Prompt and answer together, in tokens. */
  maxModelLen?: number;
  /** Sequences computed at once (8). */
  maxNumSeqs?: number;
  /** Tokens computed per step (256). */
  maxNumBatchedTokens?: number;
  /** Tokens of a KV block: 16, 32 or 64 (32). */
  blockSize?: number;
  /** Bytes of the KV pool. */
  kvCacheBytes?: number;
  /** Bytes that a kernel may bind, if less than the device's own limit. */
  bindingBytes?: number;
  /** Seed of requests that set none. */
  seed?: number;
}

export interface LoadOptions {
  /** `demo`, a repository (`org/name`, `org/name@revision`), or the address of a folder in its layout. */
  model: string;
  onProgress?: (progress: Progress) => void;
  /** Where downloaded files are kept: in the browser's storage (`opfs`), or nowhere. */
  cache?: "opfs" | "none";
  /** Aborts the load. */
  signal?: AbortSignal;
  limits?: Limits;
  /** Share one engine among all pages of this site that load the same model with this option. */
  shared?: boolean;
  /** The model's name in answers; by default `model`. */
  name?: string;
  /** The hub of repositories. */
  hub?: string;
  /** Bytes of one range request (32 MiB); an interrupted download continues at the last one. */
  rangeBytes?: number;
  /** Address of `worker.js`, if it is not beside this module. */
  worker?: string | URL;
}

/** The loaded model. */
export interface ModelInfo {
  /** Name of the adapter, as far as the browser tells it. */
  adapter: string;
  tier: string;
  vocab: number;
  maxModelLen: number;
  maxNumSeqs: number;
  blockSize: number;
  blocks: number;
  kvBytes: number;
  weightBytes: number;
  /** Notices of the engine, such as a context that had to be shortened. */
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

/** A chat request that is answered in pieces. */
export interface ChatParamsStreaming extends ChatRequest {
  stream: true;
}

/** A chat request that is answered at once. */
export interface ChatParamsWhole extends ChatRequest {
  stream?: false | null;
}

/** A completions request that is answered in pieces. */
export interface TextParamsStreaming extends CompletionRequest {
  stream: true;
}

/** A completions request that is answered at once. */
export interface TextParamsWhole extends CompletionRequest {
  stream?: false | null;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Prompt tokens that the prefix cache held. */
  prompt_tokens_details?: { cached_tokens?: number };
  /** Tokens of the reasoning before the answer. */
  completion_tokens_details?: { reasoning_tokens?: number };
}

export type FinishReason = "stop" | "length" | "tool_calls";

/** A function that the model calls. */
export interface ToolCall {
  id: string;
  type: "function";
  /** `arguments` is a JSON object as text. */
  function: { name: string; arguments: string };
}

/** A piece of a {@link ToolCall}: the first of a call has its id and name, the others more of its arguments. */
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

/** One object whether streamed or not, as in OpenAI's API. */
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
