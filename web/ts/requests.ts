// Request types of the API, made from the engine's table of request fields. Do not edit; to write it anew:
// FOLIO_REFRESH=1 cargo test --test http document

export interface Target {
  /** A served name; by default, and if it is empty, the first. */
  model?: string | null;
  /** The adapters that change the answer, as llama.cpp's server takes them; by default those of `/lora-adapters`. */
  lora?: Array<{
    /** Its number in `GET /lora-adapters`. */
    id: number;
    /** What its change is multiplied by; 1 by default. */
    scale?: number | null;
  }> | null;
}

export interface TemplateFields {
  /** Variables of the chat template. */
  chat_template_kwargs?: Record<string, unknown> | null;
}

export interface ConversationFields {
  /** The conversation so far. */
  messages: Array<Message>;
  /** Functions that the model may call. Tools of other types are left out. */
  tools?: Array<FunctionTool | OtherTool> | null;
  /** Whether the model may, must or must not call a function, or which one. */
  tool_choice?: ToolChoice | null;
  /** False: at most one call. */
  parallel_tool_calls?: boolean | null;
  /** How long the model should think, and whether: `none` turns thinking off, any other value turns it on. */
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null;
  /** Whether the model thinks, whatever `reasoning_effort` says; a variable of the template goes before both. */
  enable_thinking?: boolean | null;
  /** End the prompt with the beginning of an answer; by default unless the last message is continued. */
  add_generation_prompt?: boolean | null;
  /** Continue the last message. */
  continue_final_message?: boolean | null;
  /** `none` leaves thoughts in the content, in the model's own notation; any other is as without the field. */
  reasoning_format?: "none" | "auto" | "deepseek" | null;
  /** False: calls of tools stay text, in the model's own notation. */
  parse_tool_calls?: boolean | null;
  /** Answers are text only. */
  modalities?: Array<"text"> | null;
}

export interface StructuredFields {
  /** The form of the answer, as in OpenAI's API. */
  response_format?: ResponseFormat | null;
  /** The form of the answer, as in vLLM's API. */
  structured_outputs?: {
    /** A JSON schema. */
    json?: Record<string, unknown> | boolean | string | null;
    /** Any JSON object. */
    json_object?: boolean | null;
    /** A regular expression. */
    regex?: string | null;
    /** One of these strings. */
    choice?: Array<string> | null;
    /** A grammar in Lark's notation, or in llama.cpp's (`root ::= …`). */
    grammar?: string | null;
    /** Free text with parts that begin with a trigger, as XGrammar describes them, or its JSON text. */
    structural_tag?: Record<string, unknown> | string | null;
    /** Accepted and not used. */
    disable_additional_properties?: boolean | null;
    /** Accepted and not used. */
    disable_fallback?: boolean | null;
  } | null;
  /** An older name of `structured_outputs.json`. */
  guided_json?: Record<string, unknown> | boolean | string | null;
  /** An older name of `structured_outputs.regex`. */
  guided_regex?: string | null;
  /** An older name of `structured_outputs.choice`. */
  guided_choice?: Array<string> | null;
  /** An older name of `structured_outputs.grammar`. */
  guided_grammar?: string | null;
  /** SGLang's name of `structured_outputs.regex`. */
  regex?: string | null;
  /** SGLang's name of `structured_outputs.grammar`. */
  ebnf?: string | null;
  /** llama.cpp's name of `structured_outputs.grammar`; an empty one is none. */
  grammar?: string | null;
  /** A JSON schema, as llama.cpp takes it: keywords that cannot be enforced have no effect. */
  json_schema?: Record<string, unknown> | boolean | string | null;
}

export interface OtherSamplers {
  /** How many of the last tokens of prompt and answer the penalties count; -1 is all, 0 turns them off. */
  repeat_last_n?: number | null;
  /** Not supported; 0 is off. */
  mirostat?: number | null;
  /** Not supported; 1 is off. */
  typical_p?: number | null;
  /** Not supported; 1 is off. */
  tfs_z?: number | null;
  /** Not supported; 0 and -1 are off. */
  top_n_sigma?: number | null;
  /** Not supported; 0 and -1 are off. */
  adaptive_target?: number | null;
  /** Not supported; 0 is off. */
  dynatemp_range?: number | null;
  /** Not supported; 0 is off. */
  dry_multiplier?: number | null;
  /** Not supported; 0 is off. */
  xtc_probability?: number | null;
  /** Not supported; -1 is off. */
  reasoning_budget_tokens?: number | null;
  /** Not supported; -1 is off. */
  thinking_budget_tokens?: number | null;
  /** End an answer at the first line break so many milliseconds after its first token; 0 and -1 are off. */
  t_max_predict_ms?: number | null;
  /** End an answer before a line, other than its first, that begins with fewer blanks. */
  n_indent?: number | null;
}

export interface SamplingFields {
  /** Answer with server-sent events. */
  stream?: boolean | null;
  /** What a stream reports; needs `stream`. */
  stream_options?: {
    /** Report the token counts in a last chunk. */
    include_usage?: boolean | null;
    /** Report the token counts so far with every chunk. */
    continuous_usage_stats?: boolean | null;
  } | null;
  /** Sampling temperature; 0 always takes the likeliest token. */
  temperature?: number | null;
  /** Sample from the likeliest tokens whose probabilities add up to this; 0 always takes the likeliest one. */
  top_p?: number | null;
  /** Sample from this many of the likeliest tokens; 0 and -1 keep all. */
  top_k?: number | null;
  /** Leave out tokens less likely than this share of the likeliest one. */
  min_p?: number | null;
  /** Divides the logits of tokens that were there before; 1 is off. */
  repetition_penalty?: number | null;
  /** Another name of `repetition_penalty`. */
  repeat_penalty?: number | null;
  /** Subtracted from the logits of tokens that were generated before. */
  presence_penalty?: number | null;
  /** Subtracted from the logits of tokens for each time that they were generated before. */
  frequency_penalty?: number | null;
  /** Added to the logits of tokens, by id or text: an object or a list of pairs. `false` forbids a token. */
  logit_bias?: Record<string, number | false> | Array<[number | string, number | false]> | null;
  /** Requests with the same seed sample the same tokens. */
  seed?: number | null;
  /** Choices per prompt; 1 by default. */
  n?: number | null;
  /** Another name of `n`. */
  n_cmpl?: number | null;
  /** Generate this many choices and answer with the likeliest `n`; not in a stream. In a beam search: the beams. */
  best_of?: number | null;
  /** Search for the likeliest answers with `best_of` beams, else `n`, instead of sampling; not in a stream. */
  use_beam_search?: boolean | null;
  /** A search divides the sum of an answer's logprobs by its length to the power of this; 1 by default. */
  length_penalty?: number | null;
  /** End a search when it has as many answers as beams, though a better one may follow. */
  early_stopping?: boolean | null;
  /** Strings that end a choice. */
  stop?: string | Array<string> | null;
  /** The only tokens that an answer may have; an empty list means all. */
  allowed_token_ids?: Array<number> | null;
  /** Texts that an answer may not have, as the tokenizer writes them at the beginning of a text or after a space. */
  bad_words?: Array<string> | null;
  /** Token ids that end a choice. */
  stop_token_ids?: Array<number> | null;
  /** Whether the text ends with the stop string that ended it. */
  include_stop_str_in_output?: boolean | null;
  /** Go on after the model's end tokens. */
  ignore_eos?: boolean | null;
  /** Tokens before which neither an end token nor a stop ends a choice; at most `max_tokens`. */
  min_tokens?: number | null;
  /** Leave special tokens out of the text. */
  skip_special_tokens?: boolean | null;
  /** Report the log-probabilities of the prompt's tokens, with this many alternatives. */
  prompt_logprobs?: number | null;
  /** Report the token ids of prompt and answer. */
  return_token_ids?: boolean | null;
  /** Another name of `return_token_ids`. */
  return_tokens?: boolean | null;
  /** False: leave the thought out of the answer; its tokens count in the usage. */
  include_reasoning?: boolean | null;
  /** Maximum tokens of a thought: then its closing tag follows, and the answer goes on; -1 sets no limit. */
  thinking_token_budget?: number | null;
  /** Name the tokens of logprobs by id: `token_id:123`. */
  return_tokens_as_token_ids?: boolean | null;
  /** Report times with every chunk of a stream, not with the last one alone. */
  timings_per_token?: boolean | null;
  /** Report in a stream how much of the prompt is computed, after each step. */
  return_progress?: boolean | null;
  /** What to report for finding mistakes. */
  debug?: {
    /** Report how much of the prompt was cached and why it was not more. */
    prefix?: boolean | null;
    /** Report how many drafts each choice verified, and why its other draws had none. */
    drafts?: boolean | null;
  } | null;
  /** Accepted and not used. */
  metadata?: Record<string, string> | null;
}

export interface Queueing {
  /** Requests with a lower number run earlier; 0 by default. */
  priority?: number | null;
  /** Prompts with different salts share no cached blocks. */
  cache_salt?: string | null;
  /** Keep only this many of a prompt's tokens, its last ones; -1 keeps as many as fit. */
  truncate_prompt_tokens?: number | null;
  /** Which side of a prompt is cut: `left` (the default) keeps its end, `right` its beginning. */
  truncation_side?: "left" | "right" | null;
  /** Accepted and not used. */
  user?: string | null;
}

export interface VectorFields {
  /** Vectors as numbers (the default), as base64, or as bytes; the header `metadata` describes `bytes`. */
  encoding_format?: "float" | "base64" | "bytes" | "bytes_only" | null;
  /** The format of numbers in base64 and bytes; 32-bit floats by default. */
  embed_dtype?: "float32" | "float16" | "bfloat16" | null;
  /** The order of their bytes; `little` by default. */
  endianness?: "native" | "little" | "big" | null;
  /** Elements to keep of each vector. */
  dimensions?: number | null;
  /** Which hidden states count: by default as the model's files say; others than `last` and `mean` of encoders only. */
  pooling?: "cls" | "last" | "max" | "mean" | "weightedmean" | null;
  /** Scale vectors to length one. */
  normalize?: boolean | null;
  /** Another name of `normalize`. */
  embd_normalize?: 2 | -1 | null;
  /** Another name of `normalize`. */
  use_activation?: boolean | null;
}

export interface ResponsesPrompt {
  /** What to answer: a text, or a list of items. */
  input?: string | Array<InputItem> | null;
  /** Instructions that come before the input. */
  instructions?: string | null;
  /** The stored response that the input follows. */
  previous_response_id?: string | null;
  /** Tools that the model may call. Those of types without a form here are left out and named in `x-ignored-tools`. */
  tools?: Array<ToolItem | OtherToolItem> | null;
  /** Whether the model may, must or must not call a tool, or which one. */
  tool_choice?: ItemToolChoice | null;
  /** False: at most one call. */
  parallel_tool_calls?: boolean | null;
  /** How long the model should think, and whether its thoughts are reported as a summary. */
  reasoning?: {
    /** How long the model should think, and whether: `none` turns thinking off, any other value turns it on. */
    effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null;
    /** Report thoughts as the summary of a reasoning item; otherwise they are its content. */
    summary?: "auto" | "concise" | "detailed" | null;
  } | null;
  /** The form of the answer. */
  text?: {
    /** What the answer is. */
    format?: {
      /** What the answer is. */
      type: "text" | "json_object" | "json_schema";
      /** The name of the schema. */
      name?: string | null;
      /** The schema itself. */
      schema?: Record<string, unknown> | boolean | null;
      /** True: refuse a schema with keywords that cannot be enforced. */
      strict?: boolean | null;
    } | null;
  } | null;
}

export interface MessagesPrompt {
  /** The conversation so far. */
  messages: Array<BlockMessage>;
  /** Instructions: a text, or text blocks. */
  system?: string | Array<{
    type: "text";
    text: string;
  }> | null;
  /** Functions that the model may call. Tools of other types are left out and named in `x-ignored-tools`. */
  tools?: Array<BlockTool | BlockOtherTool> | null;
  /** Whether the model may, must or must not call a function, or which one. */
  tool_choice?: BlockToolChoice | null;
  /** Whether the model thinks before it answers; off by default. */
  thinking?: {
    type: "enabled" | "adaptive" | "between_tools" | "disabled";
  } | null;
  /** The form of the answer, and how long the model should think. */
  output_config?: {
    /** How long the model should think; a variable of the chat template. */
    effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null;
    /** The form of the answer. */
    format?: {
      /** What the answer is. */
      type: "json_schema";
      /** The JSON schema of the answer. */
      schema: Record<string, unknown> | boolean;
    } | null;
  } | null;
  /** An older name of `output_config.format`. */
  output_format?: {
    /** What the answer is. */
    type: "json_schema";
    /** The JSON schema of the answer. */
    schema: Record<string, unknown> | boolean;
  } | null;
}

export interface Judging {
  /** What makes a document relevant, for models that read an instruction. */
  instruction?: string | null;
  /** Keep only this many of each document's first tokens; 0 keeps all. */
  max_tokens_per_doc?: number | null;
  /** Keep this many tokens of a pair (with a head for classes) or of a document; -1 keeps as many as fit. */
  truncate_prompt_tokens?: number | null;
  /** Which side of a document that is too long is cut: `right` (the default) keeps its beginning. */
  truncation_side?: "left" | "right" | null;
  /** False: report logits or the logarithm of the odds instead of probabilities; a cosine stays as it is. */
  use_activation?: boolean | null;
}

export interface TeiReading {
  /** Cut a text that does not fit into the context; it is refused otherwise. */
  truncate?: boolean | null;
  /** Which side of a text that is too long is cut; the right one by default. */
  truncation_direction?: "Left" | "left" | "Right" | "right" | null;
  /** The name of the prompt of the model's files that is put before texts; the default one if there is one. */
  prompt_name?: string | null;
}

export interface LlamaSettings {
  /** Tokens to generate at most; negative: as many as fit into the context. 0 computes the prompt and a token. */
  n_predict?: number | null;
  /** Another name of `n_predict`. */
  max_tokens?: number | null;
  /** Another name of `n_predict`. */
  max_completion_tokens?: number | null;
  /** Report the log-probabilities of the answer's tokens, with this many alternatives; 0: none. */
  n_probs?: number | null;
  /** Another name of `n_probs`. */
  logprobs?: number | null;
  /** Sampling temperature; 0 and less always take the likeliest token. */
  temperature?: number | null;
  /** Sample from this many of the likeliest tokens; 0 and less keep all. */
  top_k?: number | null;
  /** The only keys of a reply that is no stream; a path with slashes is a key of its own. */
  response_fields?: Array<string> | null;
  /** One choice is generated here. */
  best_of?: number | null;
}

export interface OllamaSettings {
  /** Answer with lines of JSON, one for each part of the answer. */
  stream?: boolean | null;
  /** The form of the answer: `json`, or a JSON schema. An empty string sets none. */
  format?: "json" | "" | Record<string, unknown> | null;
  /** Sampling parameters. */
  options?: {
    /** How many of the last tokens of prompt and answer the penalties count; -1 is all, 0 turns them off. */
    repeat_last_n?: number | null;
    /** Not supported; 0 is off. */
    mirostat?: number | null;
    /** Not supported; 1 is off. */
    typical_p?: number | null;
    /** Not supported; 1 is off. */
    tfs_z?: number | null;
    /** Not supported; 0 and -1 are off. */
    top_n_sigma?: number | null;
    /** Not supported; 0 and -1 are off. */
    adaptive_target?: number | null;
    /** Not supported; 0 is off. */
    dynatemp_range?: number | null;
    /** Not supported; 0 is off. */
    dry_multiplier?: number | null;
    /** Not supported; 0 is off. */
    xtc_probability?: number | null;
    /** Not supported; -1 is off. */
    reasoning_budget_tokens?: number | null;
    /** Not supported; -1 is off. */
    thinking_budget_tokens?: number | null;
    /** End an answer at the first line break so many milliseconds after its first token; 0 and -1 are off. */
    t_max_predict_ms?: number | null;
    /** End an answer before a line, other than its first, that begins with fewer blanks. */
    n_indent?: number | null;
    /** Tokens to generate at most; negative: as many as fit into the context. */
    num_predict?: number | null;
    /** Sampling temperature; 0 always takes the likeliest token. */
    temperature?: number | null;
    /** Sample from the likeliest tokens whose probabilities add up to this. */
    top_p?: number | null;
    /** Sample from this many of the likeliest tokens; 0 and -1 keep all. */
    top_k?: number | null;
    /** Leave out tokens less likely than this share of the likeliest one. */
    min_p?: number | null;
    /** Divides the logits of tokens that were there before; 1 is off. */
    repeat_penalty?: number | null;
    /** Subtracted from the logits of tokens that were generated before. */
    presence_penalty?: number | null;
    /** Subtracted from the logits of tokens for each time that they were generated before. */
    frequency_penalty?: number | null;
    /** Requests with the same seed sample the same tokens. */
    seed?: number | null;
    /** Strings that end the answer. */
    stop?: string | Array<string> | null;
    /** Penalties count line breaks, too. */
    penalize_newline?: true | null;
  } | null;
  /** Whether the model thinks before it answers, or how long. */
  think?: true | false | "low" | "medium" | "high" | null;
  /** Report the log-probabilities of the answer's tokens. */
  logprobs?: boolean | null;
  /** Alternatives to report for each token; needs `logprobs`. */
  top_logprobs?: number | null;
}

export interface LoadAdapterRequest {
  /** The name that requests call it by. */
  lora_name: string;
  /** Where it is in the folder of --lora-folder. */
  lora_path: string;
  /** It replaces an adapter of this name. */
  load_inplace?: boolean | null;
}

export interface UnloadAdapterRequest {
  /** The name of the adapter. */
  lora_name: string;
}

export interface LoadRequest {
  /** A served name. */
  model: string;
}

export type ContentPart = {
  type: "text" | "input_text" | "output_text";
  text: string;
} | {
  type: "refusal";
  refusal: string;
} | {
  type: "image_url";
  image_url: {
    /** data:image/…;base64,… */
    url: string;
    detail?: string | null;
  } | string;
};

export interface MessageToolCall {
  id?: unknown;
  type?: unknown;
  function: {
    name: string;
    arguments?: string | Record<string, unknown> | null;
  };
}

export interface Message {
  /** The chat template decides which roles it takes. */
  role: string;
  content?: string | Array<ContentPart> | null;
  name?: string | null;
  refusal?: string | null;
  tool_calls?: Array<MessageToolCall> | null;
  tool_call_id?: string | null;
}

export interface FunctionTool {
  type: "function";
  function: {
    name: string;
    description?: string | null;
    /** The arguments, as a JSON schema. */
    parameters?: Record<string, unknown> | null;
    /** True: calls keep to the schema. */
    strict?: unknown;
  };
}

export interface OtherTool {
  type: string;
}

export type ToolChoice = "none" | "auto" | "required" | {
  type?: "function";
  function?: {
    name: string;
  };
  name?: string;
} | {
  type: "allowed_tools";
  allowed_tools: {
    mode: "auto" | "required";
    tools: Array<Record<string, unknown>>;
  };
};

export interface ResponseFormat {
  /** Accepted and not used. */
  name?: string | null;
  /** The schema itself. */
  schema?: Record<string, unknown> | boolean | null;
  /** True: refuse a schema with keywords that cannot be enforced. */
  strict?: boolean | null;
  /** What the answer is. */
  type: "text" | "json_object" | "json_schema" | "structural_tag";
  /** The JSON schema of the answer; llama.cpp's clients send its fields beside the type. */
  json_schema?: {
    /** Accepted and not used. */
    name?: string | null;
    /** The schema itself. */
    schema?: Record<string, unknown> | boolean | null;
    /** True: refuse a schema with keywords that cannot be enforced. */
    strict?: boolean | null;
  } | null;
  /** Of a `structural_tag`: parts that begin with a trigger, each with `begin`, `schema` and `end`. */
  structures?: Array<unknown> | null;
  /** Of a `structural_tag`: what ends the free text before a part. */
  triggers?: Array<unknown> | null;
  /** The newer form of a `structural_tag`: a tree of formats. */
  format?: Record<string, unknown> | null;
}

export interface ChatRequest
  extends Target, TemplateFields, ConversationFields, StructuredFields, OtherSamplers, SamplingFields, Queueing {
  /** Tokens to generate at most; by default, and with -1, as many as fit into the context. */
  max_completion_tokens?: number | null;
  /** Another name of `max_completion_tokens`. */
  max_tokens?: number | null;
  /** Another name of `max_completion_tokens`. */
  n_predict?: number | null;
  /** Report the log-probabilities of the answer's tokens. */
  logprobs?: boolean | null;
  /** Alternatives to report for each token; needs `logprobs`. */
  top_logprobs?: number | null;
  /** llama.cpp's way to ask for `logprobs` with this many `top_logprobs`; 0: none. */
  n_probs?: number | null;
  /** Begin the answer with the last message, if that is the assistant's. */
  echo?: boolean | null;
}

export interface RenderChatRequest
  extends Target, TemplateFields, ConversationFields {
  /** Report where each token is in the prompt: its first character, and the one after its last. */
  return_token_offsets?: boolean | null;
}

export interface BatchChatRequest
  extends Target,
    TemplateFields,
    Omit<ConversationFields, "messages">,
    StructuredFields,
    OtherSamplers,
    Omit<SamplingFields, "stream" | "stream_options">,
    Queueing {
  /** The conversations. */
  messages: Array<Array<Message>>;
  /** Tokens to generate at most; by default, and with -1, as many as fit into the context. */
  max_completion_tokens?: number | null;
  /** Another name of `max_completion_tokens`. */
  max_tokens?: number | null;
  /** Another name of `max_completion_tokens`. */
  n_predict?: number | null;
  /** Report the log-probabilities of the answer's tokens. */
  logprobs?: boolean | null;
  /** Alternatives to report for each token; needs `logprobs`. */
  top_logprobs?: number | null;
  /** llama.cpp's way to ask for `logprobs` with this many `top_logprobs`; 0: none. */
  n_probs?: number | null;
  /** Begin the answer with the last message, if that is the assistant's. */
  echo?: boolean | null;
}

export interface CompletionRequest
  extends Target, StructuredFields, OtherSamplers, SamplingFields, Queueing {
  /** What to continue: a text, several, a list of token ids, or several lists. */
  prompt: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Tokens to generate at most; 16 by default, 0 only with `echo`; -1: as many as fit into the context. */
  max_tokens?: number | null;
  /** Another name of `max_tokens`. */
  max_completion_tokens?: number | null;
  /** Another name of `max_tokens`. */
  n_predict?: number | null;
  /** Report the log-probabilities of the answer's tokens, with this many alternatives. */
  logprobs?: number | null;
  /** Another name of `logprobs`. */
  n_probs?: number | null;
  /** Begin each choice with its prompt. */
  echo?: boolean | null;
  /** The text after a gap that follows the prompt, for models that can fill one. */
  suffix?: string | null;
  /** Encode texts with the special tokens that the tokenizer adds. */
  add_special_tokens?: boolean | null;
}

export interface EmbeddingRequest
  extends Target, Queueing, VectorFields {
  /** What to embed: a text, several, a list of token ids, or several lists. */
  input: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Encode texts with the special tokens that the tokenizer adds. */
  add_special_tokens?: boolean | null;
  /** The name of the prompt of the model's files that is put before texts; the default one if there is one. */
  prompt_name?: string | null;
}

export type Invocation = ChatRequest | CompletionRequest | EmbeddingRequest;

export interface ItemPart {
  type: "input_text" | "output_text" | "text";
  text: string;
}

export interface MessageItem {
  type?: "message" | null;
  role: "user" | "assistant" | "system" | "developer";
  content: string | Array<ItemPart | {
    type: "input_image";
    image_url: string;
    detail?: string | null;
  }>;
}

export interface CallItem {
  call_id: string;
  name: string;
  arguments: string;
  type: "function_call";
}

export interface ResultItem {
  call_id: string;
  output: string | Array<ItemPart | {
    type: "input_image";
    image_url: string;
    detail?: string | null;
  }>;
  type: "function_call_output";
}

export interface ReasoningItem {
  encrypted_content?: string | null;
  type: "reasoning";
}

export interface OtherItem {
  type: string;
}

export type InputItem = MessageItem | CallItem | ResultItem | ReasoningItem | OtherItem;

export interface ToolItem {
  type: "function";
  name: string;
  description?: string | null;
  /** The arguments, as a JSON schema. */
  parameters?: Record<string, unknown> | null;
}

export interface OtherToolItem {
  type: string;
}

export type ItemToolChoice = "none" | "auto" | "required" | {
  type: "function" | "custom";
  name: string;
};

export interface ResponsesRequest
  extends Target,
    TemplateFields,
    StructuredFields,
    OtherSamplers,
    Omit<SamplingFields, "n" | "n_cmpl" | "best_of" | "metadata">,
    Queueing,
    ResponsesPrompt {
  /** Tokens to generate at most; by default as many as fit into the context. */
  max_output_tokens?: number | null;
  /** Another name of `max_output_tokens`. */
  max_tokens?: number | null;
  /** Another name of `max_output_tokens`. */
  max_completion_tokens?: number | null;
  /** Another name of `max_output_tokens`. */
  n_predict?: number | null;
  /** Keep the response, for `previous_response_id` and `GET /v1/responses/{id}`. */
  store?: boolean | null;
  /** What to report beside the answer: `reasoning.encrypted_content`, `message.output_text.logprobs`. */
  include?: Array<string> | null;
  /** Alternatives to report for each token. */
  top_logprobs?: number | null;
  /** Returned with the response. */
  metadata?: Record<string, string> | null;
  /** `auto`: an input that is too long loses its beginning, as with `truncate_prompt_tokens`: -1. */
  truncation?: "auto" | "disabled" | null;
  /** One answer is generated here. */
  n?: number | null;
  /** Another name of `n`. */
  n_cmpl?: number | null;
  /** One answer is generated here. */
  best_of?: number | null;
}

export interface InputTokensRequest
  extends Target, TemplateFields, ResponsesPrompt {
}

export type ContentBlock = {
  type: "text";
  text: string;
} | {
  type: "thinking";
  thinking: string;
  signature?: string | null;
} | {
  type: "tool_use";
  id: string;
  name: string;
  input: Record<string, unknown>;
} | {
  type: "tool_result";
  tool_use_id: string;
  content?: string | Array<{
    type: "text";
    text: string;
  } | {
    type: "image";
    source: {
      type: "base64";
      media_type?: string | null;
      data: string;
    };
  }> | null;
  is_error?: boolean | null;
} | {
  type: "image";
  source: {
    type: "base64";
    media_type?: string | null;
    data: string;
  };
};

export interface BlockMessage {
  role: "user" | "assistant" | "system";
  content: string | Array<ContentBlock>;
}

export interface BlockTool {
  type?: "custom" | null;
  name: string;
  description?: string | null;
  /** The arguments, as a JSON schema. */
  input_schema?: Record<string, unknown> | null;
}

export interface BlockOtherTool {
  type: string;
}

export type BlockToolChoice = {
  type: "auto" | "any" | "none";
  disable_parallel_tool_use?: boolean | null;
} | {
  type: "tool";
  name: string;
  disable_parallel_tool_use?: boolean | null;
};

export interface MessagesRequest
  extends Target,
    TemplateFields,
    StructuredFields,
    OtherSamplers,
    Omit<SamplingFields, "n" | "n_cmpl" | "best_of">,
    Queueing,
    MessagesPrompt {
  /** Tokens to generate at most; as many as fit into the context if that is less. */
  max_tokens: number;
  /** Strings that end the answer. */
  stop_sequences?: string | Array<string> | null;
  /** One answer is generated here. */
  n?: number | null;
  /** Another name of `n`. */
  n_cmpl?: number | null;
  /** One answer is generated here. */
  best_of?: number | null;
}

export interface CountTokensRequest
  extends Target, TemplateFields, MessagesPrompt {
}

export interface RenderCompletionRequest
  extends Target {
  /** Report where each token is in the prompt: its first character, and the one after its last. */
  return_token_offsets?: boolean | null;
  /** What to encode: a text, several, a list of token ids, or several lists. */
  prompt: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Encode texts with the special tokens that the tokenizer adds. */
  add_special_tokens?: boolean | null;
}

export interface EmbeddingChatRequest
  extends Target, TemplateFields, Omit<ConversationFields, "add_generation_prompt">, Queueing, VectorFields {
  /** End the prompt with the beginning of an answer. */
  add_generation_prompt?: boolean | null;
}

export interface LlamaEmbeddingRequest
  extends Target, Queueing {
  /** What to embed: a text, several, a list of token ids, or several lists. */
  content: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Another name of `content`. */
  input?: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }> | null;
  /** Which hidden states count: by default as the model's files say; others than `last` and `mean` of encoders only. */
  pooling?: "cls" | "last" | "max" | "mean" | "weightedmean" | null;
  /** How vectors are scaled: 2 to length one, -1 not at all. */
  embd_normalize?: 2 | -1 | null;
}

export type EmbeddingsRequest = EmbeddingRequest | EmbeddingChatRequest | LlamaEmbeddingRequest;

export interface RerankDocumentsRequest
  extends Target, Omit<Queueing, "truncate_prompt_tokens" | "truncation_side">, Judging {
  /** What the documents are compared with. */
  query: string | {
    text: string;
  };
  /** What to rank: texts, or objects with `text`. */
  documents: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
  /** Report only this many of the best documents. */
  top_n?: number | null;
  /** Repeat each document in its result. */
  return_documents?: boolean | null;
}

export interface RerankTextsRequest
  extends Target, Omit<Queueing, "truncate_prompt_tokens" | "truncation_side">, Judging {
  /** What the texts are compared with. */
  query: string | {
    text: string;
  };
  /** What to rank. */
  texts: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
  /** Report only this many of the best texts, as llama.cpp's clients ask. */
  top_n?: number | null;
  /** Report the logarithm of the odds instead of a probability; a cosine stays as it is. */
  raw_scores?: boolean | null;
  /** Repeat each text in its result. */
  return_text?: boolean | null;
  /** Cut a text that does not fit into the context; it is refused otherwise. */
  truncate?: boolean | null;
  /** Texts are cut at their end. */
  truncation_direction?: "Right" | "right" | null;
}

export type RerankRequest = RerankDocumentsRequest | RerankTextsRequest;

export interface ScoreTextsRequest
  extends Target, Omit<Queueing, "truncate_prompt_tokens" | "truncation_side">, Judging {
  /** A query, or one for each document. */
  text_1: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
  /** A document, or several. */
  text_2: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
}

export interface ScoreDocumentsRequest
  extends Target, Omit<Queueing, "truncate_prompt_tokens" | "truncation_side">, Judging {
  /** A query, or one for each document. */
  queries: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
  /** A document, or several. */
  documents: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
}

export interface ScoreItemsRequest
  extends Target, Omit<Queueing, "truncate_prompt_tokens" | "truncation_side">, Judging {
  /** A query, or one for each item. */
  queries: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
  /** An item, or several. */
  items: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
}

export interface ScoreDataRequest
  extends Target, Omit<Queueing, "truncate_prompt_tokens" | "truncation_side">, Judging {
  /** A text, or one for each of the others. */
  data_1: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
  /** A text, or several. */
  data_2: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
}

export type ScoreRequest = ScoreTextsRequest | ScoreDocumentsRequest | ScoreItemsRequest | ScoreDataRequest;

export interface ClassifyRequest
  extends Target, Queueing {
  /** What to classify: a text, several, a list of token ids, or several lists. */
  input: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Encode texts with the special tokens that the tokenizer adds. */
  add_special_tokens?: boolean | null;
  /** False: report logits. */
  use_activation?: boolean | null;
  /** Another name of `use_activation`. */
  activation?: boolean | null;
}

export interface CohereEmbedRequest
  extends Target, Queueing {
  /** What to embed. */
  texts: string | {
    text: string;
  } | Array<string | {
    text: string;
  }>;
  /** What texts are for: one of Cohere's names, or that of a prompt of the model's files. */
  input_type?: string | null;
  /** The forms of vectors: `float` by default. */
  embedding_types?: Array<"float" | "int8" | "uint8" | "binary" | "ubinary" | "base64"> | null;
  /** Elements to keep of each vector. */
  output_dimension?: number | null;
  /** Which end of a text that is too long is cut: `END` by default; `NONE` refuses it. */
  truncate?: "NONE" | "START" | "END" | null;
  /** Maximum tokens of a text. */
  max_tokens?: number | null;
}

export interface PoolingRequest
  extends Target, Queueing {
  /** What to pool: a text, several, a list of token ids, or several lists. */
  input: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Encode texts with the special tokens that the tokenizer adds. */
  add_special_tokens?: boolean | null;
  /** Vectors of texts, of their tokens, or classes; by default what the model is made for. */
  task?: "embed" | "token_embed" | "classify" | null;
  /** Numbers (the default), or base64 of 32-bit floats. */
  encoding_format?: "float" | "base64" | null;
  /** Elements to keep of each vector. */
  dimensions?: number | null;
  /** False: vectors are not scaled, and logits are reported instead of probabilities. */
  use_activation?: boolean | null;
  /** Another name of `use_activation`. */
  activation?: boolean | null;
  /** Another name of `use_activation`. */
  normalize?: boolean | null;
}

export interface TeiEmbedRequest
  extends Target, Queueing, TeiReading {
  /** What to embed: a text, several, a list of token ids, or several lists. */
  inputs: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Scale vectors to length one. */
  normalize?: boolean | null;
  /** Elements to keep of each vector. */
  dimensions?: number | null;
}

export interface TeiEmbedAllRequest
  extends Target, Queueing, TeiReading {
  /** What to embed: a text, several, a list of token ids, or several lists. */
  inputs: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
}

export interface TeiSimilarityRequest
  extends Target, Queueing {
  /** What is compared. */
  inputs: {
    /** The text that the others are compared with. */
    source_sentence: string;
    /** The others. */
    sentences: string | {
      text: string;
    } | Array<string | {
      text: string;
    }>;
  };
  /** How texts are read. */
  parameters?: {
    /** Cut a text that does not fit into the context; it is refused otherwise. */
    truncate?: boolean | null;
    /** Which side of a text that is too long is cut; the right one by default. */
    truncation_direction?: "Left" | "left" | "Right" | "right" | null;
    /** The name of the prompt of the model's files that is put before texts; the default one if there is one. */
    prompt_name?: string | null;
  } | null;
}

export interface TeiPredictRequest
  extends Target, Queueing {
  /** A text, a pair of texts, or a list of lists of one text or two. */
  inputs: string | Array<string> | Array<Array<string>>;
  /** Report logits instead of probabilities. */
  raw_scores?: boolean | null;
  /** Cut a text that does not fit into the context; it is refused otherwise. */
  truncate?: boolean | null;
  /** Which side of a text that is too long is cut; the right one by default. */
  truncation_direction?: "Left" | "left" | "Right" | "right" | null;
}

export interface TokenizeTextRequest
  extends Target {
  /** The text. */
  prompt: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Encode the text with the special tokens that the tokenizer adds. */
  add_special_tokens?: boolean | null;
  /** Report the text of each token. */
  return_token_strs?: boolean | null;
}

export interface TokenizeChatRequest
  extends Target, TemplateFields, ConversationFields {
  /** Accepted and not used: the template writes all special tokens. */
  add_special_tokens?: boolean | null;
  /** Report the text of each token. */
  return_token_strs?: boolean | null;
}

export interface TokenizeContentRequest
  extends Target {
  /** The text. */
  content: string;
  /** Encode the text with the special tokens that the tokenizer adds. */
  add_special?: boolean | null;
  /** Report the text of each token. */
  with_pieces?: boolean | null;
  /** Read the names of special tokens in the text as such; false: as text. */
  parse_special?: boolean | null;
}

export type TokenizeRequest = TokenizeTextRequest | TokenizeChatRequest | TokenizeContentRequest;

export interface DetokenizeRequest
  extends Target {
  /** Token ids. */
  tokens: Array<number>;
}

export interface LlamaRequest
  extends Target,
    StructuredFields,
    OtherSamplers,
    Omit<SamplingFields, "temperature" | "top_k" | "best_of">,
    Queueing,
    LlamaSettings {
  /** What to continue: a text, a list of token ids and texts, or a list of such prompts. */
  prompt: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
}

export interface InfillRequest
  extends Target,
    StructuredFields,
    OtherSamplers,
    Omit<SamplingFields, "temperature" | "top_k" | "best_of">,
    Queueing,
    LlamaSettings {
  /** The text before the gap. */
  input_prefix: string;
  /** The text after the gap. */
  input_suffix: string;
  /** Other files: objects with `filename` and `text`. */
  input_extra?: Array<{
    filename: string;
    text: string;
  }> | null;
  /** What the answer begins with. */
  prompt?: string | null;
}

export interface OllamaShowRequest
  extends Target {
  /** An older name of `model`. */
  name?: string | null;
}

export interface OllamaChatRequest
  extends Target, TemplateFields, Queueing, OllamaSettings {
  /** The conversation so far; without one, nothing is generated. */
  messages?: Array<Message> | null;
  /** Functions that the model may call. */
  tools?: Array<FunctionTool | OtherTool> | null;
}

export interface OllamaGenerateRequest
  extends Target, TemplateFields, Queueing, OllamaSettings {
  /** What to answer; without it, nothing is generated. */
  prompt?: string | null;
  /** Instructions. */
  system?: string | null;
  /** The text after a gap that follows the prompt, for models that can fill one. */
  suffix?: string | null;
  /** Images in base64, which come before the prompt. */
  images?: Array<string> | null;
  /** Continue the prompt as it is, without the chat template. */
  raw?: boolean | null;
}

export interface OllamaEmbedRequest
  extends Target, Queueing {
  /** What to embed: a text, or several. */
  input: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
  /** Cut an input that is too long; it is refused otherwise. */
  truncate?: boolean | null;
  /** Elements to keep of each vector. */
  dimensions?: number | null;
}

export interface OllamaEmbeddingsRequest
  extends Target, Queueing {
  /** What to embed. */
  prompt: string | Array<string | number> | {
    prompt_string?: string;
  } | Array<string | Array<string | number> | {
    prompt_string?: string;
  }>;
}

export interface OllamaPullRequest
  extends Target {
  /** An older name of `model`. */
  name?: string | null;
  /** Report the progress line by line. */
  stream?: boolean | null;
}
