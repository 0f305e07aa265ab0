//! One file per endpoint; `table` lists every path. A handler reads its request with `parameters`, submits it, and
//! passes the generation to `reply`. No JSON object is built in two handlers, and none knows sockets.

pub(crate) mod batch;
pub(crate) mod chat;
pub(crate) mod classes;
pub(crate) mod cohere;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod forward;
pub(crate) mod health;
pub(crate) mod llama;
pub(crate) mod load;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod openapi;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod table;
pub(crate) mod tei;
pub(crate) mod tokens;
#[cfg(feature = "server")]
pub(crate) mod ui;
pub(crate) mod vllm;
