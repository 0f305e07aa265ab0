//! Errors in plans: mistakes of model code and kernel tests.

use super::operands::Rows;

/// A mistake in a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{place}: {kind}")]
pub struct PlanError {
    /// Location: `body step 3 (matmul)`, or the part of the plan that is wrong as a whole.
    pub place: String,
    /// Kind of mistake.
    pub kind: PlanErrorKind,
}

/// Kinds of mistakes in a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanErrorKind {
    /// An id that does not exist.
    #[error("there is no {what} {id}")]
    Unknown {
        /// `buffer`, `weight`, `KV layer`, `KV group` or `state layer`.
        what: &'static str,
        /// Its place in the plan's list, if there were one.
        id: u32,
    },
    /// A duplicate name, a KV layer that is stored twice, or a state layer that two steps use.
    #[error("duplicate {name}")]
    Duplicate {
        /// Its name, or its kind and number, such as `KV group 1`.
        name: String,
    },
    /// A buffer or KV layer that is read before any step writes it.
    #[error("{name} is read before it is written")]
    ReadBeforeWrite {
        /// Name of the buffer or KV layer.
        name: String,
    },
    /// A buffer that is both an output and another operand of one step.
    #[error("{name} is both input and output")]
    Aliased {
        /// Name of the buffer.
        name: String,
    },
    /// A buffer, weight or option of another size than its step needs.
    #[error("{what} is {found}, expected {expected}")]
    SizeMismatch {
        /// Name of the size.
        what: String,
        /// Actual size.
        found: u64,
        /// Size required by the other operands.
        expected: u64,
    },
    /// A buffer with the wrong kind of rows.
    #[error("{name} has rows {found}, expected {expected}")]
    RowsMismatch {
        /// Name of the buffer.
        name: String,
        /// Actual kind of rows.
        found: Rows,
        /// Kind of rows that the step requires.
        expected: Rows,
    },
    /// A value outside the supported range.
    #[error("{what} is {found}, expected {expected}")]
    Unsupported {
        /// Name of the value or buffer.
        what: String,
        /// Actual value.
        found: String,
        /// Supported values.
        expected: &'static str,
    },
}
