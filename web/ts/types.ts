// Types of the API. Requests and answers are those of OpenAI's API as far as the engine has them; where a field is not
// OpenAI's, it says so.

/** How far a load has come. */
export interface Progress {
  /** `download` and `cache` count a file's bytes, `device` those on the GPU; `ready` is the last. */
  phase: "download" | "cache" | "device" | "ready";
  /** Name of the file; empty where it is about all of them. */
  file: string;
  loaded: number;
  total: number;
}

/** Ceilings of an engine. What is absent is chosen to fit. */
export interface Limits {
  /** Prompt and answer together, in tokens. */
  maxModelLen?: number;
  /** Answers that are computed at once (8). */
  maxNumSeqs?: number;
  /** Tokens of one step (256). */
  maxNumBatchedTokens?: number;
  /** Tokens of a KV block: 16, 32 or 64 (32). */
  blockSize?: number;
  /** Bytes of the KV pool. */
  kvCacheBytes?: number;
  /** Bytes that a kernel may bind at once, if less than the device's own limit. */
  bindingBytes?: number;
  /** Where the seeds of requests without one come from. */
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
  /** One engine for all pages of this site that load the same model so. */
  shared?: boolean;
  /** What answers call the model; by default what `model` says. */
  name?: string;
  /** The hub of repositories. */
  hub?: string;
  /** Bytes of one range request (32 MiB): what an interrupted download goes on from. */
  rangeBytes?: number;
  /** Address of `worker.js`, where it does not lie beside this module. */
  worker?: string | URL;
}

/** What is loaded. */
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
  /** What the engine wants known, such as a context that had to be shortened. */
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

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

/** Sampling, for chat and completions alike. */
export interface SamplingParams {
  model?: string;
  temperature?: number | null;
  top_p?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  logit_bias?: Record<string, number> | null;
  seed?: number | null;
  n?: number | null;
  stop?: string | string[] | null;
  max_tokens?: number | null;
  /** `continuous_usage_stats` is not OpenAI's: usage so far with every chunk. */
  stream_options?: { include_usage?: boolean; continuous_usage_stats?: boolean } | null;
  /** Not OpenAI's. */
  top_k?: number;
  /** Not OpenAI's. */
  min_p?: number;
  /** Not OpenAI's. */
  repetition_penalty?: number;
  /** Not OpenAI's. */
  ignore_eos?: boolean;
  /** Not OpenAI's: only requests with the same salt share cached prefixes. */
  cache_salt?: string;
}

interface ChatParams extends SamplingParams {
  messages: ChatMessage[];
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  top_logprobs?: number | null;
}

export interface ChatParamsStreaming extends ChatParams {
  stream: true;
}

export interface ChatParamsWhole extends ChatParams {
  stream?: false | null;
}

interface TextParams extends SamplingParams {
  prompt: string | string[] | number[] | number[][];
  logprobs?: number | null;
}

export interface TextParamsStreaming extends TextParams {
  stream: true;
}

export interface TextParamsWhole extends TextParams {
  stream?: false | null;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Prompt tokens that the prefix cache held. */
  prompt_tokens_details?: { cached_tokens?: number };
}

export type FinishReason = "stop" | "length";

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
    message: { role: "assistant"; content: string | null; refusal: string | null };
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
    delta: { role?: "assistant"; content?: string | null };
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
    finish_reason: FinishReason;
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
