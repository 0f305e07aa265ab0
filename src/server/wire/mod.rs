//! Wire forms: strict JSON ([`json`]) and queries ([`query`]) in, errors ([`error`]) and server-sent events ([`sse`])
//! out, bodies of responses ([`body`]), and the memory that requests take ([`memory`]).
//!
//! Nothing here knows routes, replies, the server's state or the meaning of a field.

pub(crate) mod body;
pub(crate) mod error;
pub(crate) mod json;
pub(crate) mod memory;
pub(crate) mod query;
pub(crate) mod sse;
