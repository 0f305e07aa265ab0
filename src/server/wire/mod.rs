//! Wire forms: strict JSON in ([`json`]), errors ([`error`]) and server-sent events ([`sse`]) out.
//!
//! Nothing here knows a route, a reply, the server's state or what a field means.

pub(crate) mod error;
pub(crate) mod json;
pub(crate) mod sse;
