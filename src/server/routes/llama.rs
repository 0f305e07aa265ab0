//! Routes of llama.cpp's server: `POST /completion`, `POST /infill`, `POST /apply-template`, `GET /props`.
//!
//! A request to `/completion` has the fields of `/v1/completions`, some under llama.cpp's names. The reply has
//! llama.cpp's form.

use crate::engine::request::{DrawDefaults, DrawParams, SamplingParams};
use crate::server::guards::Client;
use crate::server::parameters::adapters::numbers;
use crate::server::parameters::conversation::Conversation;
use crate::server::parameters::kind::{Bounds, Kind as _};
use crate::server::parameters::kinds::{List, Nested};
use crate::server::parameters::prompts::GapFields;
use crate::server::parameters::read;
use crate::server::parameters::samplers::PENALTY_WINDOW;
use crate::server::parameters::sampling::SamplingRequest;
use crate::server::parameters::table::{
    ADAPTER_PARTS_MAX, AdapterPart, InfillRequest, LlamaRequest, LlamaSettings, RenderChatRequest,
    SamplingFields, Target,
};
use crate::server::reply::llama::{Asked, LlamaReply};
use crate::server::reply::respond;
use crate::server::routes::chat::{self, Begun};
use crate::server::routes::tokens::decode_all;
use crate::server::routes::{forward, health};
use crate::server::state::{ALWAYS, ModelState, ModelStatus, ServerState};
use crate::server::wire::error::{ApiError, Names};
use crate::text::{ChatTemplate, TextModel};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

/// The engine's field names and llama.cpp's, where they differ.
const NAMES: Names = &[("logprobs", "n_probs")];

/// The prompt of a conversation, as text.
pub(crate) async fn apply_template(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let request: RenderChatRequest = read::read_part(request, &state).await?;
    state.model(request.target.model)?;
    let mut fields = request.conversation;
    // As in llama.cpp: here a last message of the assistant is the beginning of the answer.
    fields.continue_final_message |=
        fields.add_generation_prompt.is_none() && ends_with_answer(&fields.messages);
    let conversation = Conversation::new(fields)?;
    let prompt = chat::rendered(
        &state,
        (conversation, chat::NAMES, state.text_bytes_max()?),
        TextModel::chat_text,
    )
    .await?;
    Ok(Json(json!({"prompt": prompt})))
}

/// Whether the last message is a text of the assistant.
fn ends_with_answer(messages: &Value) -> bool {
    let last = messages.as_array().and_then(|messages| messages.last());
    last.is_some_and(|last| {
        last["role"] == "assistant" && last["content"].is_string() && last["tool_calls"].is_null()
    })
}

/// As many slots as sequences can run, each of which runs or is idle. Prompts are not told.
pub(crate) async fn slots(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (names, known) = forward::known_of_query(&server, &request)?;
    let view = server.models.view(&names[0])?;
    health::check_slots(&request, std::slice::from_ref(&view))?;
    let running = match view.state {
        Some(state) => state.engine.stats().requests_running,
        None => 0,
    };
    let slots = (0..known.outline.max_num_seqs).map(|id| {
        json!({
            "id": id,
            "n_ctx": known.outline.max_model_len,
            "is_processing": u64::from(id) < running,
        })
    });
    Ok(Json(slots.collect()))
}

/// Slots have no state of their own that could be saved, restored or erased.
pub(crate) async fn slot() -> ApiError {
    ApiError::not_implemented("cached prompts belong to no slot: use `--kv-disk`, or `folio cache`")
}

/// The adapters of the model, with their factors in answers of the base; several models have none.
pub(crate) async fn adapters(State(server): State<ServerState>) -> Json<Value> {
    let model = server.models.one();
    let entries = model.map(|model| model.adapters.entries());
    let adapters = entries.unwrap_or_default().into_iter().map(|entry| {
        let served = entry.served;
        json!({"id": entry.id, "name": served.name, "path": served.path, "scale": served.scale})
    });
    Json(adapters.collect())
}

/// Sets the factors of adapters in answers of the base; those that are not named have none.
pub(crate) async fn set_adapters(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let bytes_max = server.shared.body_bytes_max;
    let body = axum::body::to_bytes(request.into_body(), bytes_max).await;
    let body = body.map_err(|_| ApiError::body_too_large(bytes_max))?;
    let body: Value = serde_json::from_slice(&body)
        .map_err(|error| ApiError::body(format!("the body is no list of adapters: {error}")))?;
    let kind = List {
        of: Nested::<AdapterPart>::new(),
        most: ADAPTER_PARTS_MAX,
    };
    let bounds = Bounds::new(&server.shared.options.limits, None);
    let parts = kind.read("adapters", body, &bounds)?;
    match server.models.one() {
        Some(model) => model.adapters.set_scales(&numbers(&parts))?,
        None if parts.is_empty() => {}
        None => {
            let message = "a server of several models has no adapters";
            return Err(ApiError::unsupported("id", message));
        }
    }
    Ok(Json(json!({"success": true})))
}

/// Settings are fixed when the server starts.
pub(crate) async fn set_props() -> ApiError {
    ApiError::not_implemented("settings are chosen when the server starts")
}

/// The served model and the default settings.
pub(crate) async fn props(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (names, known) = forward::known_of_query(&server, &request)?;
    let (outline, config) = (&known.outline, &known.outline.text.config);
    let of_config = |name: &str| {
        config.get(name).map_or(Value::Null, |value| {
            value.get("content").unwrap_or(value).clone()
        })
    };
    let view = server.models.view(&names[0])?;
    let text = outline.text.clone();
    let caps = move || text.template.as_ref().map(ChatTemplate::caps);
    let caps = server.shared.offload(ALWAYS, caps).await?;
    let engine = view.state.as_ref().and_then(|state| state.engine.info());
    let defaults = SamplingParams {
        seed: engine.and_then(|info| info.seed),
        ..defaults(outline.draw_defaults, &outline.defaults)
    };
    Ok(Json(json!({
        "default_generation_settings": {"n_ctx": outline.max_model_len, "params": settings(&defaults, &[])},
        // Of OpenAI's routes, for the chat page.
        "chat_generation_settings": {"params": settings(&outline.defaults, &[])},
        "total_slots": outline.max_num_seqs,
        "model_path": view.file.as_deref().unwrap_or(&names[0]),
        "model_alias": names[0],
        "model_ftype": outline.figures.main_format(),
        "is_sleeping": matches!(view.status, ModelStatus::Unloaded),
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": of_config("chat_template"),
        "chat_template_caps": caps,
        "bos_token": of_config("bos_token"),
        "eos_token": of_config("eos_token"),
        "modalities": {"vision": engine.is_some_and(|info| info.images.is_some()), "audio": false},
        "build_info": concat!("folio-", env!("CARGO_PKG_VERSION")),
    })))
}

/// The settings of a request, or of one that sets nothing, with those of llama.cpp's samplers that do not exist here
/// switched off: clients send them back.
fn settings(params: &SamplingParams, eos_token_ids: &[u32]) -> Value {
    let draw = &params.draw;
    let mut settings = json!({
        "n_predict": params.max_tokens.map_or(-1, i64::from),
        "seed": params.seed.map_or(-1, u64::cast_signed),
        "temperature": draw.temperature,
        "top_k": draw.top_k,
        "top_p": draw.top_p,
        "min_p": draw.min_p,
        "repeat_last_n": params.penalty_window.map_or(-1, |window| i32::try_from(window).unwrap_or(-1)),
        "repeat_penalty": draw.repetition_penalty,
        "presence_penalty": draw.presence_penalty,
        "frequency_penalty": draw.frequency_penalty,
        "ignore_eos": params.ignore_eos,
        "n_probs": params.logprobs.unwrap_or(0),
        "logit_bias": biases(params, eos_token_ids),
    });
    if let (Value::Object(settings), Value::Object(off)) = (&mut settings, switched_off()) {
        settings.extend(off);
    }
    settings
}

/// The biases of tokens. End tokens that are left out have one without a number, which stands for minus infinity.
fn biases(params: &SamplingParams, eos_token_ids: &[u32]) -> Vec<Value> {
    let left_out = if params.ignore_eos {
        eos_token_ids
    } else {
        &[]
    };
    let left_out = left_out.iter().map(|id| json!({"token": id, "bias": null}));
    let biases = params.logit_bias.iter();
    left_out
        .chain(biases.map(|(id, bias)| json!({"token": id, "bias": bias})))
        .collect()
}

/// Settings of llama.cpp that do not exist here, with the values that switch them off, or that then mean nothing.
fn switched_off() -> Value {
    json!({
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": 1.0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n", ":", "\"", "*"],
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "min_keep": 0,
        "post_sampling_probs": false,
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
        "n_keep": 0,
        "n_discard": 0,
        "grammar": "",
        "lora": [],
    })
}

/// What llama.cpp's routes do where neither the request nor the model's files say anything: its server's documented
/// defaults.
fn defaults(set: DrawDefaults, others: &SamplingParams) -> SamplingParams {
    let usual = DrawParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..DrawParams::default()
    };
    SamplingParams {
        draw: set.over(usual),
        penalty_window: Some(PENALTY_WINDOW),
        ..others.clone()
    }
}

/// Continues prompts.
pub(crate) async fn completion(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let LlamaRequest {
        target,
        settings,
        prompt,
    } = read::read(request, &state).await?;
    let truncates = settings.queueing.truncate_prompt_tokens.is_some();
    let prompts = async {
        if !truncates {
            prompt.check_bytes("prompt", state.ready()?)?;
        }
        Ok((prompt.encode(&state, true).await?, Vec::new()))
    };
    answer(&state, client, (target, settings), prompts).await
}

/// Fills a gap.
pub(crate) async fn infill(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: InfillRequest = read::read(request, &state).await?;
    let gap = GapFields {
        before: vec![request.input_prefix],
        after: request.input_suffix,
        begun: request.prompt.unwrap_or_default(),
        files: request.input_extra.unwrap_or_default(),
        field: "input_suffix",
    };
    answer(
        &state,
        client,
        (request.target, request.settings),
        gap.encode(&state),
    )
    .await
}

/// Continues prompts, which come with more tokens that end an answer.
async fn answer(
    state: &ModelState,
    client: Client,
    (target, request): (Target, LlamaSettings),
    prompts: impl Future<Output = Result<(Vec<Vec<u32>>, Vec<u32>), ApiError>>,
) -> Result<Response, ApiError> {
    let returns_tokens = request.sampling.return_token_ids;
    // An empty list is none.
    let response_fields = request.response_fields.clone();
    let response_fields = response_fields.filter(|fields| !fields.is_empty());
    let sampling = sampling_request(state, target, request);
    let Begun {
        generation,
        sampling,
        prompts,
        info,
    } = chat::begin_raw(state, client, prompts, sampling).await?;
    let texts = decode_all(state, prompts, false).await?;
    let asked = Asked {
        settings: settings(&sampling.params, &info.eos_token_ids),
        prompts: texts,
        choices: sampling.params.n as usize,
        probabilities: sampling.shown.logprobs,
        // The chunks of a stream always have token ids.
        tokens: returns_tokens || sampling.stream,
        timings: sampling.shown.timings,
        fields: response_fields,
    };
    let form = LlamaReply::new(state, info, sampling.model, asked);
    respond(generation, form, sampling.stream).await
}

/// What a request asks for, with llama.cpp's defaults.
fn sampling_request(state: &ModelState, target: Target, request: LlamaSettings) -> SamplingRequest {
    let LlamaSettings {
        sampling: fields,
        queueing,
        ..
    } = request;
    let draw = defaults(state.options.draw_defaults, &state.options.defaults).draw;
    SamplingRequest {
        target,
        fields: SamplingFields {
            temperature: request.temperature.or(Some(draw.temperature)),
            top_k: request
                .top_k
                .map(|top_k| top_k.max(0))
                .or(Some(draw.top_k.into())),
            top_p: fields.top_p.or(Some(draw.top_p)),
            min_p: fields.min_p.or(Some(draw.min_p)),
            // A seed of -1 means a random seed.
            seed: fields.seed.filter(|seed| *seed != -1),
            // The last token distinguishes the model's end token from a stop string.
            return_token_ids: true,
            samplers: fields.samplers.with_window(),
            ..fields
        },
        queueing,
        form: None,
        alternatives: request.n_probs,
        max_tokens: request.n_predict.flatten(),
        echo: false,
        operation: "text_completion",
        names: NAMES,
    }
}
