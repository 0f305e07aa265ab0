//! Wire forms: strict JSON in ([`json`]), errors ([`error`]) and server-sent events ([`sse`]) out.
//!
//! Nothing here knows routes, replies, the server's state or the meaning of a field.

pub(crate) mod error;
pub(crate) mod json;
pub(crate) mod sse;
