//! The engine.
pub mod handle;
pub mod request;
