//! Routes of Hugging Face's Text Embeddings Inference: `/embed`, `/embed_all`, `/similarity`, `/predict` and `/info`.
//! `/rerank` is in `rerank`. As in its server, a text that is too long is cut unless a request says otherwise.

use crate::engine::handle::{ClassHead, Squash};
use crate::server::guards::Client;
use crate::server::parameters::adapters;
use crate::server::parameters::prompts::Prompts;
use crate::server::parameters::read;
use crate::server::parameters::table::Queueing;
use crate::server::parameters::vectors::{
    TeiEmbedAllRequest, TeiEmbedRequest, TeiPredictRequest, TeiReading, TeiSequence,
    TeiSimilarityRequest,
};
use crate::server::reply::vectors::json_of;
use crate::server::routes::classes::{self, Cut, Pairs};
use crate::server::routes::embeddings::{self, Inputs};
use crate::server::state::{ModelState, ServerState};
use crate::server::wire::error::{ApiError, Names};
use crate::text::sentence::RowsOfText;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The engine's field names and those of these requests, where they differ.
const NAMES: Names = &[("prompt", "inputs")];

/// Inputs, read as these requests say.
fn inputs(prompts: Prompts, queueing: Queueing, reading: TeiReading) -> Inputs {
    let mut inputs = Inputs::new(prompts, queueing);
    inputs.truncates = reading.truncate;
    inputs.keeps_end = TeiReading::keeps_end(reading.truncation_direction);
    inputs.prompt_name = reading.prompt_name;
    inputs.names = NAMES;
    inputs
}

/// A vector of each text.
pub(crate) async fn embed(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: TeiEmbedRequest = read::read(request, &state).await?;
    adapters::base(&state, &request.target)?;
    let mut inputs = inputs(request.inputs, request.queueing, request.reading);
    inputs.normalize = request.normalize;
    inputs.dimensions = request.dimensions.map(|count| count as usize);
    let (vectors, _) = embeddings::vectors(&state, client, inputs).await?;
    json_of(&vectors)
}

/// The hidden states of all tokens of each text.
pub(crate) async fn embed_all(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: TeiEmbedAllRequest = read::read(request, &state).await?;
    adapters::base(&state, &request.target)?;
    let inputs = inputs(request.inputs, request.queueing, request.reading);
    let (rows, _) = embeddings::token_rows(&state, client, inputs).await?;
    json_of(&rows)
}

/// Cosines of a text and others.
pub(crate) async fn similarity(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: TeiSimilarityRequest = read::read(request, &state).await?;
    adapters::base(&state, &request.target)?;
    let mut texts = vec![request.inputs.source_sentence];
    texts.extend(request.inputs.sentences);
    let reading = request.parameters.unwrap_or(TeiReading {
        truncate: true,
        truncation_direction: None,
        prompt_name: None,
    });
    let inputs = inputs(Prompts::texts(texts), request.queueing, reading);
    let (vectors, _) = embeddings::vectors(&state, client, inputs).await?;
    let cosine = |other: &Vec<f32>| -> f64 {
        let pairs = vectors[0].iter().zip(other);
        pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    json_of(&vectors[1..].iter().map(cosine).collect::<Vec<_>>())
}

/// The classes of texts and of pairs of texts, the likeliest first.
pub(crate) async fn predict(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let client = Client::of(&request);
    let request: TeiPredictRequest = read::read(request, &state).await?;
    adapters::base(&state, &request.target)?;
    let head = classes::head(&state)?;
    let keeps_end = TeiReading::keeps_end(request.truncation_direction);
    let (mut texts, mut pairs, mut is_pair) = (Vec::new(), Vec::new(), Vec::new());
    for sequence in request.inputs.sequences {
        is_pair.push(matches!(sequence, TeiSequence::Pair(_)));
        match sequence {
            TeiSequence::One(text) => texts.push(text),
            TeiSequence::Pair(pair) => pairs.push(pair.map(Arc::from)),
        }
    }
    let mut ones = Inputs::new(Prompts::texts(texts), request.queueing.again());
    ones.truncates = request.truncate;
    ones.keeps_end = keeps_end;
    ones.names = NAMES;
    let pairs = Pairs {
        pairs,
        cut: Cut {
            whole: request.truncate.then_some(-1),
            second: None,
            keeps_end,
        },
        queueing: request.queueing,
        names: NAMES,
    };
    let (ones, _) = classes::logits(&state, client, &head, ones).await?;
    let (pairs, _) = classes::logits_of_pairs(&state, client, &head, pairs).await?;
    let (mut ones, mut pairs) = (ones.into_iter(), pairs.into_iter());
    let predictions = is_pair.into_iter().map(|is_pair| {
        let logits = if is_pair { pairs.next() } else { ones.next() };
        predictions(&head, &logits.unwrap_or_default(), request.raw_scores)
    });
    let mut predictions: Vec<Value> = predictions.collect();
    Ok(Json(if request.inputs.is_batch {
        predictions.into()
    } else {
        predictions.swap_remove(0)
    }))
}

/// Labels with their scores, the best first: of one label a sigmoid, of several a softmax, whatever the model's files
/// say.
fn predictions(head: &ClassHead, logits: &[f64], is_raw: bool) -> Value {
    let function = match (is_raw, logits.len()) {
        (true, _) => Squash::Identity,
        (false, 1) => Squash::Sigmoid,
        (false, _) => Squash::Softmax,
    };
    let scores = classes::scores(function, logits);
    let mut labelled: Vec<_> = head.spec.labels.iter().zip(scores).collect();
    labelled.sort_by(|a, b| b.1.total_cmp(&a.1));
    let entries = labelled.into_iter();
    entries
        .map(|(label, score)| json!({"score": score, "label": label}))
        .collect()
}

/// What the model is.
pub(crate) async fn info(State(server): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let state = server.models.one().ok_or_else(|| {
        let message = "a server of several models has no one to describe: see /v1/models";
        ApiError::unsupported("model", message)
    })?;
    let info = state.ready()?;
    let kind = match &info.classes {
        None => json!({"embedding": {"pooling": pooling(state)}}),
        Some(head) => {
            let labels = head.spec.labels.iter().enumerate();
            let by_id: Map<_, _> = labels
                .clone()
                .map(|(id, label)| (id.to_string(), label.as_str().into()))
                .collect();
            let by_label: Map<_, _> = labels
                .map(|(id, label)| (label.clone(), id.into()))
                .collect();
            let kind = if by_id.len() == 1 {
                "reranker"
            } else {
                "classifier"
            };
            json!({kind: {"id2label": by_id, "label2id": by_label}})
        }
    };
    let limits = &server.shared.options.limits;
    Ok(Json(json!({
        "model_id": state.model_names[0],
        "model_sha": null,
        "model_dtype": info.figures.main_format(),
        "model_type": kind,
        "max_concurrent_requests": limits.prompts_max,
        "max_input_length": embeddings::tokens_max(state, info),
        "max_batch_requests": info.max_num_seqs,
        "auto_truncate": true,
        "version": env!("CARGO_PKG_VERSION"),
    })))
}

/// The name of the model's pooling.
fn pooling(state: &ModelState) -> &'static str {
    let own = state.text.sentence.as_ref();
    let own = own.and_then(|own| own.poolings.first());
    let encodes = state.engine.info();
    let encodes = encodes.is_some_and(|info| info.computes_whole_sequences);
    match own {
        Some(RowsOfText::First) => "cls",
        Some(RowsOfText::Max) => "max",
        Some(RowsOfText::WeightedMean) => "weightedmean",
        Some(RowsOfText::Mean | RowsOfText::MeanOfRoot) => "mean",
        None if encodes => "mean",
        Some(RowsOfText::Last) | None => "last_token",
    }
}
