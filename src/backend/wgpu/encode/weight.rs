//! The format of a weight, as kernels need it: which parts of `shaders/common/weight*.wgsl` to compile, and where the
//! sections of a row start.

use super::super::device::{Class, Profile};
use super::super::pipelines::Kernel;
use crate::plan::WeightFormat;
use crate::plan::format::{Codes, Levels, Scales, WIDE_GROUPS};

/// Bytes of a vector, the unit in which weights are read.
const VECTOR_BYTES: usize = 16;

/// `kernel` for weights in `format`, with integer half conversion if the adapter lacks `unpack2x16float`.
pub(crate) fn for_weight(kernel: Kernel, format: WeightFormat, profile: &Profile) -> Kernel {
    let (codes, levels, scales) = format.parts();
    let has_halves = format == WeightFormat::F16
        || !matches!(
            scales,
            Scales::None | Scales::Exponent | Scales::Float | Scales::Wide | Scales::E4m3
        );
    let kernel = kernel.define_if(has_halves && !profile.half_conversion, "SOFT_HALF");
    if codes == Codes::Dense {
        return kernel.define(match format {
            WeightFormat::F16 => "WEIGHT_F16",
            WeightFormat::Bf16 => "WEIGHT_BF16",
            _ => "WEIGHT_F32",
        });
    }
    let kernel = for_levels(for_codes(kernel, codes), levels);
    let kernel = for_conversion(kernel, codes, levels, profile);
    for_scales(kernel, format).define("GROUPS")
}

fn for_codes(kernel: Kernel, codes: Codes) -> Kernel {
    match codes {
        Codes::Dense => kernel,
        Codes::Eight => kernel.define("CODES_8"),
        Codes::Four => kernel.define("CODES_4"),
        Codes::FourOne => kernel.define("CODES_4").number("ONE_MORE_AT", 4),
        Codes::FourTwo => kernel.define("CODES_4").number("TWO_MORE_AT", 4),
        Codes::Two => kernel.define("CODES_2"),
        Codes::TwoOne => kernel.define("CODES_2").number("ONE_MORE_AT", 2),
        Codes::One => kernel.define("CODES_1"),
    }
}

fn for_levels(kernel: Kernel, levels: Levels) -> Kernel {
    let kernel = match levels {
        Levels::Unsigned(0) => kernel,
        Levels::Unsigned(offset) => kernel.number("OFFSET", offset.into()),
        Levels::Signed => kernel.define("LEVELS_SIGNED").number("OFFSET", 128),
        Levels::Iq4 => kernel.define("LEVELS_IQ4"),
        Levels::E2m1 => kernel.define("LEVELS_E2M1"),
        Levels::E4m3 => kernel.define("LEVELS_E4M3"),
        Levels::Sign => kernel.define("LEVELS_SIGN"),
        Levels::Iq1 => kernel.define("LEVELS_IQ1"),
        Levels::Iq2 => kernel.define("LEVELS_IQ2"),
        Levels::Iq3Xxs => kernel.define("LEVELS_IQ3_XXS"),
        Levels::Iq3S => kernel.define("LEVELS_IQ3_S"),
        Levels::Nf4 => kernel.define("LEVELS_NF4"),
        Levels::Fp4 => kernel.define("LEVELS_FP4"),
    };
    let kernel = match levels {
        Levels::Nf4 | Levels::Fp4 => kernel.define("LEVEL_FLOATS"),
        Levels::Unsigned(_) | Levels::Signed | Levels::E2m1 | Levels::E4m3 => kernel,
        _ => kernel.define("LEVEL_BYTES"),
    };
    match levels.multiple() {
        1 => kernel,
        multiple => kernel.number("LEVEL_MULTIPLE", multiple.into()),
    }
}

/// How codes become levels.
fn for_conversion(kernel: Kernel, codes: Codes, levels: Levels, profile: &Profile) -> Kernel {
    // GPUs convert any byte of a word in one instruction, and their workgroup memory looks up a level in another.
    let is_gpu = profile.class != Class::Software;
    kernel
        .define_if(is_gpu, "BYTE_CONVERSION")
        .define_if(is_gpu && levels.table().is_some(), "LEVEL_TABLE")
        .define_if(!is_gpu && levels.table().is_some(), "COMPUTED_LEVELS")
        .define_if(
            (codes, levels) == (Codes::Four, Levels::Unsigned(0)),
            "PLACED_NIBBLES",
        )
        .define_if(
            (codes, levels) == (Codes::Eight, Levels::Signed),
            "PLACED_BYTES",
        )
}

fn for_scales(kernel: Kernel, format: WeightFormat) -> Kernel {
    let (_, levels, scales) = format.parts();
    let kernel = kernel.define(match scales {
        Scales::None => "SCALES_NONE",
        Scales::Half => "SCALES_HALF",
        Scales::HalfMin => "SCALES_HALF_MIN",
        Scales::HalfZero => "SCALES_HALF_ZERO",
        Scales::Exponent => "SCALES_EXPONENT",
        Scales::Float | Scales::Wide => "SCALES_FLOAT",
        Scales::E4m3 => "SCALES_E4M3",
        Scales::K32 => "SCALES_K32",
        Scales::K32Min => "SCALES_K32_MIN",
        Scales::K16 => "SCALES_K16",
        Scales::K16Min => "SCALES_K16_MIN",
    });
    // Bits of a group's own scales.
    let kernel = match scales {
        Scales::None => kernel,
        Scales::Float => kernel.number("FLOAT_GROUPS", 2),
        Scales::Wide => kernel.number("FLOAT_GROUPS", WIDE_GROUPS as u32),
        Scales::Exponent | Scales::K32 => kernel.define("SCALE_BITS_8"),
        Scales::Half | Scales::E4m3 | Scales::K32Min | Scales::K16 | Scales::K16Min => {
            kernel.define("SCALE_BITS_16")
        }
        Scales::HalfMin | Scales::HalfZero => kernel.define("SCALE_BITS_32"),
    };
    let has_supers = matches!(
        scales,
        Scales::K32 | Scales::K32Min | Scales::K16 | Scales::K16Min
    );
    // Signed bytes are unsigned ones less 128 here.
    let has_offsets = format.has_offset() || levels == Levels::Signed;
    kernel
        .define_if(has_supers, "SUPERS")
        .define_if(has_offsets, "OFFSETS")
        .define_if(scales == Scales::E4m3, "ROW_FACTOR")
        .define_if(!has_supers && scales != Scales::E4m3, "NO_UNITS")
}

/// Starts of the sections of a row, in vectors of 16 bytes.
#[derive(Clone, Copy)]
pub(crate) struct RowParams {
    /// Vectors from one row to the next.
    pub(crate) row_vectors: u32,
    /// Second plane of codes.
    pub(crate) plane: u32,
    /// Scales of the groups.
    pub(crate) scales: u32,
    /// Halves shared by 256 weights, or the factor of the row.
    pub(crate) supers: u32,
}

impl RowParams {
    /// The sections of a row of `columns` weights.
    pub(crate) fn new(format: WeightFormat, columns: u32) -> Self {
        let layout = format.layout(columns as usize);
        debug_assert!(
            layout.row_bytes.is_multiple_of(VECTOR_BYTES),
            "kernels read a row in whole vectors"
        );
        let vectors =
            |bytes: usize| u32::try_from(bytes / VECTOR_BYTES).expect("a row fits a binding");
        Self {
            row_vectors: vectors(layout.row_bytes),
            plane: vectors(layout.plane),
            scales: vectors(layout.scales),
            supers: vectors(layout.supers),
        }
    }
}
