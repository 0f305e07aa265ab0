//! folio runs language models on any GPU.
pub mod backend;
pub mod config;
pub mod engine;
pub mod plan;
pub mod platform;
pub mod selftest;
