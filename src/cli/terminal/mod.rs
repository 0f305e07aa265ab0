//! What people see and type: results and notes, progress, answers while they arrive, and lines with editing.

pub(crate) mod cost;
pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod printer;
pub(crate) mod progress;
pub(crate) mod prose;
