//! What can be wrong with a plan, by name and number: model code and kernel tests meet their mistakes here.

use super::operands::Rows;

/// A mistake in a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{place}: {kind}")]
pub struct PlanError {
    /// Where: `body step 3 (matmul)`, or the part of the plan that is wrong as a whole.
    pub place: String,
    /// What.
    pub kind: PlanErrorKind,
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanErrorKind {
    /// An id that names nothing.
    #[error("there is no {what} {id}")]
    Unknown {
        /// `buffer`, `weight`, `KV layer` or `KV group`.
        what: &'static str,
        /// The id.
        id: u32,
    },
    /// Two things of one name, or a layer that is stored twice.
    #[error("duplicate {name}")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Read before anything wrote it.
    #[error("{name} is read before it is written")]
    ReadBeforeWrite {
        /// Buffer, or KV layer.
        name: String,
    },
    /// A buffer that a step writes and names a second time.
    #[error("{name} is both input and output")]
    Aliased {
        /// Buffer.
        name: String,
    },
    /// Sizes that should agree.
    #[error("{what} is {found}, expected {expected}")]
    SizeMismatch {
        /// What was measured.
        what: String,
        /// Its size.
        found: u64,
        /// What its neighbours ask for.
        expected: u64,
    },
    /// Rows of the wrong kind.
    #[error("{name} has rows {found}, expected {expected}")]
    RowsMismatch {
        /// Buffer.
        name: String,
        /// Its rows.
        found: Rows,
        /// What the step works on.
        expected: Rows,
    },
    /// A value outside of what steps are defined for.
    #[error("{what} is {found}, expected {expected}")]
    Unsupported {
        /// What.
        what: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// More than one binding holds.
    #[error("{what} needs a binding of {bytes} bytes, the device allows {limit}")]
    BindingTooLarge {
        /// What.
        what: String,
        /// Its bytes.
        bytes: u64,
        /// The device's limit.
        limit: u64,
    },
}
