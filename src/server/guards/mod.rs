//! What every request passes before its route reads it: host, origin and key ([`access`]), then the body's limits
//! ([`body`]).
//!
//! Nothing here knows routes or request fields: a guard refuses, or says who asks and hands on a JSON object.

pub(super) mod access;
mod body;

pub(super) use access::Client;
pub(super) use body::read_object;
