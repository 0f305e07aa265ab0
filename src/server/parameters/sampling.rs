//! [`SamplingRequest`]: what chat, completions and llama.cpp's completion ask for, in one form; and [`Sampling`]: what
//! follows from it.

use crate::engine::request::{
    DrawParams, LOGIT_BIAS, Request, STOP_TOKEN_IDS_MAX, SamplingParams, SharedConstraint,
};
use crate::platform::SystemTime;
use crate::server::guards::access::Client;
use crate::server::images::PlacedImages;
use crate::server::parameters::adapters;
use crate::server::parameters::beams::{self, StopAtText};
use crate::server::parameters::samplers::OtherSamplers;
use crate::server::parameters::structured::{self, Structure};
use crate::server::parameters::table::{Queueing, SamplingFields, Target};
use crate::server::parameters::thought_budget::ThoughtBudget;
use crate::server::parameters::vocabulary;
use crate::server::state::{AskedAdapters, ModelState, ServerOptions};
use crate::server::traces::RequestTrace;
use crate::server::wire::error::{ApiError, Names};
use crate::text::answer::{AnswerFormat, AnswerParser, ToolChoice};
use crate::text::{LineLimits, StopStrings, TextStream, Tokenizer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a request asks for, whatever API it came from.
pub(crate) struct SamplingRequest {
    /// The served name, and the adapters.
    pub(crate) target: Target,
    pub(crate) fields: SamplingFields,
    pub(crate) queueing: Queueing,
    /// The form of the answer, from a field that only this API has.
    pub(crate) form: Option<Structure>,
    /// Alternatives to report for each token; `None`: the answer has no logprobs.
    pub(crate) alternatives: Option<u32>,
    /// Maximum tokens of the answer; `None`: as many as fit into the context.
    pub(crate) max_tokens: Option<u32>,
    /// The answer repeats the prompt.
    pub(crate) echo: bool,
    /// What traces call the request.
    pub(crate) operation: &'static str,
    /// The engine's field names and those of the request, where they differ.
    pub(crate) names: Names,
}

/// How to continue the prompts of a request: what follows from a [`SamplingRequest`] and a model.
pub(crate) struct Sampling {
    /// The served name that the client asked for.
    pub(crate) model: String,
    /// The engine's parameters. [`Shape`] has what depends on a grammar or on a prompt.
    pub(crate) params: SamplingParams,
    /// Number of choices per prompt in the answer: the likeliest of those generated.
    pub(crate) best: usize,
    /// The answer repeats the prompt alone; generated tokens are not returned.
    pub(crate) silent: bool,
    pub(crate) stream: bool,
    pub(crate) shown: Shown,
    pub(crate) skip_special: bool,
    /// The text includes the stop string that ended it.
    pub(crate) show_stops: bool,
    /// Maximum tokens of a thought.
    thought_budget: Option<u32>,
    /// Thoughts are left out of the answer.
    pub(crate) hides_reasoning: bool,
    pub(crate) names: Names,
    stops: Vec<String>,
    /// How lines end an answer.
    lines: LineLimits,
    /// Biases of the tokens of texts.
    text_biases: Vec<(String, f32)>,
    /// The only tokens that an answer may have; empty: all.
    allowed_ids: Vec<u32>,
    /// Texts that an answer may not have.
    bad_words: Vec<String>,
    truncation: Truncation,
    pub(crate) adapters: Option<AskedAdapters>,
    cache_salt: Option<String>,
    priority: i32,
    client: Client,
    operation: &'static str,
}

/// What an answer has beside its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) logprobs: bool,
    pub(crate) prompt_logprobs: bool,
    pub(crate) token_ids: bool,
    /// Logprobs name tokens by id: `token_id:123`.
    pub(crate) tokens_as_ids: bool,
    /// How much of the prompt was found in the prefix cache, and why not more.
    prefix: bool,
    pub(crate) drafts: bool,
    /// A stream reports how much of a prompt is computed.
    pub(crate) progress: bool,
    /// Every chunk of a stream has times.
    pub(crate) timings: bool,
    /// A stream ends with the numbers of tokens.
    pub(crate) usage: bool,
    /// Every chunk of a stream has the numbers of tokens.
    pub(crate) continuous_usage: bool,
}

/// How the answers to a request are constrained, split and ended, as far as that depends on a grammar or on a prompt.
pub(crate) struct Shape {
    pub(crate) constraint: Option<SharedConstraint>,
    /// Splits the text into content, reasoning and tool calls.
    pub(crate) answer: AnswerParser,
    /// Special tokens that are decoded to text anyway, because `answer` looks for them.
    pub(crate) kept_ids: Arc<[u32]>,
    /// Tokens that end an answer beside those that the request names.
    pub(crate) end_ids: Vec<u32>,
    /// The format that `answer` parses; `None`: it does not tell thought from answer.
    pub(crate) format: Option<AnswerFormat>,
    /// Images that tokens of the prompt stand for.
    pub(crate) images: PlacedImages,
}

impl Default for Shape {
    /// Of an answer that is text as it comes.
    fn default() -> Self {
        Self {
            constraint: None,
            answer: AnswerParser::plain(),
            kept_ids: Arc::default(),
            end_ids: Vec::new(),
            format: None,
            images: PlacedImages::default(),
        }
    }
}

impl Shape {
    /// Of an answer that is text as it comes, with the form that the request asks for. Compiles the grammar.
    pub(crate) async fn plain(
        state: &ModelState,
        client: Client,
        structure: Option<Structure>,
    ) -> Result<Self, ApiError> {
        let constraint = match structure {
            None => None,
            Some(structure) => {
                let grammar = state.grammar(client.0, structure).await?;
                Some(structured::from_the_start(grammar))
            }
        };
        Ok(Self {
            constraint,
            ..Self::default()
        })
    }
}

impl SamplingRequest {
    /// What follows from the request, and the form that it asks for. Checks everything that needs no prompt: before it
    /// is encoded, which may take long. The request's values take precedence over the model's defaults.
    pub(crate) fn resolve(
        self,
        state: &ModelState,
        client: Client,
    ) -> Result<(Sampling, Option<Structure>), ApiError> {
        let info = state.ready()?;
        let this = self.limited(state.options.max_new_tokens);
        let params = this.params(&state.options.defaults)?;
        let shown = this.shown(&state.shared.options);
        let Self {
            fields,
            queueing,
            form,
            target,
            ..
        } = this;
        let (model, adapters) = adapters::asked(state, target)?;
        let sampling = Sampling {
            best: fields.n.unwrap_or(1) as usize,
            silent: this.echo && this.max_tokens == Some(0),
            stream: fields.stream,
            shown,
            skip_special: fields.skip_special_tokens,
            show_stops: fields.include_stop_str_in_output,
            thought_budget: fields
                .thinking_token_budget
                .and_then(|tokens| u32::try_from(tokens).ok()),
            hides_reasoning: !fields.include_reasoning,
            names: this.names,
            stops: fields.stop.unwrap_or_default(),
            lines: line_limits(&fields.samplers),
            text_biases: fields.logit_bias.unwrap_or_default().texts,
            allowed_ids: fields.allowed_token_ids.unwrap_or_default(),
            bad_words: fields.bad_words.unwrap_or_default(),
            truncation: Truncation::new(&queueing, info.max_model_len - 1),
            adapters,
            model,
            cache_salt: queueing.cache_salt,
            priority: queueing.priority.unwrap_or(0) as i32,
            client,
            operation: this.operation,
            params,
        };
        let structure = fields.structured.structure()?;
        let structure = Structure::one(form.into_iter().chain(structure))?;
        sampling
            .request(Arc::default())
            .check_without_prompt(info.vocab, info.max_model_len)
            .map_err(|error| ApiError::refused(&error, sampling.names))?;
        Ok((sampling, structure))
    }

    /// The engine's parameters. Checks fields that depend on each other.
    fn params(&self, defaults: &SamplingParams) -> Result<SamplingParams, ApiError> {
        let fields = &self.fields;
        if fields.stream_options.is_some() && !fields.stream {
            let message = "`stream_options` needs `stream`: true";
            return Err(ApiError::invalid("stream_options", message));
        }
        let best = fields.n.unwrap_or(1) as u32;
        let drawn = best_of(fields)?;
        let params = sampling_params(fields, defaults);
        let params = match beams::beams(fields)? {
            Some(beams) => beams::searching(SamplingParams { n: best, ..params }, fields, beams),
            None => SamplingParams { n: drawn, ..params },
        };
        // `best_of` needs logprobs in any case.
        let logprobs = self.alternatives.or((best < params.n).then_some(0));
        let shows_prompt = self.echo && self.alternatives.is_some();
        Ok(SamplingParams {
            logprobs,
            prompt_logprobs: if shows_prompt {
                params.prompt_logprobs.max(logprobs)
            } else {
                params.prompt_logprobs
            },
            // A prompt is not computed without a token that follows it.
            max_tokens: if self.echo {
                self.max_tokens.map(|most| most.max(1))
            } else {
                self.max_tokens
            },
            ..params
        })
    }

    /// With at most so many tokens.
    fn limited(self, most: Option<u32>) -> Self {
        let max_tokens = self.max_tokens.into_iter().chain(most).min();
        Self { max_tokens, ..self }
    }

    fn shown(&self, server: &ServerOptions) -> Shown {
        let debug = self.fields.debug.as_ref();
        let options = self.fields.stream_options.as_ref();
        Shown {
            logprobs: self.alternatives.is_some(),
            prompt_logprobs: self.fields.prompt_logprobs.is_some(),
            token_ids: self.fields.return_token_ids,
            tokens_as_ids: self.fields.return_tokens_as_token_ids || server.tokens_as_ids,
            prefix: debug.is_some_and(|debug| debug.prefix),
            drafts: debug.is_some_and(|debug| debug.drafts),
            progress: self.fields.return_progress && self.fields.stream,
            timings: self.fields.timings_per_token,
            usage: server.force_usage || options.is_some_and(|options| options.include_usage),
            continuous_usage: options.is_some_and(|options| options.continuous_usage_stats),
        }
    }
}

impl Sampling {
    /// The engine's request for one prompt.
    pub(crate) fn request(&self, prompt: Arc<[u32]>) -> Request {
        Request {
            prompt,
            params: self.params.clone(),
            adapter: self.adapters.as_ref().map(|asked| asked.content.clone()),
            cache_salt: self.cache_salt.clone(),
            priority: self.priority,
            client: self.client.0,
            prompt_only: self.silent,
            explain_prefix: self.shown.prefix,
            explain_drafts: true,
            report_admission: true,
            report_progress: self.shown.progress,
            ..Request::default()
        }
    }

    /// The engine's parameters for answers of this shape, of a model with `vocab` tokens.
    pub(crate) fn params_of(
        &self,
        shape: &Shape,
        tokenizer: Option<&Arc<Tokenizer>>,
        vocab: u32,
    ) -> Result<SamplingParams, ApiError> {
        let own = &self.params.stop_token_ids;
        let room = STOP_TOKEN_IDS_MAX.saturating_sub(own.len());
        let more = shape.end_ids.iter().take(room);
        Ok(SamplingParams {
            constraint: self.constraint(shape, tokenizer, vocab)?,
            stop_token_ids: own.iter().chain(more).copied().collect(),
            logit_bias: self.logit_bias(tokenizer)?,
            ..self.params.clone()
        })
    }

    /// The biases of tokens, those of texts included. What is said of a token twice adds up.
    fn logit_bias(
        &self,
        tokenizer: Option<&Arc<Tokenizer>>,
    ) -> Result<BTreeMap<u32, f32>, ApiError> {
        let mut biases = self.params.logit_bias.clone();
        if self.text_biases.is_empty() {
            return Ok(biases);
        }
        let message = "texts in `logit_bias` need a tokenizer, and this model has none";
        let tokenizer = tokenizer.ok_or_else(|| ApiError::unsupported("logit_bias", message))?;
        for (text, bias) in &self.text_biases {
            let ids = tokenizer.encode(text, false);
            for id in ids.map_err(|error| ApiError::invalid("logit_bias", error.to_string()))? {
                let sum = biases.entry(id).or_insert(0.0);
                *sum = (*sum + bias).clamp(LOGIT_BIAS.min, LOGIT_BIAS.max);
            }
        }
        Ok(biases)
    }

    /// The engine's parameters for one prompt: with the budget of thoughts, which begin in the prompt or after it.
    pub(crate) fn params_for(
        &self,
        params: &SamplingParams,
        prompt: &[u32],
        (state, shape): (&ModelState, &Shape),
    ) -> SamplingParams {
        let (Some(tokens), Some(tokenizer)) = (self.thought_budget, &state.text.tokenizer) else {
            return params.clone();
        };
        let (format, answer) = match shape.format {
            Some(format) => (format, shape.answer.clone()),
            None => {
                let format = state.answer_format;
                let start = format.reasoning.start(tokenizer, prompt, None);
                let no_tools = ToolChoice::default();
                (format, AnswerParser::new(format, start, &no_tools))
            }
        };
        let inner = params.constraint.clone();
        SamplingParams {
            constraint: ThoughtBudget::around(inner, tokens, (format, answer), tokenizer),
            ..params.clone()
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

    /// The constraint of all choices. The beams of a search also end at stop strings.
    fn constraint(
        &self,
        shape: &Shape,
        tokenizer: Option<&Arc<Tokenizer>>,
        vocab: u32,
    ) -> Result<Option<SharedConstraint>, ApiError> {
        let inner = vocabulary::limited(
            shape.constraint.clone(),
            (&self.allowed_ids, &self.bad_words),
            tokenizer,
            vocab,
        )?;
        if self.params.beams.is_none() || self.stops.is_empty() {
            return Ok(inner);
        }
        let stopping = StopAtText {
            text: self.text_stream(shape, tokenizer.cloned()),
            answer: self.answer_parser(shape),
            inner,
        };
        Ok(Some(stopping.shared()))
    }

    /// The decoder of one choice.
    pub(crate) fn text_stream(
        &self,
        shape: &Shape,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> TextStream {
        TextStream::new(tokenizer, &[], self.skip_special).keeping(shape.kept_ids.clone())
    }

    /// The parser of one choice, which ends the choice at a stop string.
    pub(crate) fn answer_parser(&self, shape: &Shape) -> AnswerParser {
        let stops = StopStrings::new(&self.stops)
            .shown(self.show_stops)
            .min_tokens(self.params.min_tokens);
        let answer = shape.answer.clone().stopping_at(stops);
        answer.within(self.lines.clone())
    }

    /// Whether the request cuts a prompt that is too long.
    pub(crate) fn truncates(&self) -> bool {
        self.truncation.is_asked()
    }

    /// The prompt, cut to the number of tokens that the request allows.
    pub(crate) fn truncated(&self, prompt: Vec<u32>) -> Arc<[u32]> {
        self.truncation.of(prompt).into()
    }
}

/// The parameters that every API has, under the same names.
fn sampling_params(fields: &SamplingFields, defaults: &SamplingParams) -> SamplingParams {
    let is_greedy = fields.top_p == Some(0.0);
    SamplingParams {
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
                .unwrap_or(defaults.draw.repetition_penalty),
            presence_penalty: fields
                .presence_penalty
                .unwrap_or(defaults.draw.presence_penalty),
            frequency_penalty: fields
                .frequency_penalty
                .unwrap_or(defaults.draw.frequency_penalty),
        },
        penalty_window: fields
            .samplers
            .repeat_last_n
            .map(|window| u32::try_from(window).unwrap_or(u32::MAX)),
        logit_bias: fields
            .logit_bias
            .as_ref()
            .map(|biases| biases.ids.clone())
            .unwrap_or_default(),
        seed: fields.seed.map(i64::cast_unsigned).or(defaults.seed),
        stop_token_ids: fields.stop_token_ids.clone().unwrap_or_default(),
        ignore_eos: fields.ignore_eos.unwrap_or(defaults.ignore_eos),
        min_tokens: fields.min_tokens.unwrap_or(0),
        prompt_logprobs: fields.prompt_logprobs,
        ..SamplingParams::default()
    }
}

/// How lines end an answer.
fn line_limits(samplers: &OtherSamplers) -> LineLimits {
    let time = samplers
        .t_max_predict_ms
        .and_then(|ms| u64::try_from(ms).ok())
        .filter(|ms| *ms > 0);
    let indent = samplers.n_indent.unwrap_or(0);
    LineLimits::new(time.map(Duration::from_millis), indent as usize)
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

/// How prompts that are too long are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truncation {
    /// Maximum tokens of a prompt.
    most: Option<u32>,
    /// The first tokens are kept, not the last ones.
    keeps_beginning: bool,
}

impl Truncation {
    /// What a request says; −1 means `all`, as many tokens as fit.
    pub(crate) fn new(queueing: &Queueing, all: u32) -> Self {
        let most = queueing.truncate_prompt_tokens;
        Self {
            most: most.map(|most| u32::try_from(most).unwrap_or(all)),
            keeps_beginning: queueing.truncation_side == Some("right"),
        }
    }

    /// Whether a prompt is cut at all.
    pub(crate) fn is_asked(&self) -> bool {
        self.most.is_some()
    }

    /// The number of first tokens that are kept, if it is the first ones.
    pub(crate) fn beginning(&self) -> Option<usize> {
        if self.keeps_beginning {
            self.most.map(|most| most as usize)
        } else {
            None
        }
    }

    /// The number of last tokens that are kept, if it is the last ones.
    pub(crate) fn ending(&self) -> Option<usize> {
        if self.keeps_beginning {
            None
        } else {
            self.most.map(|most| most as usize)
        }
    }

    /// A prompt, cut.
    pub(crate) fn of(&self, mut prompt: Vec<u32>) -> Vec<u32> {
        let most = self.most.map_or(usize::MAX, |most| most as usize);
        if self.keeps_beginning {
            prompt.truncate(most);
        } else {
            let surplus = prompt.len().saturating_sub(most);
            prompt.drain(..surplus);
        }
        prompt
    }
}
