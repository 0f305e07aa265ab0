//! The fields of requests. `table` has every field, made of what is in `kind` and `kinds`; `read` reads a request by
//! the table; the other files check what its fields ask of each other.

pub(crate) mod conversation;
pub(crate) mod kind;
pub(crate) mod kinds;
pub(crate) mod prompts;
pub(crate) mod read;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod table;
pub(crate) mod tools;
