//! The fields of requests. `table` lists every field of OpenAI's, vLLM's and llama.cpp's requests; `kind` and `kinds`
//! define their types. `read` reads a request by the table. `anthropic`, `responses` and `ollama` have the fields of
//! other APIs and translate them to a chat turn. The other files check fields that depend on each other.

pub(crate) mod adapters;
pub(crate) mod anthropic;
pub(crate) mod beams;
pub(crate) mod conversation;
pub(crate) mod fields;
pub(crate) mod kind;
pub(crate) mod kinds;
pub(crate) mod ollama;
pub(crate) mod prepared;
pub(crate) mod prompts;
pub(crate) mod read;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod samplers;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod table;
pub(crate) mod thinking;
pub(crate) mod thought_budget;
pub(crate) mod tools;
pub(crate) mod turns;
pub(crate) mod vectors;
pub(crate) mod vocabulary;
