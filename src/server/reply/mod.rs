//! From the events of a request to its reply.

pub(crate) mod generation;
pub(crate) mod openai;
