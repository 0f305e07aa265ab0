//! How vectors are written: as numbers, as base64, or as bytes, in the number format and byte order that vLLM's clients
//! name.

use crate::server::parameters::table::VectorFields;
use crate::server::wire::error::ApiError;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use half::{bf16, f16};
use serde::Serialize;
use serde_json::{Value, json};

/// Maximum bytes of what a header says of vectors that are sent as bytes.
const METADATA_BYTES_MAX: usize = 32 << 10;

/// The form of vectors in a reply.
pub(crate) struct VectorForm {
    encoding: &'static str,
    dtype: &'static str,
    endianness: &'static str,
}

/// Vectors, and what is said beside them.
pub(crate) struct Vectors {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) prompt_tokens: usize,
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

/// A reply in JSON. Serialized directly: as JSON values, f32 would become f64 with more digits.
pub(crate) fn json_of(content: &impl Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_string(content).map_err(|_| ApiError::internal())?;
    Ok(([(CONTENT_TYPE, "application/json")], Body::from(body)).into_response())
}

/// Numbers as base64 of little-endian 32-bit floats.
pub(crate) fn base64_of(numbers: &[f32]) -> String {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

impl VectorForm {
    pub(crate) fn new(fields: &VectorFields) -> Self {
        Self {
            encoding: fields.encoding_format.unwrap_or("float"),
            dtype: fields.embed_dtype.unwrap_or("float32"),
            endianness: fields.endianness.unwrap_or("little"),
        }
    }

    fn is_big(&self) -> bool {
        self.endianness == "big" || (self.endianness == "native" && cfg!(target_endian = "big"))
    }

    fn bytes(&self, vector: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(vector.len() * 4);
        for value in vector {
            let from = bytes.len();
            match self.dtype {
                "float16" => bytes.extend(f16::from_f32(*value).to_le_bytes()),
                "bfloat16" => bytes.extend(bf16::from_f32(*value).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
            if self.is_big() {
                bytes[from..].reverse();
            }
        }
        bytes
    }

    /// The whole reply.
    ///
    /// # Errors
    /// So many vectors as bytes that a header cannot describe them.
    pub(crate) fn reply(&self, vectors: Vectors) -> Result<Response, ApiError> {
        let usage =
            json!({"prompt_tokens": vectors.prompt_tokens, "total_tokens": vectors.prompt_tokens});
        if matches!(self.encoding, "bytes" | "bytes_only") {
            return self.as_bytes(&vectors, &usage);
        }
        let entries = vectors.vectors.into_iter().enumerate();
        let entries = entries.map(|(index, vector)| Entry {
            object: "embedding",
            index,
            embedding: if self.encoding == "base64" {
                Vector::Base64(
                    base64::engine::general_purpose::STANDARD.encode(self.bytes(&vector)),
                )
            } else {
                Vector::Floats(vector)
            },
        });
        let data = serde_json::to_string(&entries.collect::<Vec<_>>())
            .map_err(|_| ApiError::internal())?;
        // Serialized directly: as JSON values, f32 would become f64 with more digits.
        let model = Value::from(vectors.model);
        let body =
            format!("{{\"object\":\"list\",\"data\":{data},\"model\":{model},\"usage\":{usage}}}");
        Ok(([(CONTENT_TYPE, "application/json")], Body::from(body)).into_response())
    }

    /// The vectors one after the other; a header says where each is, unless that is not wanted.
    fn as_bytes(&self, vectors: &Vectors, usage: &Value) -> Result<Response, ApiError> {
        let (mut body, mut data) = (Vec::new(), Vec::new());
        for (index, vector) in vectors.vectors.iter().enumerate() {
            let start = body.len();
            body.append(&mut self.bytes(vector));
            data.push(
                json!({"index": index, "embed_dtype": self.dtype, "endianness": self.endianness,
                "start": start, "end": body.len(), "shape": [vector.len()]}),
            );
        }
        let mut response = ([(CONTENT_TYPE, "application/octet-stream")], body).into_response();
        if self.encoding == "bytes" {
            let Vectors {
                id, created, model, ..
            } = vectors;
            let said =
                json!({"id": id, "created": created, "model": model, "data": data, "usage": usage});
            let said = said.to_string();
            if said.len() > METADATA_BYTES_MAX {
                let message =
                    "so many vectors do not fit a header: send `encoding_format`: \"bytes_only\"";
                return Err(ApiError::invalid("encoding_format", message));
            }
            let header = HeaderValue::from_str(&said).map_err(|_| ApiError::internal())?;
            response.headers_mut().insert("metadata", header);
        }
        Ok(response)
    }
}
