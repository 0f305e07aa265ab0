//! Routes of llama.cpp's server: `POST /completion`, `POST /infill`, `POST /apply-template`, `GET /props`.
//!
//! A request to `/completion` has the fields of `/v1/completions`, some under llama.cpp's names. The reply has
//! llama.cpp's form.

use crate::engine::request::SamplingParams;
use crate::server::guards::Client;
use crate::server::parameters::conversation::Conversation;
use crate::server::parameters::prompts::GapFields;
use crate::server::parameters::read;
use crate::server::parameters::sampling::SamplingRequest;
use crate::server::parameters::table::{
    InfillRequest, LlamaRequest, LlamaSettings, RenderChatRequest, SamplingFields, Target,
};
use crate::server::reply::llama::LlamaReply;
use crate::server::reply::respond;
use crate::server::routes::chat::{self, Begun};
use crate::server::routes::forward;
use crate::server::state::{ModelState, ServerState};
use crate::server::wire::error::{ApiError, Names};
use crate::text::TextModel;
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
    let info = state.ready()?;
    state.model(request.target.model)?;
    let conversation = Conversation::new(request.conversation)?;
    let prompt = chat::rendered(
        &state,
        info,
        (conversation, chat::NAMES),
        TextModel::chat_text,
    )
    .await?;
    Ok(Json(json!({"prompt": prompt})))
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
    Ok(Json(json!({
        "default_generation_settings": {"n_ctx": outline.max_model_len, "params": settings(&outline.defaults)},
        "total_slots": outline.max_num_seqs,
        "model_path": names[0],
        "model_alias": names[0],
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
        "temperature": params.draw.temperature,
        "top_k": params.draw.top_k,
        "top_p": params.draw.top_p,
        "min_p": params.draw.min_p,
        "repeat_penalty": params.draw.repetition_penalty,
        "presence_penalty": params.draw.presence_penalty,
        "frequency_penalty": params.draw.frequency_penalty,
        "ignore_eos": params.ignore_eos,
        "n_probs": params.logprobs.unwrap_or(0),
    })
}

/// Continues one prompt.
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
    let prompt = async { Ok((prompt.encode(&state, true).await?.remove(0), Vec::new())) };
    answer(&state, client, (target, settings), prompt).await
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
    let prompt = async {
        let (mut prompts, ends) = gap.encode(&state).await?;
        Ok((prompts.remove(0), ends))
    };
    answer(&state, client, (request.target, request.settings), prompt).await
}

/// Continues a prompt, which comes with more tokens that end an answer.
async fn answer(
    state: &ModelState,
    client: Client,
    (target, request): (Target, LlamaSettings),
    prompt: impl Future<Output = Result<(Vec<u32>, Vec<u32>), ApiError>>,
) -> Result<Response, ApiError> {
    let LlamaSettings {
        sampling: fields,
        queueing,
        ..
    } = request;
    let returns_tokens = request.return_tokens || fields.return_token_ids;
    let sampling = SamplingRequest {
        model: target.model,
        fields: SamplingFields {
            logit_bias: request.logit_bias,
            // A seed of -1 means a random seed.
            seed: fields.seed.filter(|seed| *seed != -1),
            // The last token distinguishes the model's end token from a stop string.
            return_token_ids: true,
            ..fields
        },
        queueing,
        form: None,
        alternatives: request.n_probs.filter(|count| *count > 0),
        max_tokens: request
            .n_predict
            .and_then(|count| u32::try_from(count).ok()),
        echo: false,
        operation: "text_completion",
        names: NAMES,
    };
    let Begun {
        generation,
        sampling,
        info,
        ..
    } = chat::begin_raw(state, client, prompt, sampling).await?;
    let form = LlamaReply::new(
        state,
        info,
        (sampling.model, settings(&sampling.params)),
        sampling.shown.logprobs,
        // The chunks of a stream always have token ids.
        returns_tokens || sampling.stream,
    );
    respond(generation, form, sampling.stream).await
}
