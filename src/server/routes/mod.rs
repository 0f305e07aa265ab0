//! One endpoint a file; `table` has every path. A handler reads its request through `parameters`, submits it, and hands
//! the generation to `reply`; it builds no JSON that another one builds too, and knows no sockets.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod health;
pub(crate) mod llama;
pub(crate) mod load;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod openapi;
pub(crate) mod table;
pub(crate) mod tokens;
pub(crate) mod ui;
