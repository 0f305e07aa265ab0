//! What clients of llama.cpp's server ask for: `POST /completion`, `POST /apply-template`, `GET /props`.
//!
//! A request to `/completion` has the fields of `/v1/completions`, some under llama.cpp's names; its answer has a form
//! of its own.

use crate::engine::request::{FinishReason, SamplingParams, Token};
use crate::platform::Instant;
use crate::server::guards::access::Client;
use crate::server::parameters::conversation::Conversation;
use crate::server::parameters::read;
use crate::server::parameters::sampling::Sampling;
use crate::server::parameters::table::{LlamaRequest, RenderChatRequest};
use crate::server::reply::generation::{Generation, Piece, Totals};
use crate::server::reply::openai::LOGPROB_MIN;
use crate::server::routes::chat;
use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, Names};
use crate::server::wire::json::read_object;
use crate::server::wire::sse::{self, Answer};
use crate::text::{TextModel, Tokenizer};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// What a request of llama.cpp's calls fields of the engine.
const NAMES: Names = &[("logprobs", "n_probs")];

/// The prompt that a conversation becomes, as text.
pub(crate) async fn apply_template(
    State(state): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let mut body = read_object(request, &state).await?;
    let info = state.ready()?;
    let request: RenderChatRequest = read::read_part(&mut body, &state, info)?;
    state.model(request.target.model)?;
    let conversation = Conversation::new(request.conversation)?;
    let prompt = chat::rendered(&state, info, conversation, TextModel::chat_text).await?;
    Ok(Json(json!({"prompt": prompt})))
}

/// What is served, and how it is set.
pub(crate) async fn props(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let info = state.ready()?;
    let config = &state.text.config;
    let of_config =
        |name: &str| config.get(name).map_or(Value::Null, |value| value.get("content").unwrap_or(value).clone());
    Ok(Json(json!({
        "default_generation_settings": {"n_ctx": info.max_model_len, "params": settings(&state.options.defaults)},
        "total_slots": info.max_num_seqs,
        "model_path": state.model_names[0],
        "model_alias": state.model_names[0],
        "chat_template": of_config("chat_template"),
        "bos_token": of_config("bos_token"),
        "eos_token": of_config("eos_token"),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("folio-", env!("CARGO_PKG_VERSION")),
    })))
}

fn settings(params: &SamplingParams) -> Value {
    json!({
        "n_predict": params.max_tokens.map_or(-1, i64::from),
        "seed": params.seed.map_or(-1, u64::cast_signed),
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "ignore_eos": params.ignore_eos,
        "n_probs": params.logprobs.unwrap_or(0),
    })
}

/// Continues one prompt.
pub(crate) async fn completion(State(state): State<ServerState>, request: Request) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let body = read_object(request, &state).await?;
    let info = state.ready()?;
    let request: LlamaRequest = read::read(body, &state, info)?;
    let model = state.model(request.target.model)?;
    let mut given = request.sampling;
    given.repetition_penalty = request.repeat_penalty.or(given.repetition_penalty);
    given.logit_bias = request.logit_bias;
    // A seed of -1 is a random one.
    given.seed = given.seed.filter(|seed| *seed != -1);
    let returns_tokens = request.return_tokens || given.return_token_ids;
    let defaults = &state.options.defaults;
    let mut sampling = Sampling::new(given, request.queueing, defaults, info.max_model_len, (client, NAMES))?;
    // The last token tells an end of the model's from a stop string.
    sampling.return_token_ids = true;
    sampling.set_logprobs(request.n_probs.filter(|count| *count > 0));
    sampling.params.max_tokens = request.n_predict.and_then(|count| u32::try_from(count).ok());
    let prompt: Arc<[u32]> = sampling.truncated(request.prompt.encode(&state, true).await?.remove(0)).into();
    sampling.constrain(&state).await?;
    let generation = Generation::submit(&state, vec![prompt], &sampling)?;
    let answer = LlamaAnswer {
        model,
        tokenizer: state.text.tokenizer.clone(),
        settings: settings(&sampling.params),
        eos_token_ids: info.eos_token_ids.clone(),
        // Pieces of a stream always have them.
        returns_tokens: returns_tokens || sampling.stream,
        has_new_line: false,
        started: Instant::now(),
        first: None,
    };
    if sampling.stream { Ok(sse::stream(generation, answer)) } else { sse::collect(generation, answer).await }
}

/// The form of one answer.
struct LlamaAnswer {
    model: String,
    tokenizer: Option<Arc<Tokenizer>>,
    settings: Value,
    eos_token_ids: Vec<u32>,
    returns_tokens: bool,
    has_new_line: bool,
    started: Instant,
    /// When the first piece came.
    first: Option<Instant>,
}

/// Tokens in some time.
struct Pace {
    tokens: u32,
    milliseconds: f64,
}

impl Pace {
    fn new(tokens: u32, time: Duration) -> Self {
        Self { tokens, milliseconds: time.as_secs_f64() * 1e3 }
    }

    /// `None` where there is nothing to divide by.
    fn per_token_ms(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.milliseconds / f64::from(self.tokens))
    }

    fn per_second(&self) -> Option<f64> {
        (self.milliseconds > 0.0).then(|| 1e3 * f64::from(self.tokens) / self.milliseconds)
    }
}

impl LlamaAnswer {
    /// What every message says.
    fn part(&mut self, piece: &Piece, totals: Totals) -> Map<String, Value> {
        self.has_new_line |= piece.parts.content.contains('\n');
        let mut part = Map::new();
        part.insert("index".into(), piece.choice.into());
        part.insert("content".into(), piece.parts.content.clone().into());
        let ids: Vec<u32> = piece.tokens.iter().map(|token| token.id).filter(|_| self.returns_tokens).collect();
        part.insert("tokens".into(), ids.into());
        part.insert("stop".into(), piece.finish.is_some().into());
        part.insert("tokens_predicted".into(), totals.completion_tokens.into());
        part.insert("tokens_evaluated".into(), totals.prompt_tokens.into());
        if self.settings["n_probs"] != 0 {
            let probabilities: Vec<_> = piece.tokens.iter().map(|token| self.probability(token)).collect();
            part.insert("completion_probabilities".into(), probabilities.into());
        }
        part
    }

    fn probability(&self, token: &Token) -> Value {
        let one = |id: u32, logprob: f32| {
            let bytes = self.tokenizer.as_ref().map(|tokenizer| tokenizer.token_bytes(id, None)).unwrap_or_default();
            let name = String::from_utf8_lossy(&bytes).into_owned();
            json!({"id": id, "token": name, "bytes": bytes, "logprob": logprob.max(LOGPROB_MIN)})
        };
        let mut chosen = one(token.id, token.logprob.unwrap_or(LOGPROB_MIN));
        chosen["top_logprobs"] = token.top_logprobs.iter().map(|top| one(top.token_id, top.logprob)).collect();
        chosen
    }

    /// What the last message says beside.
    fn end(&self, part: &mut Map<String, Value>, piece: &Piece, totals: Totals) {
        let ended = piece.tokens.last().is_some_and(|token| self.eos_token_ids.contains(&token.id));
        let stop_type = match piece.finish {
            Some(FinishReason::Length) => "limit",
            Some(FinishReason::Stop) if ended => "eos",
            Some(FinishReason::Stop) => "word",
            None => "none",
        };
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        let prompt = Pace::new(totals.prompt_tokens - totals.cached_tokens, first - self.started);
        let predicted = Pace::new(totals.completion_tokens, now - first);
        let more = json!({
            "model": self.model,
            "generation_settings": self.settings,
            "has_new_line": self.has_new_line,
            "truncated": false,
            "stop_type": stop_type,
            "tokens_cached": totals.prompt_tokens + totals.completion_tokens,
            "timings": {
                "cache_n": totals.cached_tokens,
                "prompt_n": prompt.tokens,
                "prompt_ms": prompt.milliseconds,
                "prompt_per_token_ms": prompt.per_token_ms(),
                "prompt_per_second": prompt.per_second(),
                "predicted_n": predicted.tokens,
                "predicted_ms": predicted.milliseconds,
                "predicted_per_token_ms": predicted.per_token_ms(),
                "predicted_per_second": predicted.per_second(),
            },
        });
        let Value::Object(more) = more else { unreachable!("it was written as an object") };
        part.extend(more);
    }
}

impl Answer for LlamaAnswer {
    fn begins(&mut self) {
        self.first.get_or_insert_with(Instant::now);
    }

    fn events(&mut self, piece: &Piece, totals: Totals) -> String {
        let mut part = self.part(piece, totals);
        if piece.finish.is_some() {
            self.end(&mut part, piece, totals);
        }
        format!("data: {}\n\n", Value::Object(part))
    }

    /// The piece that ends the choice has said it all.
    fn last_events(&mut self, _: Totals) -> String {
        String::new()
    }

    fn fault(&self, error: &ApiError) -> String {
        format!("data: {}\n\n", error.json())
    }

    fn whole(&mut self, pieces: &[Piece], totals: Totals) -> String {
        let mut part = self.part(&pieces[0], totals);
        self.end(&mut part, &pieces[0], totals);
        Value::Object(part).to_string()
    }
}
