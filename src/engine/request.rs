//! What a client asks for and what it gets back. A request is checked once, at the door; behind it nothing fails for
//! reasons of form.

use std::collections::BTreeMap;
use std::sync::Arc;

/// One prompt with its sampling parameters.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids; not empty, below the vocabulary.
    pub prompt: Arc<[u32]>,
    /// How to continue it.
    pub params: SamplingParams,
    /// Prompts with different salts never share cached blocks.
    pub cache_salt: Option<String>,
    /// Lower runs earlier; equal priorities run in order of arrival.
    pub priority: i32,
}

/// How tokens are drawn and when a choice ends. Defaults are vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Choices per prompt.
    pub n: u32,
    /// Tokens to generate at most; `None` is the room left in the context. Clamped to that room.
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    pub temperature: f32,
    /// In (0, 1].
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In [0, 1].
    pub min_p: f32,
    /// In (0, 2]; 1 is off.
    pub repetition_penalty: f32,
    /// In [-2, 2].
    pub presence_penalty: f32,
    /// In [-2, 2].
    pub frequency_penalty: f32,
    /// Added to logits.
    pub logit_bias: BTreeMap<u32, f32>,
    /// `None`: the engine draws one.
    pub seed: Option<u64>,
    /// Extra ids that end a choice.
    pub stop_token_ids: Vec<u32>,
    /// Go on after the model's end tokens.
    pub ignore_eos: bool,
    /// `Some(k)`: report each token's logprob and the k most likely alternatives.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            n: 1,
            max_tokens: None,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: None,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
        }
    }
}

/// A token id with its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token_id: u32,
    /// Natural logarithm of the raw probability.
    pub logprob: f32,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Present if asked for.
    pub logprob: Option<f32>,
    /// Most likely first; as many as asked for.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// Why a choice ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end token or a stop token id.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
}

/// Why a choice ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestError {
    /// The model gave NaN or all −∞ for this row.
    #[error("the model produced invalid numbers for this request")]
    NumericalError,
    /// The device was lost and did not come back.
    #[error("the GPU device was lost")]
    DeviceLost,
    /// The device refused the batch this request was in.
    #[error("the device failed on this request")]
    Internal,
    /// The server stopped before the request was done.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// What was counted for one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, tokens found in the prefix cache when the request was first admitted.
    pub cached_tokens: u32,
    /// Tokens generated, the one that ended the choice included.
    pub completion_tokens: u32,
}

/// What a choice's receiver yields: tokens, then exactly one `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next token.
    Token(Token),
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counters of this choice.
        usage: Usage,
    },
    /// The end, by a fault.
    Failed(RequestError),
}

/// Why a request was refused at the door.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The waiting queue is full: try again later.
    #[error("the queue is full ({limit} requests are waiting)")]
    Overloaded {
        /// Length of the queue.
        limit: u32,
    },
    /// The model is still loading.
    #[error("the model is still loading")]
    Loading,
    /// No new requests are taken.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine has ended.
    #[error("the GPU device was lost")]
    DeviceLost,
    /// A prompt must leave room for one token.
    #[error("the prompt has {tokens} tokens, but the context holds {limit} and one must be left to generate")]
    PromptTooLong {
        /// Tokens in the prompt.
        tokens: u32,
        /// The model's context as served.
        limit: u32,
    },
    /// A field is out of its range.
    #[error("{field}: {message}")]
    Invalid {
        /// Name of the field as OpenAI or vLLM spells it.
        field: &'static str,
        /// What is wrong, with the value.
        message: String,
    },
}
