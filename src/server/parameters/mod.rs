//! The fields of requests. `table` has every field; `kinds` and the files beside it read one kind of field each;
//! `fields` reads a request by the table.

pub(crate) mod fields;
pub(crate) mod kinds;
pub(crate) mod messages;
pub(crate) mod prompts;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod table;
pub(crate) mod tools;
