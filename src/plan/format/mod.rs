//! Byte layouts of activations, weights and the KV pool, and their scalar decoders.
//!
//! A decoder here is the definition of its format: the CPU reference reads bytes through it, and every kernel is tested
//! against it.

mod kv;
mod weight;

pub(crate) use kv::e4m3_half;
pub use kv::{KvFormat, KvTile};
pub(crate) use weight::decode_e4m3;
pub(crate) use weight::{Codes, FP4_LEVELS, GROUP, Levels, NF4_LEVELS, Scales, WIDE_GROUPS};
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

    /// `value` rounded to this storage and widened again.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => round_f16(value),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}

/// Rounds to half precision, clamped to its finite range: an infinity written by one step becomes NaN in the next.
pub fn round_f16(value: f32) -> f32 {
    f16::from_f32(clamp_f16(value)).to_f32()
}

/// Clamps to the finite range of half precision; NaN stays NaN.
pub fn clamp_f16(value: f32) -> f32 {
    value.clamp(-65504.0, 65504.0)
}
