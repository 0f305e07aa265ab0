//! Grammars: constrain answers by masks over tokens.
//!
//! [`Grammars`] compiles a [`GrammarSpec`] for one vocabulary and caches compiled grammars, limited in bytes. A
//! [`Grammar`] is compiled and cheap to clone; a [`GrammarState`] is the progress of one answer: it reports which
//! tokens may follow, accepts the drawn one, and reports forced tokens.
//!
//! Grammars come from untrusted clients. They are limited before compilation (bytes, depth, width), during compilation
//! and while they run (llguidance's own limits, set in [`limits`], and the times [`COMPILE_MAX`] and [`MASKS_MAX`]).
//! The first tokens of an answer are tried at compilation, so a grammar that compiles also starts. A grammar that
//! exceeds a limit is refused, without affecting other requests.

mod cache;
mod constants;
mod costs;
mod gbnf;
mod references;
mod spec;
mod structural_tag;
mod subschemas;
mod vocabulary;
mod watch;

#[cfg(feature = "api")]
pub(crate) use references::pointer;
pub use spec::{GrammarError, GrammarSpec, schema_as_json, schema_in_lark};
pub use structural_tag::structural_tag;
pub use watch::{Running, Waiting, Watched, watch};

use super::Tokenizer;
use crate::platform::Instant;
use cache::Cache;
use llguidance::api::ParserLimits;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory, TokenParser};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of lexer states above which a cached grammar is recompiled instead of reused: states are only added, and an
/// answer that reaches the limit ends.
const STATES_FRESH_MAX: usize = LEXER_STATES_MAX / 2;
const LEXER_STATES_MAX: usize = 20_000;
/// Maximum places in a grammar where an answer may be at once. An optional property takes four, an alternative three,
/// so a schema within the limits of [`spec`] stays below.
const ROW_ITEMS_MAX: usize = 6000;
/// Tokens of the answer that is tried when a grammar is compiled.
const TRIED_TOKENS: usize = 16;
/// Time for the first tokens at compilation. The limits of [`costs`] and [`limits`] keep it much shorter on an idle
/// machine.
const COMPILE_MAX: Duration = Duration::from_secs(1);
/// Time that the masks of an answer may take in a row.
const MASKS_MAX: Duration = Duration::from_secs(1);
/// What each token adds to the rest of this time.
const MASKS_PER_TOKEN: Duration = Duration::from_millis(50);

/// Compiles grammars for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    cache: Mutex<Cache>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Grammars").finish_non_exhaustive()
    }
}

/// A compiled grammar.
#[derive(Clone)]
pub struct Grammar {
    /// Parser before the first token. All answers that start from it share its lexer.
    parser: Arc<Mutex<TokenParser>>,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// Progress of one answer within its grammar.
#[derive(Clone)]
pub struct GrammarState {
    matcher: Matcher,
    /// What is left of [`MASKS_MAX`].
    time_left: Duration,
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GrammarState")
            .finish_non_exhaustive()
    }
}

/// No token can follow, or finding one exceeds the cost limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no token can follow")]
pub struct NoTokenAllowed;

/// Limits that keep compilation under a fifth of a second, and a mask within a few milliseconds.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: ROW_ITEMS_MAX,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 100_000,
        step_max_items: 30_000,
        max_lexer_states: LEXER_STATES_MAX,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

impl Grammars {
    /// Grammars over the first `vocab` ids of a tokenizer; `end_ids` end an answer. This is slow for a large
    /// vocabulary. Compiled grammars are cached up to `cache_bytes`.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        vocab: u32,
        end_ids: &[u32],
        cache_bytes: usize,
    ) -> Result<Self, GrammarError> {
        let environment = vocabulary::environment(tokenizer, vocab, end_ids);
        let capabilities = InferenceCapabilities {
            ff_tokens: environment.tokenize_is_canonical(),
            ..InferenceCapabilities::default()
        };
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&environment, capabilities, &slices);
        let mut factory = factory.map_err(|error| GrammarError::new(&error))?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(Self {
            factory,
            cache: Mutex::new(Cache::new(cache_bytes)),
        })
    }

    /// Compiles a grammar, or returns it from the cache.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Grammar, GrammarError> {
        self.compile_for(None, spec)
    }

    /// As [`Self::compile`], and stops if nobody waits any more.
    pub fn compile_for(
        &self,
        waiting: Option<Watched>,
        spec: &GrammarSpec,
    ) -> Result<Grammar, GrammarError> {
        let key = spec.key()?;
        let cached = self.lock().get(&key);
        if let Some(grammar) = cached
            && grammar.states() < STATES_FRESH_MAX
        {
            self.lock().put(key, grammar.clone(), grammar.bytes());
            return Ok(grammar);
        }
        costs::check(spec)?;
        let parser = self
            .factory
            .create_parser(spec.top_level(self.factory.tok_env().tok_trie())?)
            .map_err(|error| GrammarError::new(&error))?;
        let grammar = Grammar {
            parser: Arc::new(Mutex::new(parser)),
        };
        grammar.start().try_first_tokens(waiting)?;
        self.lock().put(key, grammar.clone(), grammar.bytes());
        Ok(grammar)
    }

    /// Bytes of the cached grammars.
    pub fn cached_bytes(&self) -> usize {
        self.lock().bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grammar {
    /// A state before the first token.
    pub fn start(&self) -> GrammarState {
        GrammarState {
            matcher: Matcher::new(Ok(self.lock().clone())).into_cancellable(),
            time_left: MASKS_MAX,
        }
    }

    /// Number of states of the lexer, which all answers with this grammar share.
    fn states(&self) -> usize {
        self.lock().parser.lexer_stats().num_states
    }

    /// Size of the lexer in bytes.
    fn bytes(&self) -> usize {
        self.lock().parser.lexer_stats().num_bytes
    }

    fn lock(&self) -> MutexGuard<'_, TokenParser> {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GrammarState {
    /// Sets the bits of the tokens that may follow: bit `id % 32` of word `id / 32`. `mask` must be zero on entry.
    pub fn fill_mask(&mut self, mask: &mut [u32]) -> Result<(), NoTokenAllowed> {
        let allowed = self
            .in_time(Matcher::compute_mask_or_eos)
            .map_err(|_| NoTokenAllowed)?;
        for (word, bits) in mask.iter_mut().zip(allowed.as_slice()) {
            *word = *bits;
        }
        Ok(())
    }

    /// Takes the next token. Returns `true` if the answer is complete and nothing may follow.
    pub fn accept(&mut self, token_id: u32) -> Result<bool, NoTokenAllowed> {
        self.time_left = MASKS_MAX.min(self.time_left + MASKS_PER_TOKEN);
        self.in_time(|matcher| matcher.consume_token(token_id))
            .map_err(|_| NoTokenAllowed)?;
        Ok(self.matcher.is_stopped())
    }

    /// Does a part of the answer's work, which fails at the end of the answer's time.
    fn in_time<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
        let start = Instant::now();
        let running = self
            .matcher
            .cancellation_handle()
            .map(|cancel| watch(self.time_left, None, move || cancel.cancel()));
        let result = work(&mut self.matcher);
        drop(running);
        self.time_left = self.time_left.saturating_sub(start.elapsed());
        result
    }

    /// Tries the start of an answer, so that a grammar whose answers cannot begin is refused before one does.
    fn try_first_tokens(mut self, waiting: Option<Watched>) -> Result<(), GrammarError> {
        let cancel = self.matcher.cancellation_handle().unwrap_or_default();
        let ended = cancel.clone();
        let running = watch(COMPILE_MAX, waiting, move || ended.cancel());
        let tried = self.try_tokens();
        drop(running);
        if cancel.is_cancelled() {
            Err(GrammarError::too_long())
        } else {
            tried
        }
    }

    fn try_tokens(&mut self) -> Result<(), GrammarError> {
        let mut mask = self
            .matcher
            .compute_mask_or_eos()
            .map_err(|_| GrammarError::told("it allows no answer at all, or is too complex"))?;
        let too_complex = format!(
            "it is too complex: an answer may be in more than {ROW_ITEMS_MAX} places of it at once"
        );
        for _ in 0..TRIED_TOKENS {
            let Some(id) = mask.iter().next() else { break };
            self.matcher
                .consume_token(id)
                .map_err(|_| GrammarError::told(&too_complex))?;
            if self.matcher.is_stopped() {
                break;
            }
            mask = self
                .matcher
                .compute_mask_or_eos()
                .map_err(|_| GrammarError::told(&too_complex))?;
        }
        Ok(())
    }

    /// Tokens that must follow.
    pub fn forced(&mut self) -> Vec<u32> {
        self.in_time(Matcher::compute_ff_tokens)
    }
}
