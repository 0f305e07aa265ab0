//! Wire forms: strict JSON in, errors and server-sent events out.

pub(crate) mod error;
pub(crate) mod json;
pub(crate) mod sse;
