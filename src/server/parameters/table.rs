//! The table of request fields: for every field its name, kind, range and one sentence. Routes read requests by this
//! table, and `/openapi.json` and the request types of the npm package are generated from it.
//!
//! A group is a whole request, an object within one, or a part that several requests have. Its rows are the members of
//! a struct, so a field without a row cannot be read, and the compiler finds a row that is never used. The ranges of
//! sampling parameters are the engine's constants, and the engine checks them.

use crate::engine::request::{
    ADAPTER_SCALE, LENGTH_PENALTY, MIN_P, PENALTY, REPETITION_PENALTY, STOP_TOKEN_IDS_MAX,
};
use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::Most;
use crate::server::parameters::kinds::messages::{
    EFFORTS, MessageList, Messages, Modalities, TemplateSettings,
};
use crate::server::parameters::kinds::sampling::{
    ALTERNATIVES, BadWords, Biases, CacheSalt, GreedyBelowZero, LogitBias, MaxTokens, Metadata,
    OPENAI_TEMPERATURE, OneChoice, Predicted, Probabilities, StopStrings, StopTokenIds,
    TOP_P_OR_GREEDY, USER_BYTES_MAX, Within,
};
use crate::server::parameters::kinds::structured::{FormatType, JsonSchema, Notation, TagPart};
use crate::server::parameters::kinds::{
    Boolean, Choice, Closed, Count, EmbdNormalize, Flag, Integer, List, MaybeEmpty, Needed, Nested,
    NotZero, Number, Optional, Required, Strings, Text, TokenIds,
};
use crate::server::parameters::prompts::{ExtraFiles, Prompts, PromptsKind};
use crate::server::parameters::samplers::OtherSamplers;
use crate::server::parameters::tools::{ToolChoice, Tools};
use crate::text::GrammarSpec;
use serde_json::{Map, Value};

/// Maximum bytes of the name and the path of an adapter.
const ADAPTER_NAME_BYTES_MAX: usize = 256;
const ADAPTER_PATH_BYTES_MAX: usize = 4096;
/// Names of poolings.
pub(crate) const POOLINGS: &[&str] = &["cls", "last", "max", "mean", "weightedmean"];
/// Maximum inputs of one embeddings request, as in OpenAI's API.
pub(crate) const INPUTS_MAX: i64 = 2048;

fields! {
    /// In every request.
    Target {
        /// A served name; by default, and if it is empty, the first.
        model: Option<String> = MaybeEmpty(Optional(Text::ANY)),
        /// The adapters that change the answer, as llama.cpp's server takes them; by default those of `/lora-adapters`.
        lora: Option<Vec<AdapterPart>> = Optional(List { of: Nested::<AdapterPart>::new(), most: ADAPTER_PARTS_MAX }),
    }
    refuses {
        lora_path: "name an adapter of --lora-modules as `model`",
        lora_request: "name an adapter of --lora-modules as `model`",
        media_io_kwargs: "models take text only",
        mm_processor_kwargs: "models take text only",
        multi_modal_data: "models take text only",
    }
}

/// Maximum number of adapters that one answer takes.
pub(crate) const ADAPTER_PARTS_MAX: usize = 64;

fields! {
    /// An adapter in an answer.
    AdapterPart {
        /// Its number in `GET /lora-adapters`.
        id: i64 = Required(Integer { min: 0, max: Most::Fixed(u32::MAX as i64) }),
        /// What its change is multiplied by; 1 by default.
        scale: Option<f32> = Optional(Within(ADAPTER_SCALE)),
    }
}

fields! {
    /// How the engine treats a request, whatever it asks for.
    Queueing {
        /// Requests with a lower number run earlier; 0 by default.
        priority: Option<i64> = Optional(Integer { min: i32::MIN as i64, max: Most::Fixed(i32::MAX as i64) }),
        /// Prompts with different salts share no cached blocks.
        cache_salt: Option<String> = Optional(CacheSalt),
        /// Keep only this many of a prompt's tokens, its last ones; -1 keeps as many as fit.
        truncate_prompt_tokens: Option<i64> = Optional(NotZero(Integer { min: -1, max: Most::Context })),
        /// Which side of a prompt is cut: `left` (the default) keeps its end, `right` its beginning.
        truncation_side: Option<&'static str> = Optional(Choice(&["left", "right"])),
        /// Accepted and not used.
        #[expect(dead_code)]
        user: Option<String> = Optional(Text { bytes_max: USER_BYTES_MAX }),
    }
    refuses {
        ec_transfer_params: "one server computes a prompt and its answer",
        kv_transfer_params: "one server computes a prompt and its answer",
        mm_payload: "models take text only",
        prompt_embeds: "send the prompt as text or token ids",
        return_mm_kwargs: "models take text only",
        vllm_xargs: "they are settings of vLLM's own plugins",
    }
    ignores {
        prompt_cache_key: "the prefix cache finds what prompts share",
        prompt_cache_options: "the prefix cache finds what prompts share",
        prompt_cache_retention: "blocks stay cached until their memory is needed",
        request_id: "the header `x-request-id` names a request",
        safety_identifier: "nothing is recorded about users",
        service_tier: "there is one tier; `priority` orders requests",
        session_id: "the prefix cache serves every request",
        store: "answers are not stored",
        truncation: "a prompt that is too long is refused unless `truncate_prompt_tokens` cuts it",
    }
}

impl Queueing {
    /// The same for another part of a request.
    pub(crate) fn again(&self) -> Self {
        Self {
            priority: self.priority,
            cache_salt: self.cache_salt.clone(),
            truncate_prompt_tokens: self.truncate_prompt_tokens,
            truncation_side: self.truncation_side,
            user: None,
        }
    }
}

fields! {
    /// How text is generated.
    SamplingFields with structured: StructuredFields, samplers: OtherSamplers {
        /// Answer with server-sent events.
        stream: bool = Flag(false),
        /// What a stream reports; needs `stream`.
        stream_options: Option<StreamOptions> = Optional(Nested::<StreamOptions>::new()),
        /// Sampling temperature; 0 always takes the likeliest token.
        temperature: Option<f32> = Optional(Within(OPENAI_TEMPERATURE)),
        /// Sample from the likeliest tokens whose probabilities add up to this; 0 always takes the likeliest one.
        top_p: Option<f32> = Optional(Number(TOP_P_OR_GREEDY)),
        /// Sample from this many of the likeliest tokens; 0 and -1 keep all.
        top_k: Option<i64> = Optional(Integer { min: -1, max: Most::Fixed(i32::MAX as i64) }),
        /// Leave out tokens less likely than this share of the likeliest one.
        min_p: Option<f32> = Optional(Number(MIN_P)),
        /// Divides the logits of tokens that were there before; 1 is off.
        repetition_penalty: Option<f32> = Optional(Number(REPETITION_PENALTY))
            => repeat_penalty = Optional(Number(REPETITION_PENALTY)),
        /// Subtracted from the logits of tokens that were generated before.
        presence_penalty: Option<f32> = Optional(Number(PENALTY)),
        /// Subtracted from the logits of tokens for each time that they were generated before.
        frequency_penalty: Option<f32> = Optional(Number(PENALTY)),
        /// Added to the logits of tokens, by id or text: an object or a list of pairs. `false` forbids a token.
        logit_bias: Option<Biases> = Optional(LogitBias),
        /// Requests with the same seed sample the same tokens.
        seed: Option<i64> = Optional(Integer { min: i64::MIN, max: Most::Fixed(i64::MAX) }),
        /// Choices per prompt; 1 by default.
        n: Option<i64> = Optional(Integer { min: 1, max: Most::Choices })
            => n_cmpl = Optional(Integer { min: 1, max: Most::Choices }),
        /// Generate this many choices and answer with the likeliest `n`; not in a stream. In a beam search: the beams.
        best_of: Option<i64> = Optional(Integer { min: 1, max: Most::Choices }),
        /// Search for the likeliest answers with `best_of` beams, else `n`, instead of sampling; not in a stream.
        use_beam_search: bool = Flag(false),
        /// A search divides the sum of an answer's logprobs by its length to the power of this; 1 by default.
        length_penalty: Option<f32> = Optional(Number(LENGTH_PENALTY)),
        /// End a search when it has as many answers as beams, though a better one may follow.
        early_stopping: Option<bool> = Optional(Boolean),
        /// Strings that end a choice.
        stop: Option<Vec<String>> = Optional(StopStrings),
        /// The only tokens that an answer may have; an empty list means all.
        allowed_token_ids: Option<Vec<u32>> = Optional(TokenIds),
        /// Texts that an answer may not have, as the tokenizer writes them at the beginning of a text or after a space.
        bad_words: Option<Vec<String>> = Optional(BadWords),
        /// Token ids that end a choice.
        stop_token_ids: Option<Vec<u32>> = Optional(StopTokenIds { count_max: STOP_TOKEN_IDS_MAX }),
        /// Whether the text ends with the stop string that ended it.
        include_stop_str_in_output: bool = Flag(false),
        /// Go on after the model's end tokens.
        ignore_eos: Option<bool> = Optional(Boolean),
        /// Tokens before which neither an end token nor a stop ends a choice; at most `max_tokens`.
        min_tokens: Option<u32> = Optional(Count { min: 0, max: Most::Context }),
        /// Leave special tokens out of the text.
        skip_special_tokens: bool = Flag(true),
        /// Report the log-probabilities of the prompt's tokens, with this many alternatives.
        prompt_logprobs: Option<u32> = Optional(ALTERNATIVES),
        /// Report the token ids of prompt and answer.
        return_token_ids: bool = Flag(false) => return_tokens = Flag(false),
        /// False: leave the thought out of the answer; its tokens count in the usage.
        include_reasoning: bool = Flag(true),
        /// Maximum tokens of a thought: then its closing tag follows, and the answer goes on; -1 sets no limit.
        thinking_token_budget: Option<i64> = Optional(Integer { min: -1, max: Most::Fixed(u32::MAX as i64) }),
        /// Name the tokens of logprobs by id: `token_id:123`.
        return_tokens_as_token_ids: bool = Flag(false),
        /// Report times with every chunk of a stream, not with the last one alone.
        timings_per_token: bool = Flag(false),
        /// Report in a stream how much of the prompt is computed, after each step.
        return_progress: bool = Flag(false),
        /// What to report for finding mistakes.
        debug: Option<Debug> = Optional(Nested::<Debug>::new()),
        /// Accepted and not used.
        #[expect(dead_code)]
        metadata: Option<Map<String, Value>> = Optional(Metadata),
    }
    refuses {
        custom_logit_processor: "use `logit_bias`, `bad_words` or a grammar",
        guided_whitespace_pattern: "describe white space in a grammar",
        logits_processors: "use `logit_bias`, `bad_words` or a grammar",
        logprob_token_ids: "only the likeliest tokens are reported",
        no_stop_trim: "use `include_stop_str_in_output`",
        post_sampling_probs: "logprobs are those of the model, before sampling",
        repetition_detection: "use `repetition_penalty` or `stop`",
        return_hidden_states: "use /v1/embeddings",
        return_prompt_text: "/v1/completions/render and /v1/chat/completions/render show prompts",
        return_token_offsets: "/v1/completions/render and /v1/chat/completions/render have offsets",
        routed_experts_prompt_start: "experts of tokens are not reported",
        stop_regex: "use `stop`, or describe the answer in a grammar",
        watermarking: "answers have no watermark",
    }
    ignores {
        guided_decoding_backend: "there is one implementation of grammars",
        cache_prompt: "the server decides whether prompts are cached",
        id_slot: "the prefix cache serves every request",
        spaces_between_special_tokens: "no spaces are added to a text",
        stream_interval: "a chunk has the tokens that are ready when the client reads",
    }
}

fields! {
    /// `stream_options`.
    StreamOptions {
        /// Report the token counts in a last chunk.
        include_usage: bool = Flag(false),
        /// Report the token counts so far with every chunk.
        continuous_usage_stats: bool = Flag(false),
    }
}

fields! {
    /// `debug`.
    Debug {
        /// Report how much of the prompt was cached and why it was not more.
        prefix: bool = Flag(false),
        /// Report how many drafts each choice verified, and why its other draws had none.
        drafts: bool = Flag(false),
    }
}

fields! {
    /// What the answer must look like; at most one of these asks for anything.
    StructuredFields {
        /// The form of the answer, as in OpenAI's API.
        response_format: Option<ResponseFormat> = Optional(Nested::<ResponseFormat>::named("ResponseFormat")),
        /// The form of the answer, as in vLLM's API.
        structured_outputs: Option<StructuredOutputs> = Optional(Closed::<StructuredOutputs>::new()),
        /// An older name of `structured_outputs.json`.
        guided_json: Option<GrammarSpec> = Optional(Notation::JsonSchema),
        /// An older name of `structured_outputs.regex`.
        guided_regex: Option<GrammarSpec> = MaybeEmpty(Optional(Notation::Regex)),
        /// An older name of `structured_outputs.choice`.
        guided_choice: Option<GrammarSpec> = Optional(Notation::Choice),
        /// An older name of `structured_outputs.grammar`.
        guided_grammar: Option<GrammarSpec> = MaybeEmpty(Optional(Notation::Grammar)),
        /// SGLang's name of `structured_outputs.regex`.
        regex: Option<GrammarSpec> = MaybeEmpty(Optional(Notation::Regex)),
        /// SGLang's name of `structured_outputs.grammar`.
        ebnf: Option<GrammarSpec> = MaybeEmpty(Optional(Notation::Grammar)),
        /// llama.cpp's name of `structured_outputs.grammar`; an empty one is none.
        grammar: Option<GrammarSpec> = MaybeEmpty(Optional(Notation::Grammar)),
        /// A JSON schema, as llama.cpp takes it: keywords that cannot be enforced have no effect.
        json_schema: Option<GrammarSpec> = Optional(Notation::LenientSchema),
    }
}

fields! {
    /// `response_format`.
    ResponseFormat with beside: SchemaFields {
        /// What the answer is.
        r#type: &'static str = Required(FormatType),
        /// The JSON schema of the answer; llama.cpp's clients send its fields beside the type.
        json_schema: Option<SchemaFields> = Optional(Nested::<SchemaFields>::new()),
        /// Of a `structural_tag`: parts that begin with a trigger, each with `begin`, `schema` and `end`.
        structures: Option<Value> = Optional(TagPart("array")),
        /// Of a `structural_tag`: what ends the free text before a part.
        triggers: Option<Value> = Optional(TagPart("array")),
        /// The newer form of a `structural_tag`: a tree of formats.
        format: Option<Value> = Optional(TagPart("object")),
    }
}

fields! {
    /// `response_format.json_schema`.
    SchemaFields {
        /// Accepted and not used.
        #[expect(dead_code)]
        name: Option<String> = Optional(Text::ANY),
        /// The schema itself.
        schema: Option<Value> = Optional(JsonSchema),
        /// True: refuse a schema with keywords that cannot be enforced.
        strict: bool = Flag(false),
    }
}

fields! {
    /// `structured_outputs`.
    StructuredOutputs {
        /// A JSON schema.
        json: Option<GrammarSpec> = Optional(Notation::JsonSchema),
        /// Any JSON object.
        json_object: bool = Flag(false),
        /// A regular expression.
        regex: Option<GrammarSpec> = Optional(Notation::Regex),
        /// One of these strings.
        choice: Option<GrammarSpec> = Optional(Notation::Choice),
        /// A grammar in Lark's notation, or in llama.cpp's (`root ::= …`).
        grammar: Option<GrammarSpec> = Optional(Notation::Grammar),
        /// Free text with parts that begin with a trigger, as XGrammar describes them, or its JSON text.
        structural_tag: Option<GrammarSpec> = Optional(Notation::StructuralTag),
        /// Accepted and not used.
        #[expect(dead_code)]
        disable_additional_properties: bool = Flag(false),
        /// Accepted and not used.
        #[expect(dead_code)]
        disable_fallback: bool = Flag(false),
    }
    refuses {
        disable_any_whitespace: "describe white space in a grammar",
        whitespace_pattern: "describe white space in a grammar",
    }
}

fields! {
    /// In every request whose prompt the chat template writes.
    TemplateFields {
        /// Variables of the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = Optional(TemplateSettings),
    }
    refuses {
        chat_template: "set it when the server starts, with `--chat-template`",
    }
}

fields! {
    /// What the chat template makes the prompt of.
    ConversationFields with template: TemplateFields {
        /// The conversation so far.
        messages: MessageList = Required(Messages),
        /// Functions that the model may call. Tools of other types are left out.
        tools: Option<Vec<Value>> = Optional(Tools),
        /// Whether the model may, must or must not call a function, or which one.
        tool_choice: Option<Value> = Optional(ToolChoice),
        /// False: at most one call.
        parallel_tool_calls: bool = Flag(true),
        /// How long the model should think, and whether: `none` turns thinking off, any other value turns it on.
        reasoning_effort: Option<&'static str> = Optional(Choice(EFFORTS)),
        /// Whether the model thinks, whatever `reasoning_effort` says; a variable of the template goes before both.
        enable_thinking: Option<bool> = Optional(Boolean),
        /// End the prompt with the beginning of an answer; by default unless the last message is continued.
        add_generation_prompt: Option<bool> = Optional(Boolean),
        /// Continue the last message.
        continue_final_message: bool = Flag(false),
        /// `none` leaves thoughts in the content, in the model's own notation; any other is as without the field.
        reasoning_format: Option<&'static str> = Optional(Choice(&["none", "auto", "deepseek"])),
        /// False: calls of tools stay text, in the model's own notation.
        parse_tool_calls: bool = Flag(true),
        /// Answers are text only.
        #[expect(dead_code)]
        modalities: Option<()> = Optional(Modalities),
    }
    refuses {
        documents: "write them into a message",
        function_call: "use `tool_choice`",
        functions: "use `tools`",
    }
}

fields! {
    /// `POST /v1/chat/completions`.
    ChatRequest with target: Target, conversation: ConversationFields, sampling: SamplingFields, queueing: Queueing {
        /// Tokens to generate at most; by default, and with -1, as many as fit into the context.
        max_completion_tokens: Option<Option<u32>> = Optional(MaxTokens { min: 1 })
            => max_tokens = Optional(MaxTokens { min: 1 })
            => n_predict = Optional(Predicted),
        /// Report the log-probabilities of the answer's tokens.
        logprobs: bool = Flag(false),
        /// Alternatives to report for each token; needs `logprobs`.
        top_logprobs: Option<u32> = Optional(ALTERNATIVES),
        /// llama.cpp's way to ask for `logprobs` with this many `top_logprobs`; 0: none.
        n_probs: Option<u32> = Probabilities,
        /// Begin the answer with the last message, if that is the assistant's.
        echo: bool = Flag(false),
    }
    refuses {
        add_special_tokens: "the chat template writes special tokens",
        audio: "answers are text only",
        input_audio: "models take text only",
        moderation: "no model judges requests or answers",
        web_search_options: "offer a search among `tools`",
    }
    ignores {
        prediction: "it would only save time",
        verbosity: "ask for it in a message",
    }
}

fields! {
    /// `POST /v1/completions`.
    CompletionRequest with target: Target, sampling: SamplingFields, queueing: Queueing {
        /// What to continue: a text, several, a list of token ids, or several lists.
        prompt: Prompts = Required(PromptsKind { most: Most::Prompts }),
        /// Tokens to generate at most; 16 by default, 0 only with `echo`; -1: as many as fit into the context.
        max_tokens: Option<Option<u32>> = Optional(MaxTokens { min: 0 })
            => max_completion_tokens = Optional(MaxTokens { min: 0 })
            => n_predict = Optional(Predicted),
        /// Report the log-probabilities of the answer's tokens, with this many alternatives.
        logprobs: Option<u32> = Optional(ALTERNATIVES) => n_probs = Probabilities,
        /// Begin each choice with its prompt.
        echo: bool = Flag(false),
        /// The text after a gap that follows the prompt, for models that can fill one.
        suffix: Option<String> = Optional(Text::ANY),
        /// Encode texts with the special tokens that the tokenizer adds.
        add_special_tokens: bool = Flag(true),
    }
    ignores {
        parse_tool_calls: "a completion is text as the model writes it",
        reasoning_format: "a completion is text as the model writes it",
    }
}

fields! {
    /// The form of vectors.
    VectorFields {
        /// Vectors as numbers (the default), as base64, or as bytes; the header `metadata` describes `bytes`.
        encoding_format: Option<&'static str> = Optional(Choice(&["float", "base64", "bytes", "bytes_only"])),
        /// The format of numbers in base64 and bytes; 32-bit floats by default.
        embed_dtype: Option<&'static str> = Optional(Choice(&["float32", "float16", "bfloat16"])),
        /// The order of their bytes; `little` by default.
        endianness: Option<&'static str> = Optional(Choice(&["native", "little", "big"])),
        /// Elements to keep of each vector.
        dimensions: Option<i64> = Optional(Integer { min: 1, max: Most::Embedding }),
        /// Which hidden states count: by default as the model's files say; others than `last` and `mean` of encoders
        /// only.
        pooling: Option<&'static str> = Optional(Choice(POOLINGS)),
        /// Scale vectors to length one.
        normalize: bool = Flag(true) => embd_normalize = EmbdNormalize => use_activation = Flag(true),
    }
    ignores {
        padding: "texts of different lengths are computed side by side",
    }
}

fields! {
    /// `POST /v1/embeddings`.
    EmbeddingRequest with target: Target, queueing: Queueing, form: VectorFields {
        /// What to embed: a text, several, a list of token ids, or several lists.
        input: Prompts = Required(PromptsKind { most: Most::Fixed(INPUTS_MAX) }),
        /// Encode texts with the special tokens that the tokenizer adds.
        add_special_tokens: bool = Flag(true),
        /// The name of the prompt of the model's files that is put before texts; the default one if there is one.
        prompt_name: Option<String> = Optional(Text::ANY),
    }
    refuses {
        messages: "`input` says what to embed",
    }
}

fields! {
    /// `POST /embedding`, as llama.cpp's clients send it.
    LlamaEmbeddingRequest with target: Target, queueing: Queueing {
        /// What to embed: a text, several, a list of token ids, or several lists.
        content: Option<Prompts> = Needed(Optional(PromptsKind { most: Most::Fixed(INPUTS_MAX) }))
            => input = Optional(PromptsKind { most: Most::Fixed(INPUTS_MAX) }),
        /// Which hidden states count: by default as the model's files say; others than `last` and `mean` of encoders
        /// only.
        pooling: Option<&'static str> = Optional(Choice(POOLINGS)),
        /// How vectors are scaled: 2 to length one, -1 not at all.
        embd_normalize: bool = EmbdNormalize,
    }
}

fields! {
    /// `POST /v1/embeddings` with a conversation, which the chat template writes.
    EmbeddingChatRequest with target: Target, conversation: ConversationFields, queueing: Queueing, form: VectorFields {
        /// End the prompt with the beginning of an answer.
        add_generation_prompt: bool = Flag(false),
    }
    refuses {
        add_special_tokens: "the chat template writes special tokens",
    }
}

fields! {
    /// `POST /v1/load_lora_adapter`.
    LoadAdapterRequest {
        /// The name that requests call it by.
        lora_name: String = Required(Text { bytes_max: ADAPTER_NAME_BYTES_MAX }),
        /// Where it is in the folder of --lora-folder.
        lora_path: String = Required(Text { bytes_max: ADAPTER_PATH_BYTES_MAX }),
        /// It replaces an adapter of this name.
        load_inplace: bool = Flag(false),
    }
    ignores {
        base_model_name: "the shapes of its tensors tell whether it is of the base",
        is_3d_lora_weight: "the shapes of its tensors tell it",
    }
}

fields! {
    /// `POST /v1/unload_lora_adapter`.
    UnloadAdapterRequest {
        /// The name of the adapter.
        lora_name: String = Required(Text { bytes_max: ADAPTER_NAME_BYTES_MAX }),
    }
    ignores {
        lora_int_id: "adapters are unloaded by name",
    }
}

fields! {
    /// `POST /models/load` and `POST /models/unload`.
    LoadRequest {
        /// A served name.
        model: String = Required(Text::ANY),
    }
}

fields! {
    /// `POST /v1/chat/completions/render` and `POST /apply-template`: a chat request, of which the rest is ignored.
    RenderChatRequest with target: Target, conversation: ConversationFields {
        /// Report where each token is in the prompt: its first character, and the one after its last.
        return_token_offsets: bool = Flag(false),
    }
}

fields! {
    /// `POST /v1/completions/render`: a completions request, of which the rest is ignored.
    RenderCompletionRequest with target: Target {
        /// Report where each token is in the prompt: its first character, and the one after its last.
        return_token_offsets: bool = Flag(false),
        /// What to encode: a text, several, a list of token ids, or several lists.
        prompt: Prompts = Required(PromptsKind { most: Most::Prompts }),
        /// Encode texts with the special tokens that the tokenizer adds.
        add_special_tokens: bool = Flag(true),
    }
}

fields! {
    /// `POST /tokenize` with a text, as vLLM's clients send it.
    TokenizeTextRequest with target: Target {
        /// The text.
        prompt: Prompts = Required(PromptsKind { most: Most::Fixed(1) }),
        /// Encode the text with the special tokens that the tokenizer adds.
        add_special_tokens: bool = Flag(true),
        /// Report the text of each token.
        return_token_strs: bool = Flag(false),
    }
}

fields! {
    /// `POST /tokenize` with a conversation.
    TokenizeChatRequest with target: Target, conversation: ConversationFields {
        /// Accepted and not used: the template writes all special tokens.
        #[expect(dead_code)]
        add_special_tokens: Option<bool> = Optional(Boolean),
        /// Report the text of each token.
        return_token_strs: bool = Flag(false),
    }
}

fields! {
    /// `POST /tokenize` with a text, as llama.cpp's clients send it.
    TokenizeContentRequest with target: Target {
        /// The text.
        content: String = Required(Text::ANY),
        /// Encode the text with the special tokens that the tokenizer adds.
        add_special: bool = Flag(false),
        /// Report the text of each token.
        with_pieces: bool = Flag(false),
        /// Read the names of special tokens in the text as such; false: as text.
        parse_special: bool = Flag(true),
    }
}

fields! {
    /// `POST /detokenize`.
    DetokenizeRequest with target: Target {
        /// Token ids.
        tokens: Vec<u32> = Required(TokenIds),
    }
}

fields! {
    /// How text is generated, as llama.cpp's clients say it.
    LlamaSettings with sampling: SamplingFields, queueing: Queueing {
        /// Tokens to generate at most; negative: as many as fit into the context. 0 computes the prompt and a token.
        n_predict: Option<Option<u32>> = Optional(Predicted)
            => max_tokens = Optional(Predicted)
            => max_completion_tokens = Optional(Predicted),
        /// Report the log-probabilities of the answer's tokens, with this many alternatives; 0: none.
        n_probs: Option<u32> = Probabilities => logprobs = Probabilities,
        /// Sampling temperature; 0 and less always take the likeliest token.
        temperature: Option<f32> = Optional(GreedyBelowZero),
        /// Sample from this many of the likeliest tokens; 0 and less keep all.
        top_k: Option<i64> = Optional(Integer { min: i32::MIN as i64, max: Most::Fixed(i32::MAX as i64) }),
        /// The only keys of a reply that is no stream; a path with slashes is a key of its own.
        response_fields: Option<Vec<String>> = Optional(Strings),
        /// One choice is generated here.
        #[expect(dead_code)]
        best_of: Option<()> = Optional(OneChoice),
    }
    ignores {
        parse_tool_calls: "a completion is text as the model writes it",
        reasoning_format: "a completion is text as the model writes it",
    }
}

fields! {
    /// `POST /completion`, as llama.cpp's clients send it.
    LlamaRequest with target: Target, settings: LlamaSettings {
        /// What to continue: a text, a list of token ids and texts, or a list of such prompts.
        prompt: Prompts = Required(PromptsKind { most: Most::Prompts }),
    }
}

fields! {
    /// `POST /infill`, as llama.cpp's clients send it.
    InfillRequest with target: Target, settings: LlamaSettings {
        /// The text before the gap.
        input_prefix: String = Required(Text::ANY),
        /// The text after the gap.
        input_suffix: String = Required(Text::ANY),
        /// Other files: objects with `filename` and `text`.
        input_extra: Option<Vec<(String, String)>> = Optional(ExtraFiles),
        /// What the answer begins with.
        prompt: Option<String> = Optional(Text::ANY),
    }
}
