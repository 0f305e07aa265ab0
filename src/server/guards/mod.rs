//! What every request passes before its route.

pub(crate) mod access;
