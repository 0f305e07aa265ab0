//! LoRA adapters (docs/adapters.md): what their files hold, which matrices of a model they may change, and the content
//! of a slot.
//!
//! An adapter changes a matrix W to W + s · B · A. A model with slots for adapters has, after each product with a
//! matrix that they may change, two products more: with the A of a token's slot, and with its B, added to the output
//! ([`slots`]). The names are those of transformers' modules, also where the model comes from GGUF.

mod config;
mod file;
mod layout;
mod slots;

pub use file::Adapter;
pub use layout::{AdapterLayout, SlotContent};
pub(super) use slots::with_slots;

use crate::plan::WeightFormat;

/// Room for adapters on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterRoom {
    /// Number of adapters that may be used in one step.
    pub slots: u32,
    /// Largest rank of an adapter, or of the adapters that a request combines, together.
    pub rank: u32,
    /// Format of their matrices: f32, f16 or bf16.
    pub format: WeightFormat,
}

#[cfg(test)]
mod tests;
