//! Byte layouts of activations, weights and the KV pool, and their scalar decoders.
//!
//! A decoder here is the definition of a format: the CPU twin reads bytes through it and every kernel is judged by it.

mod weight;

#[cfg(test)]
pub(crate) use weight::decode_e4m3;
pub(crate) use weight::{Codes, GROUP, Levels, Scales};
pub use weight::{Layout, WeightFormat};

use half::{bf16, f16};

/// Element type of a row buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// 32-bit float.
    F32,
    /// IEEE half; values are clamped to ±65504 when written.
    F16,
    /// bfloat16.
    Bf16,
}

impl Storage {
    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// `value` as it reads back after being written to this storage.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => round_f16(value),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}

/// Rounds to half precision, clamping to its finite range: an infinity written by one step is a NaN in the next.
pub fn round_f16(value: f32) -> f32 {
    f16::from_f32(clamp_f16(value)).to_f32()
}

/// Clamps to the finite range of half precision; NaN stays NaN.
pub fn clamp_f16(value: f32) -> f32 {
    value.clamp(-65504.0, 65504.0)
}

/// Element type of the KV pool: `[block][kv_head][slot][head_dim]`, K and V in buffers of their own per layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvFormat {
    /// 32-bit float.
    F32,
    /// IEEE half, two values a `u32`, values clamped to ±65504 when written.
    #[default]
    F16,
}

impl KvFormat {
    /// Bytes of one head row of one token.
    pub fn row_bytes(self, head_dim: u32) -> u64 {
        u64::from(head_dim) * u64::from(self.storage().bytes())
    }

    /// The scalar type of an element.
    pub const fn storage(self) -> Storage {
        match self {
            Self::F32 => Storage::F32,
            Self::F16 => Storage::F16,
        }
    }
}
