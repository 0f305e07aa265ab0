//! The HTTP API in process. The router is called without sockets and runs the real engine: on the fake device for tests
//! of form and faults, and on the CPU with the demo model for tests of text. `grammars` tests the grammars of
//! structured output.
#![cfg(feature = "server")]

mod agents;
mod answers;
mod bad_requests;
mod classes;
mod connections;
mod document;
mod edges;
mod embeddings;
mod encoders;
mod faults;
mod fields;
mod grammars;
mod harness;
mod images;
mod infill;
mod llama;
mod llama_server;
mod local;
mod metrics;
mod models;
mod ollama;
#[path = "../support/packed.rs"]
mod packed;
mod peers;
mod rerank;
mod responses;
mod routes;
mod scores;
mod sockets;
mod speculation;
mod structural_tags;
mod structured;
mod tables;
mod templates;
#[path = "../support/tensors.rs"]
mod tensors;
mod tools;
mod turns;
#[cfg(unix)]
mod unix_socket;
mod vectors;
mod vllm;
mod vllm_routes;
