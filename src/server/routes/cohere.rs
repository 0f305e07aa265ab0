//! `POST /v2/embed`: vectors in Cohere's form, in several number formats at once.

use crate::server::guards::Client;
use crate::server::parameters::adapters;
use crate::server::parameters::prompts::Prompts;
use crate::server::parameters::read;
use crate::server::parameters::vectors::CohereEmbedRequest;
use crate::server::reply::vectors::{base64_of, json_of};
use crate::server::routes::embeddings::{self, Inputs};
use crate::server::state::ModelState;
use crate::server::wire::error::{ApiError, Names};
use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;
use std::collections::BTreeMap;

/// The engine's field names and those of this request, where they differ.
const NAMES: Names = &[("prompt", "texts"), ("prompt_name", "input_type")];
/// Cohere's names of what texts are for, with the names of prompts that say the same.
const INPUT_TYPES: [(&str, &[&str]); 4] = [
    ("search_query", &["search_query", "query"]),
    (
        "search_document",
        &["search_document", "document", "passage"],
    ),
    ("classification", &["classification"]),
    ("clustering", &["clustering"]),
];

/// The whole reply.
#[derive(Serialize)]
struct Reply {
    id: String,
    embeddings: BTreeMap<&'static str, Vec<Coded>>,
    texts: Vec<String>,
    meta: Meta,
    response_type: &'static str,
}

#[derive(Serialize)]
struct Meta {
    api_version: Version,
    billed_units: Units,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

#[derive(Serialize)]
struct Units {
    input_tokens: usize,
}

/// A vector in one of the forms.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Coded {
    Floats(Vec<f32>),
    Signed(Vec<i8>),
    Unsigned(Vec<u8>),
    Base64(String),
}

/// Embeds texts.
pub(crate) async fn embed(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: CohereEmbedRequest = read::read(request, &state).await?;
    adapters::base(&state, &request.target)?;
    let texts = request.texts;
    let mut inputs = Inputs::new(Prompts::texts(texts.clone()), request.queueing);
    inputs.names = NAMES;
    inputs.prompt_name = prompt_name(&state, request.input_type)?;
    inputs.truncates = request.truncate != Some("NONE");
    inputs.keeps_end = request.truncate == Some("START");
    inputs.tokens_max = request.max_tokens.map(|most| most as usize);
    inputs.dimensions = request.output_dimension.map(|count| count as usize);
    let (vectors, input_tokens) = embeddings::vectors(&state, client, inputs).await?;
    let types = request.embedding_types.unwrap_or_else(|| vec!["float"]);
    let embeddings = types.into_iter().map(|form| {
        let coded = vectors.iter().map(|vector| coded(vector, form));
        (form, coded.collect())
    });
    json_of(&Reply {
        id: state.shared.new_id("embd"),
        embeddings: embeddings.collect(),
        texts,
        meta: Meta {
            api_version: Version { version: "2" },
            billed_units: Units { input_tokens },
        },
        response_type: "embeddings_by_type",
    })
}

/// The name of the prompt that an input type stands for. A model without prompts takes any of Cohere's types.
fn prompt_name(state: &ModelState, input_type: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(asked) = input_type else {
        return Ok(None);
    };
    let sentence = state.text.sentence.as_ref();
    let has = |name: &str| sentence.is_some_and(|own| own.prompts.contains_key(name));
    if has(&asked) {
        return Ok(Some(asked));
    }
    let known = INPUT_TYPES.iter().find(|(name, _)| *name == asked);
    let found = known.and_then(|(_, names)| names.iter().find(|name| has(name)));
    let has_none = sentence.is_none_or(|own| own.prompts.is_empty());
    match (found, known) {
        (Some(name), _) => Ok(Some((*name).to_owned())),
        (None, Some(_)) if has_none => Ok(None),
        _ => {
            let own = sentence.into_iter().flat_map(|own| own.prompts.keys());
            let names: Vec<_> = own.map(String::as_str).collect();
            let message = format!(
                "`input_type`: {asked} is none of this model's prompts ({})",
                names.join(", ")
            );
            Err(ApiError::invalid("input_type", message))
        }
    }
}

/// A vector of length one in another form: elements of ±1 as ±127, or a bit for each element that is positive.
fn coded(vector: &[f32], form: &str) -> Coded {
    let scaled = || {
        vector
            .iter()
            .map(|x| (x * 127.0).round().clamp(-128.0, 127.0) as i8)
    };
    let bits = || {
        vector.chunks(8).map(|eight| {
            let bits = eight.iter().enumerate();
            bits.fold(0_u8, |byte, (bit, x)| {
                byte | u8::from(*x > 0.0) << (7 - bit)
            })
        })
    };
    // The signed forms are the unsigned ones less 128.
    let half = 1 << 7;
    match form {
        "int8" => Coded::Signed(scaled().collect()),
        "uint8" => Coded::Unsigned(scaled().map(|x| (x as u8).wrapping_add(half)).collect()),
        "ubinary" => Coded::Unsigned(bits().collect()),
        "binary" => Coded::Signed(bits().map(|byte| byte.wrapping_sub(half) as i8).collect()),
        "base64" => Coded::Base64(base64_of(vector)),
        _ => Coded::Floats(vector.to_vec()),
    }
}

#[cfg(test)]
mod tests;
