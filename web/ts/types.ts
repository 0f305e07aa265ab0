// Types of the package. Requests, limits and counters are in files of their own, made from the engine's tables.
// Responses have the fields of OpenAI's API that the engine supports; additional fields are marked.

import type { EngineLimits } from "./limits.js";
import type { ChatRequest, CompletionRequest, EmbeddingRequest, ResponsesRequest } from "./requests.js";

export type { EngineLimits } from "./limits.js";
export type * from "./requests.js";
export type * from "./stats.js";

/** Progress of a load. */
export interface Progress {
  /**
   * `download` and `cache` count the bytes of a file, `retry` tells that a request was interrupted and is sent again,
   * `device` counts the bytes on the device, `kernels` compiled kernels; `ready` comes last.
   */
  phase: "download" | "cache" | "retry" | "device" | "kernels" | "ready";
  /** Name of the file; empty if the progress concerns all files. */
  file: string;
  loaded: number;
  total: number;
}

/**
 * Limits of an engine. Where one is absent, at most 8 sequences and 256 tokens (64 on the CPU) are computed per step,
 * and others have the engine's default or are chosen to fit the device.
 */
export interface Limits extends EngineLimits {
  /** Maximum bytes that a kernel may bind, if less than the device's limit. */
  bindingBytes?: number;
}

/** The contents of a file. A `File` that the user has chosen is read where it is. */
export type Contents = Blob | ArrayBuffer | ArrayBufferView;

/** The files of a model by name: URLs, or contents. */
export interface ModelSource {
  /** The model's name in responses. */
  name?: string;
  files: Record<string, string | URL | Contents>;
}

export interface LoadOptions {
  /**
   * The model, in GGUF or as a folder in the Hugging Face layout:
   * - a repository of the hub: `org/name`, `org/name@revision`, `org/name-GGUF:Q4_K_M`, `org/name:file.gguf`;
   * - the URL of a GGUF file (of a split one, its first part) or of a folder; `blob:` URLs too;
   * - a `File` or other contents, or all files of a split model or a folder, for example `input.files`;
   * - files by name, such as the default export of the package `folio-web-demo`.
   */
  model: string | URL | Contents | ArrayLike<File> | ModelSource;
  onProgress?: (progress: Progress) => void;
  /**
   * Where downloaded files are cached: in the browser's storage (`opfs`), or nowhere (`none`). `revalidate` is `opfs`,
   * and asks the server once for each file whether it has changed; without a network the cached files are used.
   */
  cache?: "opfs" | "revalidate" | "none";
  /** Ask the browser to keep the model even when the disk is full (false). Firefox asks the user. */
  persist?: boolean;
  /** Aborts the load. */
  signal?: AbortSignal;
  limits?: Limits;
  /**
   * Speculative decoding of a request that runs alone (true): one step verifies several tokens that are guessed from
   * its text and from earlier answers. Answers are the same without.
   */
  speculation?: boolean;
  /**
   * Where the model is computed: on the GPU by WebGPU (`webgpu`), on one thread of the processor (`cpu`), or on the
   * processor only if the browser offers no GPU, or software in place of one (`auto`, the default).
   */
  device?: "auto" | "webgpu" | "cpu";
  /** Share one engine between all pages of this site that load this model with this option. */
  shared?: boolean;
  /** The model's name in responses; by default the repository's, the folder's or the file's. */
  name?: string;
  /** URL of the hub, by default https://huggingface.co. */
  hub?: string | URL;
  /** Bytes per range request, at least 64 KiB (32 MiB). An interrupted download resumes where it stopped. */
  rangeBytes?: number;
  /** Milliseconds without a byte after which a request counts as interrupted (30,000). */
  silenceMs?: number;
  /**
   * The package's worker, if neither a bundler nor the browser finds it by itself: its URL, which may be a
   * `TrustedScriptURL`, or a function that makes it (with `shared`, a `SharedWorker`).
   */
  worker?: string | URL | { toString(): string } | (() => Worker | SharedWorker);
}

/** A model in the browser's storage, whole or in part. */
export interface CachedModel {
  /** Identifies it, for {@link clearCache}. */
  id: string;
  name: string;
  /** Where it comes from. */
  address: string;
  /** Bytes that it takes. */
  bytes: number;
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

/** A Responses request with a streamed response. */
export interface ResponseParamsStreaming extends ResponsesRequest {
  stream: true;
}

/** A Responses request with a whole response. */
export interface ResponseParamsWhole extends ResponsesRequest {
  stream?: false | null;
}

/** A request for vectors as numbers. */
export interface EmbeddingParams extends EmbeddingRequest {
  encoding_format?: "float" | null;
}

/** A request for vectors as base64 of little-endian 32-bit floats. */
export interface EmbeddingParamsBase64 extends EmbeddingRequest {
  encoding_format: "base64";
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Prompt tokens found in the prefix cache. */
  prompt_tokens_details?: { cached_tokens?: number; host_cached_tokens?: number; disk_cached_tokens?: number };
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
      /** The same, under the name that vLLM gives it. */
      reasoning?: string;
      tool_calls?: ToolCall[];
    };
    logprobs: ChatLogprobs | null;
    finish_reason: FinishReason;
    /** Not OpenAI's: the stop string, or the id of the stop token, that ended the choice. */
    stop_reason: string | number | null;
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
      /** The same, under the name that vLLM gives it. */
      reasoning?: string;
      tool_calls?: ToolCallDelta[];
    };
    logprobs?: ChatLogprobs | null;
    finish_reason: FinishReason | null;
    /** Not OpenAI's: with the finish reason, the stop string or the id of the stop token that ended the choice. */
    stop_reason?: string | number | null;
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
    /** Not OpenAI's: with the finish reason, the stop string or the id of the stop token that ended the choice. */
    stop_reason?: string | number | null;
  }[];
  usage?: Usage;
}

/** Vectors in the order of the inputs. */
export interface EmbeddingList<Vector extends number[] | string = number[]> {
  object: "list";
  data: { object: "embedding"; index: number; embedding: Vector }[];
  model: string;
  usage: { prompt_tokens: number; total_tokens: number };
}

export type ItemStatus = "in_progress" | "completed" | "incomplete";

/** The text of an answer. */
export interface ResponseText {
  type: "output_text";
  text: string;
  annotations: never[];
  logprobs: (TokenLogprob & { top_logprobs: TokenLogprob[] })[];
}

/** A part of the reasoning before an answer, or its summary. */
export interface ResponseReasoningText {
  type: "reasoning_text" | "summary_text";
  text: string;
}

/** An item of a response. */
export type ResponseItem =
  | { type: "message"; id: string; status: ItemStatus; role: "assistant"; content: ResponseText[] }
  | {
      type: "reasoning";
      id: string;
      summary: ResponseReasoningText[];
      content?: ResponseReasoningText[];
      encrypted_content?: string | null;
    }
  | { type: "function_call"; id: string; status: ItemStatus; call_id: string; name: string; arguments: string }
  | { type: "custom_tool_call"; id: string; status: ItemStatus; call_id: string; name: string; input: string };

/** An answer of the Responses API. It repeats the request's settings. */
export interface ResponseObject {
  id: string;
  object: "response";
  created_at: number;
  completed_at: number | null;
  status: "in_progress" | "completed" | "incomplete" | "failed";
  error: { code: "server_error"; message: string } | null;
  incomplete_details: { reason: "max_output_tokens" } | null;
  model: string;
  output: ResponseItem[];
  usage: {
    input_tokens: number;
    input_tokens_details: { cached_tokens: number };
    output_tokens: number;
    output_tokens_details: { reasoning_tokens: number };
    total_tokens: number;
  } | null;
  metadata: Record<string, string> | null;
  previous_response_id: string | null;
}

/** Where an event of a stream happens. */
export interface ResponsePlace {
  item_id: string;
  output_index: number;
}

/** An event of a streamed response; `sequence_number` counts them. */
export type ResponseEvent = { sequence_number: number } & (
  | {
      type:
        | "response.created"
        | "response.in_progress"
        | "response.completed"
        | "response.incomplete"
        | "response.failed";
      response: ResponseObject;
    }
  | {
      type: "response.output_item.added" | "response.output_item.done";
      output_index: number;
      item: ResponseItem;
    }
  | (ResponsePlace & {
      type: "response.content_part.added" | "response.content_part.done";
      content_index: number;
      part: ResponseText | ResponseReasoningText;
    })
  | (ResponsePlace & {
      type: "response.reasoning_summary_part.added" | "response.reasoning_summary_part.done";
      summary_index: number;
      part: ResponseReasoningText;
    })
  | (ResponsePlace & {
      type: "response.output_text.delta";
      content_index: number;
      delta: string;
      logprobs: ResponseText["logprobs"];
    })
  | (ResponsePlace & {
      type: "response.output_text.done";
      content_index: number;
      text: string;
      logprobs: ResponseText["logprobs"];
    })
  | (ResponsePlace & { type: "response.reasoning_text.delta"; content_index: number; delta: string })
  | (ResponsePlace & { type: "response.reasoning_text.done"; content_index: number; text: string })
  | (ResponsePlace & { type: "response.reasoning_summary_text.delta"; summary_index: number; delta: string })
  | (ResponsePlace & { type: "response.reasoning_summary_text.done"; summary_index: number; text: string })
  | (ResponsePlace & {
      type: "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta";
      delta: string;
    })
  | (ResponsePlace & { type: "response.function_call_arguments.done"; name: string; arguments: string })
  | (ResponsePlace & { type: "response.custom_tool_call_input.done"; input: string })
);

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
