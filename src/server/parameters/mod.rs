//! What a request may say: its fields, read and checked.

pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod tools;
