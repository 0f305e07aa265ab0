//! Classes of texts and of pairs of texts, by a model's head for classes; and `POST /classify`, vLLM's form.

use crate::engine::handle::{ClassHead, EngineInfo, Squash};
use crate::engine::request::{Pooling, Request as EngineRequest};
use crate::platform;
use crate::server::guards::Client;
use crate::server::parameters::adapters;
use crate::server::parameters::read;
use crate::server::parameters::rerank::ClassifyRequest;
use crate::server::parameters::table::Queueing;
use crate::server::routes::embeddings::{self, Inputs};
use crate::server::state::{ModelState, prompt_bytes_max};
use crate::server::wire::error::{ApiError, Names, name_of};
use crate::text::sentence::RowsOfText;
use crate::text::{PairIds, PairLimits, TextModel};
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

/// How pairs that are too long are cut.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cut {
    /// Maximum tokens of a pair; -1: as many as fit; `None`: a pair that does not fit is refused.
    pub(crate) whole: Option<i64>,
    /// Maximum tokens of the second text.
    pub(crate) second: Option<i64>,
    /// The end of a text is kept, not its beginning.
    pub(crate) keeps_end: bool,
}

/// Pairs of texts, and how they are read.
pub(crate) struct Pairs {
    pub(crate) pairs: Vec<[Arc<str>; 2]>,
    pub(crate) cut: Cut,
    pub(crate) queueing: Queueing,
    /// The engine's field names and the request's, where they differ.
    pub(crate) names: Names,
}

/// The model's head for classes, or the error that it has none.
pub(crate) fn head(state: &ModelState) -> Result<Arc<ClassHead>, ApiError> {
    state.ready()?.classes.clone().ok_or_else(|| {
        let message = "this model has no head for classes: it is made for other routes";
        ApiError::unsupported("model", message)
    })
}

/// What a function makes of logits.
pub(crate) fn scores(function: Squash, logits: &[f64]) -> Vec<f64> {
    let mut scores = logits.to_vec();
    function.apply(&mut scores);
    scores
}

/// Logits of texts, and the number of tokens that were read.
pub(crate) async fn logits(
    state: &ModelState,
    client: Client,
    head: &ClassHead,
    mut inputs: Inputs,
) -> Result<(Vec<Vec<f64>>, usize), ApiError> {
    inputs.pooling = Some(if head.spec.of_mean {
        RowsOfText::Mean
    } else {
        RowsOfText::First
    });
    let (rows, counts) = embeddings::rows(state, client, inputs).await?;
    let logits = rows.iter().map(|row| head.logits(row));
    Ok((logits.collect(), counts.iter().sum()))
}

/// Logits of pairs of texts, and the number of tokens that were read.
pub(crate) async fn logits_of_pairs(
    state: &ModelState,
    client: Client,
    head: &ClassHead,
    inputs: Pairs,
) -> Result<(Vec<Vec<f64>>, usize), ApiError> {
    let info = state.ready()?;
    let Pairs {
        pairs,
        cut,
        queueing,
        names,
    } = inputs;
    let pooling = if head.spec.of_mean {
        Pooling::Mean
    } else {
        Pooling::First
    };
    let base = embeddings::base_request(&queueing, client, pooling);
    base.check_without_prompt(info.vocab, info.max_model_len)
        .map_err(|error| ApiError::refused(&error, names))?;
    let pairs = encoded(state, info, pairs, (cut, names)).await?;
    let (ids, seconds): (Vec<_>, Vec<_>) = pairs
        .into_iter()
        .map(|pair| (pair.ids, pair.second))
        .unzip();
    let tokens = ids.iter().map(Vec::len).sum();
    let requests = ids.into_iter().zip(seconds).map(|(ids, second)| {
        let second = if info.marks_texts { second } else { None };
        EngineRequest {
            prompt: ids.into(),
            second_text: second.and_then(|at| u32::try_from(at).ok()),
            ..base.clone()
        }
    });
    let rows = embeddings::pooled(state, requests, names).await?;
    Ok((rows.iter().map(|row| head.logits(row)).collect(), tokens))
}

/// A text as a model reads it.
fn cased(text: &str, lowercases: bool) -> Cow<'_, str> {
    if lowercases {
        text.to_lowercase().into()
    } else {
        text.into()
    }
}

/// Pairs as token ids, cut as the request says. Fails at the first one that is longer than the model reads.
async fn encoded(
    state: &ModelState,
    info: &EngineInfo,
    pairs: Vec<[Arc<str>; 2]>,
    (cut, names): (Cut, Names),
) -> Result<Vec<PairIds>, ApiError> {
    let field = name_of("prompt", names);
    let most = prompt_bytes_max(info);
    if cut.whole.is_none() && cut.second.is_none() {
        for text in pairs.iter().flatten() {
            if text.len() > most {
                let has = format!("your text has {} bytes, of at most {most}", text.len());
                return Err(ApiError::context_length(field, info.max_model_len, &has));
            }
        }
    }
    let room = embeddings::tokens_max(state, info);
    let size = |most: Option<i64>, all| match most {
        None => usize::MAX,
        Some(most) => usize::try_from(most).map_or(all, |most| most.min(all)),
    };
    let limits = PairLimits {
        whole: size(cut.whole, room as usize),
        second: size(cut.second, usize::MAX),
        keeps_end: cut.keeps_end,
    };
    let bytes = pairs.iter().flatten().map(|text| text.len()).sum();
    state
        .with_text(bytes, move |text: &TextModel| {
            let tokenizer = text.tokenizer.as_ref().ok_or_else(|| {
                ApiError::unsupported("model", "this model has no tokenizer, which pairs need")
            })?;
            let lowercases = text.sentence.as_ref().is_some_and(|own| own.lowercases);
            let encode = |[first, second]: &[Arc<str>; 2]| {
                let texts = [cased(first, lowercases), cased(second, lowercases)];
                let pair = tokenizer
                    .encode_pair([&texts[0], &texts[1]], Some(limits))
                    .map_err(|error| ApiError::invalid(field, error.to_string()))?;
                embeddings::check_lengths(std::slice::from_ref(&pair.ids), room)
                    .map_err(|error| ApiError::refused(&error, names))?;
                Ok::<_, ApiError>(pair)
            };
            pairs.iter().map(encode).collect()
        })
        .await?
}

/// Classifies texts, in vLLM's form.
pub(crate) async fn classify(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let client = Client::of(&request);
    let request: ClassifyRequest = read::read(request, &state).await?;
    let model = adapters::base(&state, &request.target)?;
    let head = head(&state)?;
    let mut inputs = Inputs::new(request.input, request.queueing);
    inputs.add_special = request.add_special_tokens;
    let (logits, tokens) = logits(&state, client, &head, inputs).await?;
    let data: Vec<_> = logits
        .into_iter()
        .enumerate()
        .map(|(index, logits)| {
            let probs = match request.use_activation {
                true => scores(head.spec.score, &logits),
                false => logits,
            };
            let best = best(&probs);
            let label = &head.spec.labels[best];
            json!({"index": index, "label": label, "probs": probs, "num_classes": probs.len()})
        })
        .collect();
    Ok(Json(json!({
        "id": state.shared.new_id("classify"),
        "object": "list",
        "created": platform::unix_time(),
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// The index of the largest score; of equal ones, the first.
fn best(scores: &[f64]) -> usize {
    (1..scores.len()).fold(0, |best, index| {
        if scores[index] > scores[best] {
            index
        } else {
            best
        }
    })
}
