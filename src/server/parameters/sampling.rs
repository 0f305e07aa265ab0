//! [`Sampling`]: the parameters that chat, completions and llama.cpp's completion share.

use crate::engine::handle::EngineInfo;
use crate::engine::request::{
    DrawParams, Request, STOP_TOKEN_IDS_MAX, SamplingParams, SharedConstraint,
};
use crate::platform::SystemTime;
use crate::server::guards::access::Client;
use crate::server::parameters::beams::{self, StopAtText};
use crate::server::parameters::structured::{self, Structure};
use crate::server::parameters::table::{Queueing, SamplingFields};
use crate::server::parameters::vocabulary;
use crate::server::state::ModelState;
use crate::server::traces::RequestTrace;
use crate::server::wire::error::{ApiError, Names, name_of};
use crate::text::answer::AnswerParser;
use crate::text::{StopStrings, TextStream, Tokenizer};
use std::sync::Arc;
use std::time::Duration;

/// How to continue the prompts of a request.
pub(crate) struct Sampling {
    /// The engine's parameters. [`Self::complete`] sets `logprobs` and `max_tokens`, and the endpoint the constraint.
    pub(crate) params: SamplingParams,
    /// The answer has logprobs; set by [`Self::complete`].
    pub(crate) wants_logprobs: bool,
    /// The answer has `prompt_logprobs`.
    pub(crate) wants_prompt_logprobs: bool,
    /// The answer repeats the prompt alone; generated tokens are not returned.
    pub(crate) silent: bool,
    pub(crate) stops: Vec<String>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i32,
    pub(crate) skip_special: bool,
    /// The text includes the stop string that ended it.
    pub(crate) show_stops: bool,
    /// Number of choices per prompt in the answer: the likeliest of those generated.
    pub(crate) best: usize,
    pub(crate) return_token_ids: bool,
    /// Logprobs name tokens by id: `token_id:123`.
    pub(crate) tokens_as_ids: bool,
    /// Maximum tokens of a prompt; only its last ones are kept.
    pub(crate) prompt_tokens_max: Option<u32>,
    pub(crate) explain_prefix: bool,
    pub(crate) explain_drafts: bool,
    pub(crate) client: Client,
    /// What traces call the request.
    pub(crate) operation: &'static str,
    /// Maps the engine's field names to the request's, where they differ.
    pub(crate) names: Names,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    /// The only tokens that an answer may have; empty: all.
    allowed_ids: Vec<u32>,
    /// Texts that an answer may not have.
    bad_words: Vec<String>,
    /// Structured output: the form that the answer must have.
    pub(crate) structure: Option<Structure>,
    /// Splits the text into content, reasoning and tool calls. Set by routes whose answers have these.
    pub(crate) answer: AnswerParser,
    /// Special tokens that are decoded to text anyway, because `answer` looks for them.
    pub(crate) kept_ids: Arc<[u32]>,
}

impl Sampling {
    /// Checks fields that depend on each other. The request's values take precedence over the model's `defaults`.
    pub(crate) fn new(
        fields: SamplingFields,
        queueing: Queueing,
        defaults: &SamplingParams,
        context: u32,
        (client, names): (Client, Names),
    ) -> Result<Self, ApiError> {
        let stream = fields.stream;
        if fields.stream_options.is_some() && !stream {
            return Err(ApiError::invalid(
                "stream_options",
                "`stream_options` needs `stream`: true",
            ));
        }
        let options = fields.stream_options.as_ref();
        let best = fields.n.unwrap_or(1) as usize;
        let params = SamplingParams {
            n: best_of(&fields)?,
            ..sampling_params(&fields, defaults)
        };
        check_window(fields.samplers.repeat_last_n, &params.draw, context, names)?;
        let params = match beams::beams(&fields)? {
            Some(beams) => beams::searching(
                SamplingParams {
                    n: best as u32,
                    ..params
                },
                &fields,
                beams,
            ),
            None => params,
        };
        Ok(Self {
            wants_logprobs: false,
            wants_prompt_logprobs: params.prompt_logprobs.is_some(),
            silent: false,
            best,
            client,
            operation: "text_completion",
            names,
            show_stops: fields.include_stop_str_in_output,
            return_token_ids: fields.return_token_ids,
            tokens_as_ids: fields.return_tokens_as_token_ids,
            prompt_tokens_max: prompt_tokens_max(&queueing, context - 1),
            explain_prefix: fields.debug.as_ref().is_some_and(|debug| debug.prefix),
            explain_drafts: fields.debug.as_ref().is_some_and(|debug| debug.drafts),
            include_usage: options.is_some_and(|options| options.include_usage),
            continuous_usage: options.is_some_and(|options| options.continuous_usage_stats),
            stops: fields.stop.unwrap_or_default(),
            cache_salt: queueing.cache_salt,
            priority: queueing.priority.unwrap_or(0) as i32,
            skip_special: fields.skip_special_tokens,
            stream,
            allowed_ids: fields.allowed_token_ids.unwrap_or_default(),
            bad_words: fields.bad_words.unwrap_or_default(),
            structure: fields.structured.structure()?,
            answer: AnswerParser::plain(),
            kept_ids: Arc::default(),
            params,
        })
    }

    /// Adds the form of the answer from a field that only one API has.
    pub(crate) fn set_form(&mut self, form: Option<Structure>) -> Result<(), ApiError> {
        self.structure = Structure::one(form.into_iter().chain(self.structure.take()))?;
        Ok(())
    }

    /// Sets the parameters whose names differ by API, and checks everything that needs no prompt: before it is encoded,
    /// which may take long. `alternatives` are those to report for each token; `None`: the answer has no logprobs.
    pub(crate) fn complete(
        &mut self,
        alternatives: Option<u32>,
        max_tokens: Option<u32>,
        info: &EngineInfo,
    ) -> Result<(), ApiError> {
        self.wants_logprobs = alternatives.is_some();
        // `best_of` needs logprobs in any case.
        let chooses = self.best < self.params.n as usize;
        self.params.logprobs = alternatives.or(chooses.then_some(0));
        self.params.max_tokens = max_tokens;
        let checked = self
            .request(Arc::default())
            .check_without_prompt(info.vocab, info.max_model_len);
        checked.map_err(|error| ApiError::refused(&error, self.names))
    }

    /// Adds tokens that end an answer, as far as there is room for them beside those of the request.
    pub(crate) fn also_ends_at(&mut self, ids: Vec<u32>) {
        let room = STOP_TOKEN_IDS_MAX.saturating_sub(self.params.stop_token_ids.len());
        self.params
            .stop_token_ids
            .extend(ids.into_iter().take(room));
    }

    /// The engine's request for one prompt.
    pub(crate) fn request(&self, prompt: Arc<[u32]>) -> Request {
        Request {
            prompt,
            params: self.params.clone(),
            cache_salt: self.cache_salt.clone(),
            priority: self.priority,
            client: self.client.0,
            prompt_only: self.silent,
            explain_prefix: self.explain_prefix,
            explain_drafts: self.explain_drafts,
            report_admission: true,
            ..Request::default()
        }
    }

    /// What a trace says of the request before its prompts are known.
    pub(crate) fn trace(&self, model: &str) -> RequestTrace {
        RequestTrace {
            operation: self.operation,
            model: model.to_owned(),
            parent: self.client.1,
            started: SystemTime::now(),
            duration: Duration::ZERO,
            queued: None,
            first_token: None,
            choices: self.params.n,
            max_tokens: self.params.max_tokens,
            temperature: self.params.draw.temperature,
            top_p: self.params.draw.top_p,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            finish_reasons: Vec::new(),
            error: None,
        }
    }

    /// Compiles the grammar of an answer that is plain text.
    pub(crate) async fn constrain(&mut self, state: &ModelState) -> Result<(), ApiError> {
        if let Some(structure) = self.structure.take() {
            self.params.constraint = Some(structured::from_the_start(
                state.grammar(self.client.0, structure).await?,
            ));
        }
        Ok(())
    }

    /// The constraint of all choices, for a model with `vocab` tokens. The beams of a search also end at stop strings.
    pub(crate) fn constraint(
        &self,
        tokenizer: Option<&Arc<Tokenizer>>,
        vocab: u32,
    ) -> Result<Option<SharedConstraint>, ApiError> {
        let inner = self.params.constraint.clone();
        let inner = vocabulary::limited(
            inner,
            (&self.allowed_ids, &self.bad_words),
            tokenizer,
            vocab,
        )?;
        if self.params.beams.is_none() || self.stops.is_empty() {
            return Ok(inner);
        }
        let (text, answer) = (self.text_stream(tokenizer.cloned()), self.answer_parser());
        Ok(Some(
            StopAtText {
                text,
                answer,
                inner,
            }
            .shared(),
        ))
    }

    /// The decoder of one choice.
    pub(crate) fn text_stream(&self, tokenizer: Option<Arc<Tokenizer>>) -> TextStream {
        TextStream::new(tokenizer, &[], self.skip_special).keeping(self.kept_ids.clone())
    }

    /// The parser of one choice, which ends the choice at a stop string.
    pub(crate) fn answer_parser(&self) -> AnswerParser {
        let stops = StopStrings::new(&self.stops)
            .shown(self.show_stops)
            .min_tokens(self.params.min_tokens);
        self.answer.clone().stopping_at(stops)
    }

    /// The prompt, cut at its beginning to `prompt_tokens_max`.
    pub(crate) fn truncated(&self, prompt: Vec<u32>) -> Vec<u32> {
        truncated(prompt, self.prompt_tokens_max)
    }
}

/// `logprobs` and `max_tokens` are set later ([`Sampling::complete`]).
fn sampling_params(fields: &SamplingFields, defaults: &SamplingParams) -> SamplingParams {
    let is_greedy = fields.top_p == Some(0.0);
    SamplingParams {
        max_tokens: None,
        draw: DrawParams {
            temperature: if is_greedy {
                0.0
            } else {
                fields.temperature.unwrap_or(defaults.draw.temperature)
            },
            top_p: if is_greedy {
                defaults.draw.top_p
            } else {
                fields.top_p.unwrap_or(defaults.draw.top_p)
            },
            top_k: fields
                .top_k
                .map_or(defaults.draw.top_k, |top_k| top_k.max(0) as u32),
            min_p: fields.min_p.unwrap_or(defaults.draw.min_p),
            repetition_penalty: fields
                .repetition_penalty
                .or(fields.repeat_penalty)
                .unwrap_or(defaults.draw.repetition_penalty),
            presence_penalty: fields
                .presence_penalty
                .unwrap_or(defaults.draw.presence_penalty),
            frequency_penalty: fields
                .frequency_penalty
                .unwrap_or(defaults.draw.frequency_penalty),
        },
        logit_bias: fields.logit_bias.clone().unwrap_or_default(),
        seed: fields.seed.map(i64::cast_unsigned).or(defaults.seed),
        stop_token_ids: fields.stop_token_ids.clone().unwrap_or_default(),
        ignore_eos: fields.ignore_eos.unwrap_or(defaults.ignore_eos),
        min_tokens: fields.min_tokens.unwrap_or(0),
        prompt_logprobs: fields.prompt_logprobs,
        ..SamplingParams::default()
    }
}

/// Refuses a number of tokens that penalties count, unless it is all of them or there is no penalty.
fn check_window(
    window: Option<i64>,
    draw: &DrawParams,
    context: u32,
    names: Names,
) -> Result<(), ApiError> {
    match window {
        Some(window) if draw.has_penalties() && (0..i64::from(context)).contains(&window) => {
            let name = name_of("repeat_last_n", names);
            let message = format!(
                "`{name}` is not supported beside a penalty: penalties count all tokens; send -1"
            );
            Err(ApiError::unsupported(name, message))
        }
        _ => Ok(()),
    }
}

/// Number of choices to generate, of which the answer has the best `n`.
fn best_of(fields: &SamplingFields) -> Result<u32, ApiError> {
    let n = fields.n.unwrap_or(1);
    let best_of = fields.best_of.unwrap_or(n);
    if best_of < n {
        return Err(ApiError::invalid(
            "best_of",
            format!("`best_of` ({best_of}) must not be below `n` ({n})"),
        ));
    }
    if fields.stream && best_of > n {
        let message = "`best_of` above `n` needs `stream`: false, because the best choices are known only at the end";
        return Err(ApiError::invalid("best_of", message));
    }
    Ok(best_of as u32)
}

/// The last `most` tokens of a prompt.
pub(crate) fn truncated(mut prompt: Vec<u32>, most: Option<u32>) -> Vec<u32> {
    let surplus = prompt
        .len()
        .saturating_sub(most.map_or(usize::MAX, |most| most as usize));
    prompt.drain(..surplus);
    prompt
}

/// The limit set by `truncate_prompt_tokens`; −1 means `all`, as many tokens as fit.
pub(crate) fn prompt_tokens_max(queueing: &Queueing, all: u32) -> Option<u32> {
    queueing
        .truncate_prompt_tokens
        .map(|most| u32::try_from(most).unwrap_or(all))
}
