//! Requests and their events. A request is validated once, on submission; an accepted request is well-formed.

use crate::model::GenerationDefaults;
pub use crate::model::adapters::{Adapter, AdapterLayout, SlotContent};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use super::draft_report::{DraftReport, DraftSkip};
pub use crate::model::DrawDefaults;
pub use crate::plan::inputs::DrawParams;

use crate::plan::inputs::{AXES, SECOND_TEXT};

/// One prompt with its sampling parameters.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids; not empty, each below the vocabulary size.
    pub prompt: Arc<[u32]>,
    /// The first token of the second text of a pair, of a model that tells them apart.
    pub second_text: Option<u32>,
    /// Parts of images, in the order of the tokens that stand for them.
    pub tiles: Arc<[Tile]>,
    /// How to sample the continuation.
    pub params: SamplingParams,
    /// Prompts with different salts never share cached blocks.
    pub cache_salt: Option<String>,
    /// Whose cached blocks the prompt may share; `None`: those that belong to nobody. Unlike blocks with a salt, they
    /// go to host memory and to files.
    pub cache_owner: Option<CacheOwner>,
    /// What changes the model's matrices: an adapter, or several with factors.
    pub adapter: Option<Arc<SlotContent>>,
    /// A lower value runs earlier. Requests of equal priority are served round-robin by client, then in order of
    /// arrival.
    pub priority: i32,
    /// The client, for round-robin: waiting requests of equal priority are served round-robin by client.
    pub client: u32,
    /// `Some`: return the prompt's embedding instead of generating tokens.
    pub pooling: Option<Pooling>,
    /// Only what is known of the prompt is wanted, not the token that follows it. Then the prompt may fill the context.
    pub prompt_only: bool,
    /// Report how much of the prompt was found in the prefix cache, and why not more.
    pub explain_prefix: bool,
    /// Report with every token what became of the drafts.
    pub explain_drafts: bool,
    /// Report when the request is admitted.
    pub report_admission: bool,
    /// Report how much of the prompt is computed, after every step with tokens of it.
    pub report_progress: bool,
    /// The answer as it is expected, token by token. With speculation, it is where the drafts of every choice come
    /// from; what it says never changes an answer.
    pub predicted: Option<Arc<[u32]>>,
}

/// A part of an image that the model's tower reads at once, and the tokens of the prompt that stand for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// Position of the first of these tokens.
    pub start: u32,
    /// Number of rows that the tower makes of it; one of these tokens stands for each.
    pub rows: u32,
    /// Number of these tokens that follow each other: one other token comes before the next so many.
    pub run: u32,
    /// Tells it from other tiles: those with equal digests have the same rows.
    pub digest: [u8; 32],
    /// `[patches × columns]`: what the tower reads of each patch.
    pub patches: Arc<[f32]>,
    /// Per patch: row · across + column, which is its index in the tower's table of positions.
    pub positions: Arc<[u32]>,
    /// Patches side by side.
    pub across: u32,
}

impl Tile {
    /// Position after the last of its tokens.
    pub(super) fn end(&self) -> u32 {
        let last = self.position(self.rows.saturating_sub(1));
        last.saturating_add(u32::from(self.rows > 0))
    }

    /// Position of the token that stands for a row.
    pub fn position(&self, row: u32) -> u32 {
        let others = row / self.run.max(1);
        self.start.saturating_add(row).saturating_add(others)
    }

    /// The place of a patch along each axis.
    pub(super) fn place(&self, position: u32) -> [u32; AXES] {
        let across = self.across.max(1);
        [0, position / across, position % across]
    }

    /// Number of its patches.
    pub(super) fn patch_count(&self) -> u32 {
        u32::try_from(self.positions.len()).unwrap_or(u32::MAX)
    }
}

/// What images a model reads, and how many rows of them it holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRoom {
    /// Rows of all images that are in use at once.
    pub rows: u32,
    /// Numbers of a patch.
    pub columns: u32,
    /// Patches of a tile at most, and of the table of positions.
    pub patches: u32,
    /// Patches that become one row.
    pub merged: u32,
}

impl ImageRoom {
    /// Rows of a tile at most.
    pub fn tile_rows(&self) -> u32 {
        self.patches / self.merged.max(1)
    }
}

/// A digest of what a client proves who it is with.
pub type CacheOwner = [u8; 32];

/// How the final hidden states of a prompt's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The state of the first token, of a model that computes whole sequences.
    First,
    /// The state of the last token.
    Last,
    /// The mean over all tokens.
    Mean,
    /// The states of all tokens, one after the other, of a model that computes whole sequences.
    All,
}

/// How tokens are sampled and when a choice ends. Defaults are vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Number of choices per prompt.
    pub n: u32,
    /// Maximum tokens to generate. `None`: as many as the context has room for. Larger values are clamped to that.
    pub max_tokens: Option<u32>,
    /// Temperature, thresholds and penalties. Each has a range constant of the same name, such as [`TEMPERATURE`].
    pub draw: DrawParams,
    /// The penalties count this many of the last tokens, of prompt and answer alike; 0 is none. `None`: the repetition
    /// penalty counts all tokens, the others those of the answer.
    pub penalty_window: Option<u32>,
    /// Values added to the logits of token ids; at most [`LOGIT_BIAS_MAX`] entries, each in the range [`LOGIT_BIAS`].
    pub logit_bias: BTreeMap<u32, f32>,
    /// Random seed; `None`: the engine chooses one.
    pub seed: Option<u64>,
    /// Additional token ids that end a choice.
    pub stop_token_ids: Vec<u32>,
    /// Continue after the model's end tokens.
    pub ignore_eos: bool,
    /// Minimum tokens to generate before an end or stop token can be sampled.
    pub min_tokens: u32,
    /// `Some(k)`: report each token's logprob and the k most likely alternatives.
    pub logprobs: Option<u32>,
    /// The same for every token of the prompt except the first.
    pub prompt_logprobs: Option<u32>,
    /// Constraint on the tokens of every choice.
    pub constraint: Option<SharedConstraint>,
    /// Search for the likeliest answers instead of sampling. Temperature and thresholds have no effect.
    pub beams: Option<BeamParams>,
}

/// How to search for the likeliest answers: beam search, as Hugging Face's transformers does it. The `n` best answers
/// found are the choices, best first. Alternatives of a token are those that the constraint allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParams {
    /// Number of beams, at most [`BEAMS_MAX`] and at least the number of choices.
    pub width: u32,
    /// An answer's score is the sum of its logprobs, divided by its length to the power of this; in the range
    /// [`LENGTH_PENALTY`].
    pub length_penalty: f32,
    /// End the search as soon as `width` answers are found, though a better one may follow.
    pub early_stopping: bool,
}

/// The part of a KV pool that limits how long beams may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeamRoom {
    /// Tokens per block.
    pub block_size: u32,
    /// Per KV group: number of blocks, and the maximum that one sequence holds at once.
    pub groups: Vec<(u32, u32)>,
}

impl BeamRoom {
    /// Maximum tokens of each of `width` beams after a prompt, so that they fit the pool even if they share nothing but
    /// the full blocks of the prompt. At most the prompt's length: not one token fits.
    pub fn tokens_max(&self, prompt_len: u32, width: u32) -> u32 {
        let shared = prompt_len / self.block_size;
        self.groups
            .iter()
            .map(|&(blocks, most)| {
                if most.saturating_mul(width) <= blocks {
                    return u32::MAX;
                }
                let own = blocks.saturating_sub(shared) / width.max(1);
                (shared + own).saturating_mul(self.block_size)
            })
            .min()
            .unwrap_or(u32::MAX)
    }
}

/// A rule about which tokens may follow each other, for all choices of a request. It is how the engine, which knows no
/// text, sees a grammar.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// The state before a choice's first token.
    fn start(&self) -> Box<dyn ConstraintState>;
}

/// The state of one choice within its [`Constraint`]. The engine asks it for a mask before each token is drawn, and
/// passes it every token as soon as its id is known.
pub trait ConstraintState: fmt::Debug + Send {
    /// A copy of the state for another choice.
    fn fork(&self) -> Box<dyn ConstraintState>;

    /// Sets the bits of the allowed next tokens in `mask`: bit `id % 32` of word `id / 32`. `mask` has `⌈vocab / 32⌉`
    /// words, all zero on entry. Returns `false` if any token is allowed; `mask` is then ignored.
    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable>;

    /// Takes the next token. Returns `true` if nothing may follow it.
    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable>;

    /// Tokens that must come next, as far as known. The engine passes them to `accept` one by one afterwards.
    fn forced(&mut self) -> Vec<u32>;
}

/// No token may come next, or finding one costs too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no token can follow")]
pub struct Unsatisfiable;

/// A [`Constraint`] of one request. It is equal only to itself.
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
            penalty_window: None,
            logit_bias: BTreeMap::new(),
            seed: None,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
            beams: None,
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

/// One token with the requested details.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Log-probability, if requested.
    pub logprob: Option<f32>,
    /// Its place among all tokens by log-probability, 1 for the likeliest, if that was requested. Beams do not count
    /// it.
    pub rank: Option<u32>,
    /// The most likely tokens, best first; as many as requested.
    pub top_logprobs: Vec<TokenLogprob>,
    /// As in [`Usage`]. Every token carries it, because a reader that ends the choice itself (at a stop string) never
    /// sees its `Finished`.
    pub cached: Cached,
    /// What became of the choice's drafts up to this token, if requested.
    pub drafts: Option<DraftReport>,
}

/// Why a choice finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end token or a stop token id was generated.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

/// Why a choice failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestError {
    /// The model's logits for this row were NaN or all −∞.
    #[error("the model produced invalid numbers (NaN or infinity) for this request")]
    NumericalError,
    /// A beam search found fewer answers than choices.
    #[error("the grammar allows fewer answers than `n` choices")]
    TooFewAnswers,
    /// This request's grammar allows no further token, or finding one costs too much.
    #[error("the grammar allows no further token at this point of the answer")]
    Grammar,
    /// The device was lost and did not come back.
    #[error("the device was lost")]
    DeviceLost,
    /// The device failed to compute the batch that contained this request.
    #[error("the device failed while computing this request")]
    Internal,
    /// The server stopped before the request was done.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Numbers of a prompt's leading tokens that were found in the prefix cache. The greater one found more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cached {
    /// In any tier.
    pub all: u32,
    /// Those of them whose keys and values came from host memory.
    pub host: u32,
    /// Those of them whose keys and values were read from disk.
    pub disk: u32,
}

impl std::iter::Sum for Cached {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, next| Self {
            all: sum.all + next.all,
            host: sum.host + next.host,
            disk: sum.disk + next.disk,
        })
    }
}

/// Token counts of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the prefix cache when the request was first admitted.
    pub cached: Cached,
    /// Number of generated tokens, including the one that ended the choice.
    pub completion_tokens: u32,
}

/// Why a prompt's cached prefix was not longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefixEnd {
    /// Every block that can be shared was found. The last token is always computed, and only full blocks are shared.
    EndOfPrompt,
    /// The prompt differs from every remembered sequence at this point.
    Difference,
    /// The same client has computed more of the prompt under another salt.
    Salt,
    /// More of the prompt was computed once, but its blocks were reused or never completed.
    Eviction,
    /// More blocks were found, but of a model with recurrent states no snapshot at the end of any of them.
    NoSnapshot,
    /// Prefix caching is off.
    Disabled,
}

impl PrefixEnd {
    /// All of them, in order.
    pub const ALL: [Self; 6] = [
        Self::EndOfPrompt,
        Self::Difference,
        Self::Salt,
        Self::Eviction,
        Self::NoSnapshot,
        Self::Disabled,
    ];

    /// Its name in metrics and replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::EndOfPrompt => "end_of_prompt",
            Self::Difference => "difference",
            Self::Salt => "salt",
            Self::Eviction => "eviction",
            Self::NoSnapshot => "no_snapshot",
            Self::Disabled => "disabled",
        }
    }
}

/// How much of a prompt was found in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixReport {
    /// Leading tokens found in the cache.
    pub cached: Cached,
    /// Number of leading tokens shared with some remembered sequence of the same salt; at least those found.
    pub common_tokens: u32,
    /// Token id after the common tokens: the first that differs from every such sequence.
    pub differing: Option<u32>,
    /// Why not more was found.
    pub end: PrefixEnd,
}

/// How much of a prompt is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached: u32,
    /// Tokens of the prompt that are computed, those included.
    pub processed: u32,
}

/// Information about the prompt that the request asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptEvent {
    /// The request waits no longer; sent to its first choice, before anything else, if requested.
    Admitted {
        /// The seed that its tokens are drawn with.
        seed: u64,
    },
    /// How much of the prompt is computed; sent to the first choice on admission and after each step, if requested.
    Progress(Progress),
    /// Prefix cache report, sent to the first choice on admission.
    Prefix(PrefixReport),
    /// Logprobs of the next prompt tokens, starting with the second token; each is sent once, in order.
    Logprobs(Arc<[Token]>),
    /// The embedding, as long as the model's hidden states and not normalized; with [`Pooling::All`], those of all
    /// tokens.
    Embedding(Vec<f32>),
}

/// What a choice's receiver yields: tokens, then exactly one `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Information about the prompt, before the first token.
    Prompt(PromptEvent),
    /// The next token.
    Token(Token),
    /// The choice is complete.
    Finished {
        /// Why it finished.
        reason: FinishReason,
        /// Token counts of this choice.
        usage: Usage,
    },
    /// The choice ended with an error.
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
    /// The server no longer accepts requests.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine has ended: it lost the device or panicked.
    #[error("the device was lost")]
    DeviceLost,
    /// The prompt does not fit the context, or leaves no room for a generated token.
    #[error(
        "the prompt has {tokens} tokens, but the context holds {limit}, of which one is left to generate"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        tokens: u32,
        /// The model's context as served.
        limit: u32,
    },
    /// A field is out of its range.
    #[error("`{field}` {message}")]
    Invalid {
        /// Name of the field, as OpenAI or vLLM spell it.
        field: &'static str,
        /// Requirement and actual value; printed after the field's name.
        message: String,
    },
}

/// Range of a numeric parameter. NaN is never valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    /// Lower bound.
    pub min: f32,
    /// Largest value.
    pub max: f32,
    /// Whether `min` itself is excluded.
    pub above_min: bool,
}

impl NumberRange {
    /// The range `min..=max`.
    pub const fn new(min: f32, max: f32) -> Self {
        Self {
            min,
            max,
            above_min: false,
        }
    }

    /// The range above `min`, up to and including `max`.
    pub const fn above(min: f32, max: f32) -> Self {
        Self {
            min,
            max,
            above_min: true,
        }
    }

    /// Whether the value is within the range.
    pub fn contains(self, value: f32) -> bool {
        (self.min..=self.max).contains(&value) && !(self.above_min && value == self.min)
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            min,
            max,
            above_min,
        } = self;
        if *above_min {
            write!(formatter, "above {min}, at most {max}")
        } else {
            write!(formatter, "from {min} to {max}")
        }
    }
}

/// Range of [`DrawParams::temperature`].
pub const TEMPERATURE: NumberRange = NumberRange::new(0.0, 100.0);
/// Range of [`DrawParams::top_p`].
pub const TOP_P: NumberRange = NumberRange::above(0.0, 1.0);
/// Range of [`DrawParams::min_p`].
pub const MIN_P: NumberRange = NumberRange::new(0.0, 1.0);
/// Range of [`DrawParams::repetition_penalty`].
pub const REPETITION_PENALTY: NumberRange = NumberRange::above(0.0, 1000.0);
/// Range of [`DrawParams::presence_penalty`] and of [`DrawParams::frequency_penalty`].
pub const PENALTY: NumberRange = NumberRange::new(-2.0, 2.0);
/// Range of [`BeamParams::length_penalty`].
pub const LENGTH_PENALTY: NumberRange = NumberRange::new(-10.0, 10.0);
/// Range of the factor of an adapter in an answer.
pub const ADAPTER_SCALE: NumberRange = NumberRange::new(-1000.0, 1000.0);
/// Range of one entry of [`SamplingParams::logit_bias`].
pub const LOGIT_BIAS: NumberRange = NumberRange::new(-100.0, 100.0);
/// Maximum choices per prompt.
pub const CHOICES_MAX: u32 = 128;
/// Maximum alternatives reported per token.
pub const LOGPROBS_MAX: u32 = 20;
/// Maximum beams of a search.
pub const BEAMS_MAX: u32 = 16;
/// Maximum entries of a logit bias.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Maximum number of stop token ids.
pub const STOP_TOKEN_IDS_MAX: usize = 128;
/// Maximum number of a model's end tokens that `min_tokens` forbids.
pub const EOS_TOKEN_IDS_MAX: usize = 64;
/// Maximum bytes of a cache salt.
pub const CACHE_SALT_LEN_MAX: usize = 1024;
/// A lower temperature means greedy sampling, because dividing by it would overflow.
const TEMPERATURE_MIN: f32 = 1e-5;
/// A smaller repetition penalty would only make logits infinite.
const REPETITION_PENALTY_MIN: f32 = 1e-3;

/// Checks a cache salt: any text of 1 to [`CACHE_SALT_LEN_MAX`] bytes, because only its hash is compared.
///
/// # Errors
/// What it must be, without the field's name.
pub fn check_cache_salt(salt: &str) -> Result<(), String> {
    if (1..=CACHE_SALT_LEN_MAX).contains(&salt.len()) {
        Ok(())
    } else {
        Err(format!("must have 1 to {CACHE_SALT_LEN_MAX} bytes"))
    }
}

impl Request {
    /// Validates a request for a model with `vocab` tokens and a context of `max_model_len` tokens.
    pub fn check(&self, vocab: u32, max_model_len: u32) -> Result<(), SubmitError> {
        let prompt_len = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        if prompt_len == 0 {
            return invalid("prompt", "must have at least one token".into());
        }
        let leaves_room = self.pooling.is_none() && !self.prompt_only;
        if prompt_len > max_model_len - u32::from(leaves_room) {
            return Err(SubmitError::PromptTooLong {
                tokens: prompt_len,
                limit: max_model_len,
            });
        }
        check_ids("prompt", self.prompt.iter(), vocab)?;
        if self.second_text.is_some_and(|first| first > prompt_len) {
            return invalid("second_text", "must not be after the prompt".into());
        }
        check_ids(
            "prediction",
            self.predicted.iter().flat_map(|predicted| predicted.iter()),
            vocab,
        )?;
        self.check_without_prompt(vocab, max_model_len)
    }

    /// Checks the parts of its images: in order, within the prompt, of the form that the tower reads, and not more than
    /// can be held.
    pub(super) fn check_tiles(&self, room: Option<&ImageRoom>) -> Result<(), SubmitError> {
        if self.tiles.is_empty() {
            return Ok(());
        }
        let Some(room) = room else {
            return invalid("images", "are given, but this model reads text only".into());
        };
        let rows: u64 = self.tiles.iter().map(|tile| u64::from(tile.rows)).sum();
        if rows > room.rows.into() {
            let message = format!(
                "have {rows} rows, but at most {} are held at once (max_image_rows)",
                room.rows
            );
            return invalid("images", message);
        }
        let mut end = 0;
        for tile in self.tiles.iter() {
            let count = tile.patch_count();
            if count > room.patches {
                let message = format!(
                    "have one of {count} patches, but the tower computes at most {} at once",
                    room.patches
                );
                return invalid("images", message);
            }
            let is_whole = count.is_multiple_of(room.merged) && tile.rows == count / room.merged;
            let is_known = tile
                .positions
                .iter()
                .all(|position| *position < room.patches);
            let numbers = u64::from(count) * u64::from(room.columns);
            let is_form = tile.rows > 0 && tile.run > 0 && tile.across > 0 && is_whole && is_known;
            if !is_form || tile.patches.len() as u64 != numbers || tile.start < end {
                return invalid(
                    "images",
                    "are not of the form that the model's tower reads".into(),
                );
            }
            end = tile.end();
        }
        if end as usize > self.prompt.len() {
            return invalid(
                "images",
                "have more rows than the prompt has tokens for".into(),
            );
        }
        Ok(())
    }

    /// The prompt as the embedding reads it: tokens of a second text are marked.
    pub(super) fn marked_prompt(&self) -> Vec<u32> {
        let mut tokens = self.prompt.to_vec();
        let first = self
            .second_text
            .map_or(tokens.len(), |first| first as usize);
        tokens[first..].iter_mut().for_each(|id| *id |= SECOND_TEXT);
        tokens
    }

    /// Checks that the beams of a search fit an engine with `max_num_seqs` sequences and this much room.
    pub fn check_beams(&self, max_num_seqs: u32, room: &BeamRoom) -> Result<(), SubmitError> {
        let Some(BeamParams { width, .. }) = self.params.beams else {
            return Ok(());
        };
        if width > max_num_seqs {
            return invalid(
                "best_of",
                format!("must be at most {max_num_seqs}, which run at once, not {width}"),
            );
        }
        let prompt_len = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        if room.tokens_max(prompt_len, width) <= prompt_len {
            let message = format!(
                "is {width}, but the KV pool does not hold so many beams after this prompt"
            );
            return invalid("best_of", message);
        }
        Ok(())
    }

    /// The part of [`Self::check`] that needs no prompt, for callers that want it before they encode one.
    pub fn check_without_prompt(&self, vocab: u32, max_model_len: u32) -> Result<(), SubmitError> {
        if let Some(salt) = &self.cache_salt {
            check_cache_salt(salt).or_else(|message| invalid("cache_salt", message))?;
        }
        self.params.check(vocab, max_model_len)
    }
}

impl SamplingParams {
    /// The values of a model's generation_config.json; the usual defaults where it is silent.
    pub fn from_defaults(defaults: &GenerationDefaults) -> Self {
        Self {
            max_tokens: defaults.max_new_tokens,
            draw: defaults.draw.over(DrawParams::default()),
            ..Self::default()
        }
    }

    fn check(&self, vocab: u32, max_model_len: u32) -> Result<(), SubmitError> {
        if !(1..=CHOICES_MAX).contains(&self.n) {
            return invalid(
                "n",
                format!("must be from 1 to {CHOICES_MAX}, not {}", self.n),
            );
        }
        if self.max_tokens == Some(0) {
            return invalid("max_tokens", "must be at least 1".into());
        }
        if self.min_tokens > max_model_len {
            return invalid(
                "min_tokens",
                format!("must be at most {max_model_len}, not {}", self.min_tokens),
            );
        }
        if let Some(most) = self.max_tokens.filter(|most| self.min_tokens > *most) {
            return invalid(
                "min_tokens",
                format!(
                    "must not be above max_tokens ({most}), but is {}",
                    self.min_tokens
                ),
            );
        }
        for (field, count) in [
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ] {
            if let Some(count) = count.filter(|count| *count > LOGPROBS_MAX) {
                return invalid(
                    field,
                    format!("must be at most {LOGPROBS_MAX}, not {count}"),
                );
            }
        }
        check_range("temperature", self.draw.temperature, TEMPERATURE)?;
        check_range("min_p", self.draw.min_p, MIN_P)?;
        check_range("presence_penalty", self.draw.presence_penalty, PENALTY)?;
        check_range("frequency_penalty", self.draw.frequency_penalty, PENALTY)?;
        check_range("top_p", self.draw.top_p, TOP_P)?;
        check_range(
            "repetition_penalty",
            self.draw.repetition_penalty,
            REPETITION_PENALTY,
        )?;
        check_count("logit_bias", self.logit_bias.len(), LOGIT_BIAS_MAX)?;
        check_count(
            "stop_token_ids",
            self.stop_token_ids.len(),
            STOP_TOKEN_IDS_MAX,
        )?;
        check_ids("logit_bias", self.logit_bias.keys(), vocab)?;
        check_ids("stop_token_ids", self.stop_token_ids.iter(), vocab)?;
        self.logit_bias
            .values()
            .try_for_each(|&bias| check_range("logit_bias", bias, LOGIT_BIAS))?;
        self.beams.map_or(Ok(()), |beams| self.check_beams(beams))
    }

    /// Checks what only a beam search requires.
    fn check_beams(&self, beams: BeamParams) -> Result<(), SubmitError> {
        if !(1..=BEAMS_MAX).contains(&beams.width) {
            return invalid(
                "best_of",
                format!("must be from 1 to {BEAMS_MAX} beams, not {}", beams.width),
            );
        }
        if self.n > beams.width {
            return invalid(
                "n",
                format!(
                    "must be at most the number of beams ({}), not {}",
                    beams.width, self.n
                ),
            );
        }
        check_range("length_penalty", beams.length_penalty, LENGTH_PENALTY)?;
        let (draw, usual) = (&self.draw, DrawParams::default());
        let foreign = [
            ("seed", self.seed.is_some()),
            ("logit_bias", !self.logit_bias.is_empty()),
            (
                "repetition_penalty",
                draw.repetition_penalty != usual.repetition_penalty,
            ),
            (
                "presence_penalty",
                draw.presence_penalty != usual.presence_penalty,
            ),
            (
                "frequency_penalty",
                draw.frequency_penalty != usual.frequency_penalty,
            ),
        ];
        match foreign.into_iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => invalid(field, "has no meaning in a beam search".into()),
            None => Ok(()),
        }
    }

    /// Replaces values that would overflow or underflow: a tiny temperature becomes greedy, a tiny `top_p` or
    /// repetition penalty is raised. Penalties that count no tokens are switched off.
    pub fn normalized(mut self) -> Self {
        if self.draw.temperature < TEMPERATURE_MIN {
            self.draw.temperature = 0.0;
        }
        // A device may flush a denormal number to zero, and `top_p` = 0 would keep no token.
        self.draw.top_p = self.draw.top_p.max(f32::MIN_POSITIVE);
        self.draw.repetition_penalty = self.draw.repetition_penalty.max(REPETITION_PENALTY_MIN);
        if self.penalty_window == Some(0) {
            self.draw = self.draw.without_penalties();
        }
        if self.beams.is_some() {
            self.draw = DrawParams::greedy();
        }
        self
    }
}

/// `message` follows the field's name: "must be …".
fn invalid<T>(field: &'static str, message: String) -> Result<T, SubmitError> {
    Err(SubmitError::Invalid { field, message })
}

fn check_range(field: &'static str, value: f32, range: NumberRange) -> Result<(), SubmitError> {
    if range.contains(value) {
        Ok(())
    } else {
        invalid(field, format!("must be a number {range}, not {value}"))
    }
}

fn check_count(field: &'static str, count: usize, most: usize) -> Result<(), SubmitError> {
    if count <= most {
        Ok(())
    } else {
        invalid(
            field,
            format!("must have at most {most} entries, not {count}"),
        )
    }
}

fn check_ids<'a>(
    field: &'static str,
    mut ids: impl Iterator<Item = &'a u32>,
    vocab: u32,
) -> Result<(), SubmitError> {
    match ids.find(|&&id| id >= vocab) {
        Some(id) => invalid(
            field,
            format!(
                "must hold token ids from 0 to {}, not {id}",
                vocab.saturating_sub(1)
            ),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
