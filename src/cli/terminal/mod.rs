//! What people see: results and notes, progress, and answers while they arrive.

pub(crate) mod cost;
pub(crate) mod output;
pub(crate) mod printer;
pub(crate) mod progress;
pub(crate) mod prose;
