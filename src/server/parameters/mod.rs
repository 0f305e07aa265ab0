//! The fields of requests. `table` lists every field; `kind` and `kinds` define their types. `read` reads a request by
//! the table. The other files check fields that depend on each other.

pub(crate) mod beams;
pub(crate) mod conversation;
pub(crate) mod kind;
pub(crate) mod kinds;
pub(crate) mod prompts;
pub(crate) mod read;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod table;
pub(crate) mod tools;
