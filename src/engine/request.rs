//! What a client asks for and what it gets back. A request is checked once, at the door; behind it nothing fails for
//! reasons of form.

use crate::model::GenerationDefaults;
use crate::plan::inputs::TOP_LOGPROBS_MAX;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use crate::plan::inputs::DrawParams;

/// One prompt with its sampling parameters.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids; not empty, below the vocabulary.
    pub prompt: Arc<[u32]>,
    /// How to continue it.
    pub params: SamplingParams,
    /// Prompts with different salts never share cached blocks.
    pub cache_salt: Option<String>,
    /// Lower runs earlier. Requests of one priority are served round-robin by client, then in order of arrival.
    pub priority: i32,
    /// Who asks: waiting requests of one priority are served round-robin by client.
    pub client: u32,
    /// `Some`: nothing is generated, the prompt's embedding is wanted.
    pub pooling: Option<Pooling>,
    /// Say how much of the prompt was found in the prefix cache and why it was not more.
    pub explain_prefix: bool,
}

/// How the final hidden states of a prompt's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// That of the last token.
    Last,
    /// Their mean.
    Mean,
}

/// How tokens are drawn and when a choice ends. Defaults are vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Choices per prompt.
    pub n: u32,
    /// Tokens to generate at most; `None` is the room left in the context. Clamped to that room.
    pub max_tokens: Option<u32>,
    /// Temperature, thresholds and penalties; each in the range of its name, as [`TEMPERATURE`].
    pub draw: DrawParams,
    /// Added to logits; at most [`LOGIT_BIAS_MAX`], each in [`LOGIT_BIAS`].
    pub logit_bias: BTreeMap<u32, f32>,
    /// `None`: the engine draws one.
    pub seed: Option<u64>,
    /// Extra ids that end a choice.
    pub stop_token_ids: Vec<u32>,
    /// Go on after the model's end tokens.
    pub ignore_eos: bool,
    /// Tokens before which no end or stop token is drawn.
    pub min_tokens: u32,
    /// `Some(k)`: report each token's logprob and the k most likely alternatives.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt, all but the first.
    pub prompt_logprobs: Option<u32>,
    /// What every choice has to keep to.
    pub constraint: Option<SharedConstraint>,
}

/// A rule about which tokens may follow each other, for all choices of a request: a grammar, seen by an engine that
/// knows no text.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Where a choice stands before its first token.
    fn start(&self) -> Box<dyn ConstraintState>;
}

/// Where one choice stands within its [`Constraint`]. It is asked for a mask before a token is drawn, and told every
/// token as soon as its id is known.
pub trait ConstraintState: fmt::Debug + Send {
    /// The same state for another choice.
    fn fork(&self) -> Box<dyn ConstraintState>;

    /// Sets the bits of the tokens that may come next in `mask`, `⌈vocab / 32⌉` words that are zero before: bit
    /// `id % 32` of word `id / 32`. `false`: any token may come, and `mask` does not matter.
    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable>;

    /// Takes the next token; `true` if nothing may follow it.
    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable>;

    /// Tokens that must come next, as far as that is known; they are accepted one by one afterwards.
    fn forced(&mut self) -> Vec<u32>;
}

/// Nothing may come next, or finding out costs too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no token can follow")]
pub struct Unsatisfiable;

/// A [`Constraint`] of one request; equal only to itself.
#[derive(Clone, Debug)]
pub struct SharedConstraint(pub Arc<dyn Constraint>);

impl PartialEq for SharedConstraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            n: 1,
            max_tokens: None,
            draw: DrawParams::default(),
            logit_bias: BTreeMap::new(),
            seed: None,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
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

/// One token with what was asked of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Present if asked for.
    pub logprob: Option<f32>,
    /// Most likely first; as many as asked for.
    pub top_logprobs: Vec<TokenLogprob>,
    /// As in [`Usage`]: told with every token, for a reader that ends the choice itself (a stop string) and so never
    /// sees its `Finished`.
    pub cached_tokens: u32,
}

/// Why a choice finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end token or a stop token id.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
}

/// Why a choice failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestError {
    /// The model gave NaN or all −∞ for this row.
    #[error("the model produced invalid numbers (NaN or infinity) for this request")]
    NumericalError,
    /// This request's grammar allows no further token, or finding one costs too much.
    #[error("the grammar allows no further token at this point of the answer")]
    Grammar,
    /// The device was lost and did not come back.
    #[error("the GPU device was lost")]
    DeviceLost,
    /// The device refused the batch this request was in.
    #[error("the device failed while computing this request")]
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

/// What kept a prompt's cached prefix from being longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefixEnd {
    /// Nothing: every block that can be shared was found. The last token is always computed, and only full blocks are
    /// shared.
    EndOfPrompt,
    /// Nothing remembered goes on like this prompt.
    Difference,
    /// The same client has computed it under another salt.
    Salt,
    /// It was computed once, and its blocks have been taken for something else or were never finished.
    Eviction,
    /// Prefix caching is off.
    Disabled,
}

/// How much of a prompt was found in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixReport {
    /// Leading tokens that were found.
    pub cached_tokens: u32,
    /// Leading tokens that some remembered sequence of the same salt has too; at least those found.
    pub common_tokens: u32,
    /// The first token that no such sequence has.
    pub differing: Option<u32>,
    /// Why no more was found.
    pub end: PrefixEnd,
}

/// What a request asked to learn about its prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptEvent {
    /// Sent on admission, to the first choice.
    Prefix(PrefixReport),
    /// Logprobs of the prompt's next tokens, from the second token on, each once and in order.
    Logprobs(Arc<[Token]>),
    /// The embedding: as long as the model's hidden states, not normalised.
    Embedding(Vec<f32>),
}

/// What a choice's receiver yields: tokens, then exactly one `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Before the first token.
    Prompt(PromptEvent),
    /// The next token.
    Token(Token),
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counters of this choice.
        usage: Usage,
    },
    /// The end, by an error.
    Failed(RequestError),
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The waiting queue is full: try again later.
    #[error("the queue is full ({limit} requests are waiting); try again later")]
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
    #[error("`{field}` {message}")]
    Invalid {
        /// Name of the field as OpenAI or vLLM spells it.
        field: &'static str,
        /// What it must be and what it is, to follow the name.
        message: String,
    },
}

/// The values that a numeric parameter may have, NaN never among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    /// The smallest value, or the bound that every value is above.
    pub min: f32,
    /// The largest value.
    pub max: f32,
    /// Whether `min` itself is left out.
    pub above_min: bool,
}

impl NumberRange {
    /// `min..=max`.
    pub const fn new(min: f32, max: f32) -> Self {
        Self { min, max, above_min: false }
    }

    /// Above `min`, up to `max`.
    pub const fn above(min: f32, max: f32) -> Self {
        Self { min, max, above_min: true }
    }

    /// Whether a parameter may have this value.
    pub fn contains(self, value: f32) -> bool {
        (self.min..=self.max).contains(&value) && !(self.above_min && value == self.min)
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, above_min } = self;
        if *above_min {
            write!(formatter, "above {min}, at most {max}")
        } else {
            write!(formatter, "from {min} to {max}")
        }
    }
}

/// Range of [`DrawParams::temperature`].
pub const TEMPERATURE: NumberRange = NumberRange::new(0.0, 2.0);
/// Range of [`DrawParams::top_p`].
pub const TOP_P: NumberRange = NumberRange::above(0.0, 1.0);
/// Range of [`DrawParams::min_p`].
pub const MIN_P: NumberRange = NumberRange::new(0.0, 1.0);
/// Range of [`DrawParams::repetition_penalty`].
pub const REPETITION_PENALTY: NumberRange = NumberRange::above(0.0, 2.0);
/// Range of [`DrawParams::presence_penalty`] and of [`DrawParams::frequency_penalty`].
pub const PENALTY: NumberRange = NumberRange::new(-2.0, 2.0);
/// Range of one entry of [`SamplingParams::logit_bias`].
pub const LOGIT_BIAS: NumberRange = NumberRange::new(-100.0, 100.0);
/// Most choices of one prompt.
pub const CHOICES_MAX: u32 = 128;
/// Most alternatives that are reported for a token.
pub const LOGPROBS_MAX: u32 = TOP_LOGPROBS_MAX;
/// Most entries of a logit bias.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Most stop token ids.
pub const STOP_TOKEN_IDS_MAX: usize = 128;
/// Most end tokens of a model that a minimum of tokens holds back.
pub const EOS_TOKEN_IDS_MAX: usize = 64;
/// Most characters of a cache salt.
pub const CACHE_SALT_LEN_MAX: usize = 128;
/// A lower temperature means greedy: dividing by it would overflow.
const TEMPERATURE_MIN: f32 = 1e-5;
/// A smaller repetition penalty would only make logits infinite.
const REPETITION_PENALTY_MIN: f32 = 1e-3;

impl Request {
    /// Checks everything about a request that a model with `vocab` tokens and a context of `model_len_max` must know.
    pub fn check(&self, vocab: u32, model_len_max: u32) -> Result<(), SubmitError> {
        let prompt_len = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        if prompt_len == 0 {
            return invalid("prompt", "must have at least one token".into());
        }
        if prompt_len >= model_len_max {
            return Err(SubmitError::PromptTooLong { tokens: prompt_len, limit: model_len_max });
        }
        check_ids("prompt", self.prompt.iter(), vocab)?;
        let in_alphabet = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if let Some(salt) = &self.cache_salt
            && !((1..=CACHE_SALT_LEN_MAX).contains(&salt.len()) && salt.bytes().all(in_alphabet))
        {
            return invalid("cache_salt", format!("must be 1 to {CACHE_SALT_LEN_MAX} of [A-Za-z0-9_-]"));
        }
        self.params.check(vocab, model_len_max)
    }
}

impl SamplingParams {
    /// What a model's generation_config.json says, and the usual where it says nothing.
    pub fn from_defaults(defaults: &GenerationDefaults) -> Self {
        Self { max_tokens: defaults.max_new_tokens, draw: defaults.draw, ..Self::default() }
    }

    fn check(&self, vocab: u32, model_len_max: u32) -> Result<(), SubmitError> {
        if !(1..=CHOICES_MAX).contains(&self.n) {
            return invalid("n", format!("must be from 1 to {CHOICES_MAX}, not {}", self.n));
        }
        if self.max_tokens == Some(0) {
            return invalid("max_tokens", "must be at least 1".into());
        }
        if self.min_tokens > model_len_max {
            return invalid("min_tokens", format!("must be at most {model_len_max}, not {}", self.min_tokens));
        }
        if let Some(most) = self.max_tokens.filter(|most| self.min_tokens > *most) {
            return invalid("min_tokens", format!("must not be above max_tokens ({most}), but is {}", self.min_tokens));
        }
        for (field, count) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(count) = count.filter(|count| *count > LOGPROBS_MAX) {
                return invalid(field, format!("must be at most {LOGPROBS_MAX}, not {count}"));
            }
        }
        check_range("temperature", self.draw.temperature, TEMPERATURE)?;
        check_range("min_p", self.draw.min_p, MIN_P)?;
        check_range("presence_penalty", self.draw.presence_penalty, PENALTY)?;
        check_range("frequency_penalty", self.draw.frequency_penalty, PENALTY)?;
        check_range("top_p", self.draw.top_p, TOP_P)?;
        check_range("repetition_penalty", self.draw.repetition_penalty, REPETITION_PENALTY)?;
        check_count("logit_bias", self.logit_bias.len(), LOGIT_BIAS_MAX)?;
        check_count("stop_token_ids", self.stop_token_ids.len(), STOP_TOKEN_IDS_MAX)?;
        check_ids("logit_bias", self.logit_bias.keys(), vocab)?;
        check_ids("stop_token_ids", self.stop_token_ids.iter(), vocab)?;
        self.logit_bias.values().try_for_each(|&bias| check_range("logit_bias", bias, LOGIT_BIAS))
    }

    /// The same parameters without values that only overflow or vanish: a tiny temperature is greedy, a tiny `top_p`
    /// or repetition penalty is raised.
    pub fn normalized(mut self) -> Self {
        if self.draw.temperature < TEMPERATURE_MIN {
            self.draw.temperature = 0.0;
        }
        // A device may take a denormal number for zero, which would keep no token.
        self.draw.top_p = self.draw.top_p.max(f32::MIN_POSITIVE);
        self.draw.repetition_penalty = self.draw.repetition_penalty.max(REPETITION_PENALTY_MIN);
        self
    }
}

/// `message` is what follows the field's name: "must be …".
fn invalid<T>(field: &'static str, message: String) -> Result<T, SubmitError> {
    Err(SubmitError::Invalid { field, message })
}

fn check_range(field: &'static str, value: f32, range: NumberRange) -> Result<(), SubmitError> {
    if range.contains(value) { Ok(()) } else { invalid(field, format!("must be a number {range}, not {value}")) }
}

fn check_count(field: &'static str, count: usize, most: usize) -> Result<(), SubmitError> {
    if count <= most { Ok(()) } else { invalid(field, format!("must have at most {most} entries, not {count}")) }
}

fn check_ids<'a>(field: &'static str, mut ids: impl Iterator<Item = &'a u32>, vocab: u32) -> Result<(), SubmitError> {
    match ids.find(|&&id| id >= vocab) {
        Some(id) => invalid(field, format!("must hold token ids from 0 to {}, not {id}", vocab.saturating_sub(1))),
        None => Ok(()),
    }
}
