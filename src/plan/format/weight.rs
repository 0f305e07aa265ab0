//! Weight formats in device memory.
//!
//! Each row is self-contained: its sections follow each other, each padded to 16 bytes, so that a kernel reads whole
//! vectors and a matrix can be sharded between any two rows. A quantized weight is `a · level(code) + b`. Codes of 2
//! to 8 bits are stored in one or two planes of 1, 2, 4 or 8 bits; `a` and `b` are shared by a group of 16, 32 or 128
//! weights. Every published format that folio reads is repacked into one of these without loss: codes and scales are
//! moved, and most products of both are numbers that f32 holds exactly.
//!
//! | format | bits a weight | `a`, `b` | from |
//! |---|---|---|---|
//! | `q8` | 8.5 | half | Q8_0, quantized on load |
//! | `q4` | 5 | half, half | Q4_0, Q4_1, MLX, quantized on load |
//! | `q2z` `q3z` `q4z` `q8z` | 3 4 5 9 | half, half · integer | AWQ, GPTQ, compressed-tensors |
//! | `q5` | 6 | half, half | Q5_0, Q5_1, MLX |
//! | `q2` `q3` `q6` `q8m` | 3 4 7 9 | half, half | MLX |
//! | `i8` | 8.25 | f32 | bitsandbytes' and compressed-tensors' bytes |
//! | `iq4` | 4.5 | half | IQ4_NL |
//! | `mxfp4` `mxfp8` | 4.25 8.25 | power of two | MXFP4, MXFP8 |
//! | `nvfp4` | 4.5 | E4M3 · f32 of the row | NVFP4 |
//! | `nf4` `fp4` | 4.5 | f32 | bitsandbytes |
//! | `e4m3` | 8.25 | f32 | FP8 |
//! | `q2k` `q4k` `q5k` | 2.6 4.6 5.6 | half · integer, half · integer | Q2_K, Q4_K, Q5_K |
//! | `q3k` `q6k` `iq4k` | 3.6 6.6 4.4 | half · integer | Q3_K, Q6_K, IQ4_XS |
//! | `iq1` `iq2` | 3.6 | half · integer | IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S |
//! | `iq3xxs` `iq3s` | 4.4 | half · integer | IQ3_XXS, IQ3_S |
//! | `q1` `t2` | 1.5 2.5 | half | Q1_0; Q2_0, TQ1_0, TQ2_0 |
//!
//! `docs/formats.md` lists which formats were tested on which backend.

use half::{bf16, f16};

/// Weights per group: their codes are unpacked together.
pub(crate) const GROUP: usize = 32;
/// Weights per half of a group, which has a scale of its own in some formats.
const HALF_GROUP: usize = GROUP / 2;
/// Weights per super-group of a K format, which share half-precision scales.
const SUPER: usize = 256;
/// Groups that share a wide scale.
pub(crate) const WIDE_GROUPS: usize = 4;
/// Every section of a row is padded to a multiple of this many bytes.
const SECTION_BYTES: usize = 16;

/// Levels of IQ4_NL and IQ4_XS.
const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// Twice the levels of E2M1: the top bit of a code is the sign.
const E2M1_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The two levels of Q1_0.
const SIGN_LEVELS: [i8; 16] = padded([-1, 1]);
/// Eight times the levels of IQ1_S and IQ1_M: an entry of the grid, which is −1, 0 or 1, and a shift of ±1/8.
const IQ1_LEVELS: [i8; 16] = padded([-9, -7, -1, 1, 7, 9]);
/// Magnitudes of the grids of IQ2_XXS, IQ2_XS and IQ2_S with both signs: eight times what the scales refer to.
const IQ2_LEVELS: [i8; 16] = padded([-43, -25, -8, 8, 25, 43]);
/// Half the magnitudes of the grid of IQ3_XXS with both signs: twice what the scales refer to.
const IQ3_XXS_LEVELS: [i8; 16] = [
    -31, -26, -22, -18, -14, -10, -6, -2, 2, 6, 10, 14, 18, 22, 26, 31,
];
/// Magnitudes of the grid of IQ3_S with both signs.
const IQ3_S_LEVELS: [i8; 16] = [-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15];
/// Levels of NF4: quantiles of the normal distribution (bitsandbytes 0.50.2, whose files contain them too).
pub(crate) const NF4_LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];
/// Levels of bitsandbytes' FP4, which are not E2M1's.
pub(crate) const FP4_LEVELS: [f32; 16] = [
    0.0,
    0.005_208_333_5,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    0.0,
    -0.005_208_333_5,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];

/// Levels of codes that are fewer than sixteen.
const fn padded<const N: usize>(levels: [i8; N]) -> [i8; 16] {
    let mut table = [0; 16];
    let mut code = 0;
    while code < N {
        table[code] = levels[code];
        code += 1;
    }
    table
}

/// Storage format of the weights of a row in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightFormat {
    /// Little-endian f32.
    F32,
    /// Little-endian IEEE half.
    F16,
    /// Little-endian bfloat16.
    Bf16,
    /// Signed bytes; one half-precision scale per 32.
    Q8,
    /// Nibbles; half-precision scale and minimum per 32.
    Q4,
    /// Nibbles; half-precision scale and zero point per 32.
    Q4Zero,
    /// Five bits; half-precision scale and minimum per 32.
    Q5,
    /// Nibbles that index a table of non-uniform levels; one half-precision scale per 32.
    Iq4,
    /// E2M1 nibbles; one power-of-two scale per 32.
    Mxfp4,
    /// E4M3 bytes; one f32 scale per 128.
    E4m3,
    /// Two bits; 4-bit scale and minimum per 16, two halves per 256.
    Q2K,
    /// Three bits, offset 4; 8-bit scale per 16, one half per 256.
    Q3K,
    /// Nibbles; 8-bit scale and minimum per 32, two halves per 256.
    Q4K,
    /// Five bits; 8-bit scale and minimum per 32, two halves per 256.
    Q5K,
    /// Six bits, offset 32; 8-bit scale per 16, one half per 256.
    Q6K,
    /// Nibbles that index a table of non-uniform levels; 8-bit scale per 32, one half per 256.
    Iq4K,
    /// Two bits; half-precision scale and minimum per 32.
    Q2,
    /// Three bits; half-precision scale and minimum per 32.
    Q3,
    /// Six bits; half-precision scale and minimum per 32.
    Q6,
    /// Unsigned bytes; half-precision scale and minimum per 32.
    Q8Min,
    /// Two bits; half-precision scale and zero point per 32.
    Q2Zero,
    /// Three bits; half-precision scale and zero point per 32.
    Q3Zero,
    /// Unsigned bytes; half-precision scale and zero point per 32.
    Q8Zero,
    /// Signed bytes; one f32 scale per 128.
    Int8,
    /// E4M3 bytes; one power-of-two scale per 32.
    Mxfp8,
    /// E2M1 nibbles; E4M3 scale per 16, one f32 per row.
    Nvfp4,
    /// Nibbles that index quantiles of the normal distribution; one f32 scale per 64.
    Nf4,
    /// Nibbles that index bitsandbytes' 4-bit floats; one f32 scale per 64.
    Fp4,
    /// Three bits that index a table of six levels; 8-bit scale per 16, one half per 256.
    Iq1,
    /// Three bits that index a table of six levels; 8-bit scale per 16, one half per 256.
    Iq2,
    /// Nibbles that index a table of sixteen levels; 8-bit scale per 32, one half per 256.
    Iq3Xxs,
    /// Nibbles that index the odd numbers from −15 to 15; 8-bit scale per 32, one half per 256.
    Iq3S,
    /// One bit, −1 or 1; one half-precision scale per 32.
    Q1,
    /// Two bits, offset 1; one half-precision scale per 32.
    Ternary,
}

/// Bit planes that hold the codes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// Not quantized.
    Dense,
    /// Bytes.
    Eight,
    /// Nibbles.
    Four,
    /// Nibbles, and a second plane with the fifth bits.
    FourOne,
    /// Nibbles, and a second plane with two more bits.
    FourTwo,
    /// Two bits.
    Two,
    /// Two bits, and a second plane with the third bits.
    TwoOne,
    /// Bits.
    One,
}

/// How a code maps to its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Levels {
    /// The code minus an offset.
    Unsigned(u8),
    /// The code as a two's complement integer.
    Signed,
    /// An entry of [`IQ4_LEVELS`].
    Iq4,
    /// Twice a 4-bit float: an entry of [`E2M1_LEVELS`].
    E2m1,
    /// An 8-bit float.
    E4m3,
    /// An entry of [`SIGN_LEVELS`].
    Sign,
    /// An entry of [`IQ1_LEVELS`].
    Iq1,
    /// An entry of [`IQ2_LEVELS`].
    Iq2,
    /// An entry of [`IQ3_XXS_LEVELS`].
    Iq3Xxs,
    /// An entry of [`IQ3_S_LEVELS`].
    Iq3S,
    /// An entry of [`NF4_LEVELS`].
    Nf4,
    /// An entry of [`FP4_LEVELS`].
    Fp4,
}

impl Levels {
    /// The levels of codes of up to 4 bits, if they are not the codes themselves.
    pub(crate) const fn table(self) -> Option<[f32; 16]> {
        let table = match self {
            Self::Unsigned(_) | Self::Signed | Self::E4m3 => return None,
            Self::Nf4 => return Some(NF4_LEVELS),
            Self::Fp4 => return Some(FP4_LEVELS),
            Self::Iq4 => IQ4_LEVELS,
            Self::E2m1 => E2M1_LEVELS,
            Self::Sign => SIGN_LEVELS,
            Self::Iq1 => IQ1_LEVELS,
            Self::Iq2 => IQ2_LEVELS,
            Self::Iq3Xxs => IQ3_XXS_LEVELS,
            Self::Iq3S => IQ3_S_LEVELS,
        };
        let mut levels = [0.0; 16];
        let mut code = 0;
        while code < 16 {
            levels[code] = table[code] as f32;
            code += 1;
        }
        Some(levels)
    }

    /// How many times larger than what the scales refer to the levels are, so that all are integers: a power of two.
    pub(crate) const fn multiple(self) -> u8 {
        match self {
            Self::E2m1 | Self::Iq3Xxs => 2,
            Self::Iq1 | Self::Iq2 => 8,
            _ => 1,
        }
    }
}

/// How the scales `a` and `b` of a group are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// Not quantized.
    None,
    /// One half per group of 32.
    Half,
    /// Two halves per group of 32.
    HalfMin,
    /// A half and a 16-bit zero point per group of 32.
    HalfZero,
    /// A biased exponent per group of 32.
    Exponent,
    /// An f32 per group of 64.
    Float,
    /// An f32 per group of 128.
    Wide,
    /// An E4M3 byte per group of 16, times an f32 per row.
    E4m3,
    /// A signed byte per group of 32, times a half per 256.
    K32,
    /// Two bytes per group of 32, times two halves per 256.
    K32Min,
    /// A signed byte per group of 16, times a half per 256.
    K16,
    /// Two nibbles per group of 16, times two halves per 256.
    K16Min,
}

/// Byte offsets of the sections of a row, from the start of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Second plane of codes.
    pub plane: usize,
    /// Scales of the groups.
    pub scales: usize,
    /// Halves shared by 256 weights, or the f32 of the row.
    pub supers: usize,
    /// The next row: the size of a row.
    pub row_bytes: usize,
}

/// The components of the formats, in the order of [`WeightFormat::ALL`].
const PARTS: [(Codes, Levels, Scales); 34] = [
    (Codes::Dense, Levels::Unsigned(0), Scales::None),
    (Codes::Dense, Levels::Unsigned(0), Scales::None),
    (Codes::Dense, Levels::Unsigned(0), Scales::None),
    (Codes::Eight, Levels::Signed, Scales::Half),
    (Codes::Four, Levels::Unsigned(0), Scales::HalfMin),
    (Codes::Four, Levels::Unsigned(0), Scales::HalfZero),
    (Codes::FourOne, Levels::Unsigned(0), Scales::HalfMin),
    (Codes::Four, Levels::Iq4, Scales::Half),
    (Codes::Four, Levels::E2m1, Scales::Exponent),
    (Codes::Eight, Levels::E4m3, Scales::Wide),
    (Codes::Two, Levels::Unsigned(0), Scales::K16Min),
    (Codes::TwoOne, Levels::Unsigned(4), Scales::K16),
    (Codes::Four, Levels::Unsigned(0), Scales::K32Min),
    (Codes::FourOne, Levels::Unsigned(0), Scales::K32Min),
    (Codes::FourTwo, Levels::Unsigned(32), Scales::K16),
    (Codes::Four, Levels::Iq4, Scales::K32),
    (Codes::Two, Levels::Unsigned(0), Scales::HalfMin),
    (Codes::TwoOne, Levels::Unsigned(0), Scales::HalfMin),
    (Codes::FourTwo, Levels::Unsigned(0), Scales::HalfMin),
    (Codes::Eight, Levels::Unsigned(0), Scales::HalfMin),
    (Codes::Two, Levels::Unsigned(0), Scales::HalfZero),
    (Codes::TwoOne, Levels::Unsigned(0), Scales::HalfZero),
    (Codes::Eight, Levels::Unsigned(0), Scales::HalfZero),
    (Codes::Eight, Levels::Signed, Scales::Wide),
    (Codes::Eight, Levels::E4m3, Scales::Exponent),
    (Codes::Four, Levels::E2m1, Scales::E4m3),
    (Codes::Four, Levels::Nf4, Scales::Float),
    (Codes::Four, Levels::Fp4, Scales::Float),
    (Codes::TwoOne, Levels::Iq1, Scales::K16),
    (Codes::TwoOne, Levels::Iq2, Scales::K16),
    (Codes::Four, Levels::Iq3Xxs, Scales::K32),
    (Codes::Four, Levels::Iq3S, Scales::K32),
    (Codes::One, Levels::Sign, Scales::Half),
    (Codes::Two, Levels::Unsigned(1), Scales::Half),
];

impl WeightFormat {
    /// All formats.
    pub const ALL: [Self; 34] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8,
        Self::Q4,
        Self::Q4Zero,
        Self::Q5,
        Self::Iq4,
        Self::Mxfp4,
        Self::E4m3,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4K,
        Self::Q2,
        Self::Q3,
        Self::Q6,
        Self::Q8Min,
        Self::Q2Zero,
        Self::Q3Zero,
        Self::Q8Zero,
        Self::Int8,
        Self::Mxfp8,
        Self::Nvfp4,
        Self::Nf4,
        Self::Fp4,
        Self::Iq1,
        Self::Iq2,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Q1,
        Self::Ternary,
    ];

    /// The components of a format; kernel variants are selected by them too.
    pub(crate) const fn parts(self) -> (Codes, Levels, Scales) {
        PARTS[self as usize]
    }

    /// Whether the codes of a group are signed bytes, once unpacked, so that they can be multiplied as integers.
    pub const fn has_byte_codes(self) -> bool {
        match self.parts() {
            (Codes::Dense, ..) => false,
            (Codes::Eight, levels, _) => matches!(levels, Levels::Signed),
            (_, levels, _) => matches!(levels, Levels::Unsigned(_)),
        }
    }

    /// Whether tensor cores can multiply the levels: as bf16 that holds them exactly, or as the sum of two.
    pub const fn has_narrow_levels(self) -> bool {
        !matches!(self, Self::F32 | Self::Nf4 | Self::Fp4)
    }

    /// Whether weights are stored as quantization codes.
    pub const fn is_quantised(self) -> bool {
        !matches!(self.parts().0, Codes::Dense)
    }

    /// Bytes of one element, if the format is not quantized.
    pub const fn element_bytes(self) -> Option<u32> {
        match self {
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            _ => None,
        }
    }

    /// Bytes of a row of `columns` elements.
    pub fn row_bytes(self, columns: u32) -> u64 {
        match self.element_bytes() {
            Some(bytes) => u64::from(columns) * u64::from(bytes),
            None => self.layout(columns as usize).row_bytes as u64,
        }
    }

    /// The sections of a row of `columns` weights.
    pub fn layout(self, columns: usize) -> Layout {
        let (codes, _, scales) = self.parts();
        let (groups, supers) = (columns.div_ceil(GROUP), columns.div_ceil(SUPER));
        let (first, second) = match codes {
            Codes::Dense => (self.element_bytes().unwrap_or(0) as usize * columns, 0),
            Codes::Eight => (32 * groups, 0),
            Codes::Four => (16 * groups, 0),
            Codes::FourOne => (16 * groups, 4 * groups),
            Codes::FourTwo => (16 * groups, 8 * groups),
            Codes::Two => (8 * groups, 0),
            Codes::TwoOne => (8 * groups, 4 * groups),
            Codes::One => (4 * groups, 0),
        };
        let (scale_bytes, super_bytes) = match scales {
            Scales::None => (0, 0),
            Scales::Half => (2 * groups, 0),
            Scales::HalfMin | Scales::HalfZero => (4 * groups, 0),
            Scales::Exponent => (groups, 0),
            Scales::Float => (4 * groups.div_ceil(2), 0),
            Scales::Wide => (4 * groups.div_ceil(WIDE_GROUPS), 0),
            Scales::E4m3 => (2 * groups, 4),
            Scales::K32 => (groups, 4 * supers),
            Scales::K32Min | Scales::K16 | Scales::K16Min => (2 * groups, 4 * supers),
        };
        if matches!(codes, Codes::Dense) {
            return Layout {
                plane: first,
                scales: first,
                supers: first,
                row_bytes: first,
            };
        }
        let plane = first.next_multiple_of(SECTION_BYTES);
        let scales = (plane + second).next_multiple_of(SECTION_BYTES);
        let supers = (scales + scale_bytes).next_multiple_of(SECTION_BYTES);
        let row_bytes = (supers + super_bytes).next_multiple_of(SECTION_BYTES);
        Layout {
            plane,
            scales,
            supers,
            row_bytes,
        }
    }

    /// Decodes element `index` of a row of `columns` weights: the definition of the format.
    pub fn decode(self, row: &[u8], columns: usize, index: usize) -> f32 {
        debug_assert!(
            index < columns,
            "weight {index} is one of the {columns} of a row"
        );
        let word = |at: usize| u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([row[at], row[at + 1]]);
        match self {
            Self::F32 => f32::from_bits(word(4 * index)),
            Self::F16 => f16::from_bits(half(2 * index)).to_f32(),
            Self::Bf16 => bf16::from_bits(half(2 * index)).to_f32(),
            _ => {
                let layout = self.layout(columns);
                let (a, b) = self.scale(row, &layout, index);
                a * self.level(self.code(row, &layout, index)) + b
            }
        }
    }

    /// Decodes up to [`GROUP`] weights of a row, starting at `32 · group`.
    #[inline(always)]
    pub(crate) fn decode_group(self, row: &[u8], layout: &Layout, group: usize) -> [f32; GROUP] {
        debug_assert!(
            row.len() >= layout.row_bytes,
            "a group is decoded from its whole row"
        );
        let codes = self.codes(row, layout, group);
        let scales = [
            self.scale(row, layout, GROUP * group),
            self.scale(row, layout, GROUP * group + GROUP / 2),
        ];
        let mut values = [0.0; GROUP];
        for (half, (a, b)) in scales.into_iter().enumerate() {
            for index in half * GROUP / 2..(half + 1) * GROUP / 2 {
                values[index] = a * self.level(codes[index]) + b;
            }
        }
        values
    }

    /// Unpacks all codes of a group at once: the loops have fixed lengths, so the compiler vectorizes them.
    #[inline(always)]
    fn codes(self, row: &[u8], layout: &Layout, group: usize) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        match self.parts().0 {
            Codes::Dense => {}
            Codes::Eight => codes.copy_from_slice(&row[GROUP * group..][..GROUP]),
            Codes::Four | Codes::FourOne | Codes::FourTwo => {
                let bytes: &[u8] = &row[16 * group..][..16];
                for eight in 0..4 {
                    for i in 0..4 {
                        codes[8 * eight + i] = bytes[4 * eight + i] & 15;
                        codes[8 * eight + 4 + i] = bytes[4 * eight + i] >> 4;
                    }
                }
            }
            Codes::Two | Codes::TwoOne => add_pairs(&mut codes, &row[8 * group..][..8], 0),
            Codes::One => add_bits(&mut codes, &row[4 * group..][..4], 0),
        }
        match self.parts().0 {
            Codes::FourOne => add_bits(&mut codes, &row[layout.plane + 4 * group..][..4], 4),
            Codes::TwoOne => add_bits(&mut codes, &row[layout.plane + 4 * group..][..4], 2),
            Codes::FourTwo => add_pairs(&mut codes, &row[layout.plane + 8 * group..][..8], 4),
            _ => {}
        }
        codes
    }

    fn code(self, row: &[u8], layout: &Layout, index: usize) -> u8 {
        let (eight, i) = (index / 8, index % 8);
        let nibble = |at: usize| row[at + 4 * eight + i % 4] >> (4 * (i / 4)) & 15;
        let pair = |at: usize| row[at + 2 * eight + i / 4] >> (2 * (i % 4)) & 3;
        let bit = |at: usize| row[at + eight] >> i & 1;
        match self.parts().0 {
            Codes::Dense => 0,
            Codes::Eight => row[index],
            Codes::Four => nibble(0),
            Codes::FourOne => nibble(0) | bit(layout.plane) << 4,
            Codes::FourTwo => nibble(0) | pair(layout.plane) << 4,
            Codes::Two => pair(0),
            Codes::TwoOne => pair(0) | bit(layout.plane) << 2,
            Codes::One => bit(0),
        }
    }

    #[inline(always)]
    fn level(self, code: u8) -> f32 {
        let levels = self.parts().1;
        match levels {
            // The offset is folded into `b`, so that a kernel adds it once per group.
            Levels::Unsigned(_) => f32::from(code),
            Levels::Signed => f32::from(code.cast_signed()),
            Levels::E4m3 => decode_e4m3(code),
            _ => levels
                .table()
                .map_or(0.0, |table| table[usize::from(code & 15)]),
        }
    }

    /// `a` and `b` of weight `index`.
    #[inline(always)]
    fn scale(self, row: &[u8], layout: &Layout, index: usize) -> (f32, f32) {
        let (group, at) = (index / GROUP, layout.scales);
        let half = |at: usize| f16::from_le_bytes([row[at], row[at + 1]]).to_f32();
        let float =
            |at: usize| f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
        let multiple = f32::from(self.parts().1.multiple());
        match self.parts().2 {
            Scales::None => (1.0, 0.0),
            Scales::Half => {
                let a = half(at + 2 * group);
                (a, -(a * self.offset()))
            }
            Scales::HalfMin => (half(at + 4 * group), half(at + 4 * group + 2)),
            Scales::HalfZero => {
                let a = half(at + 4 * group);
                let zero = i16::from_le_bytes([row[at + 4 * group + 2], row[at + 4 * group + 3]]);
                (a, -(a * f32::from(zero)))
            }
            Scales::Exponent => (power(row[at + group]) / multiple, 0.0),
            Scales::Float => (float(at + 4 * (group / 2)), 0.0),
            Scales::Wide => (float(at + 4 * (group / WIDE_GROUPS)), 0.0),
            Scales::E4m3 => {
                let own = decode_e4m3(row[at + index / HALF_GROUP]) / multiple;
                (own * float(layout.supers), 0.0)
            }
            Scales::K32 | Scales::K32Min | Scales::K16 | Scales::K16Min => {
                let unit =
                    |place: usize| half(layout.supers + 4 * (index / SUPER) + 2 * place) / multiple;
                self.shared_scale([unit(0), unit(1)], &row[at..], index)
            }
        }
    }

    /// `a` and `b` of weight `index`, from those of its 256 weights and the section of scales.
    #[inline(always)]
    fn shared_scale(self, units: [f32; 2], scales: &[u8], index: usize) -> (f32, f32) {
        let group = index / GROUP;
        match self.parts().2 {
            Scales::K32 => (units[0] * f32::from(scales[group].cast_signed()), 0.0),
            Scales::K32Min => (
                units[0] * f32::from(scales[2 * group]),
                -(units[1] * f32::from(scales[2 * group + 1])),
            ),
            Scales::K16 => {
                let a = units[0] * f32::from(scales[index / HALF_GROUP].cast_signed());
                (a, -(a * self.offset()))
            }
            _ => {
                let both = scales[index / HALF_GROUP];
                (
                    units[0] * f32::from(both & 15),
                    -(units[1] * f32::from(both >> 4)),
                )
            }
        }
    }

    /// What unsigned codes are greater by than what they stand for.
    pub(crate) const fn offset(self) -> f32 {
        match self.parts().1 {
            Levels::Unsigned(offset) => offset as f32,
            _ => 0.0,
        }
    }

    /// Whether `b` is not 0.
    pub(crate) const fn has_offset(self) -> bool {
        match self.parts().2 {
            Scales::HalfMin | Scales::HalfZero | Scales::K32Min | Scales::K16Min => true,
            Scales::Half | Scales::K16 => self.offset() != 0.0,
            _ => false,
        }
    }
}

/// `2^(biased − 127)`; the smallest one is subnormal.
fn power(biased: u8) -> f32 {
    f32::from_bits(if biased == 0 {
        1 << 22
    } else {
        u32::from(biased) << 23
    })
}

/// Sign, four bits of exponent, three of mantissa; no infinities.
pub(crate) fn decode_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * f32::from_bits(((exponent + 120) as u32) << 23),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[inline(always)]
fn add_pairs(codes: &mut [u8; GROUP], bytes: &[u8], shift: u32) {
    for four in 0..8 {
        for i in 0..4 {
            codes[4 * four + i] |= (bytes[four] >> (2 * i) & 3) << shift;
        }
    }
}

#[inline(always)]
fn add_bits(codes: &mut [u8; GROUP], bytes: &[u8], shift: u32) {
    for eight in 0..4 {
        for i in 0..8 {
            codes[8 * eight + i] |= (bytes[eight] >> i & 1) << shift;
        }
    }
}

#[cfg(test)]
mod tests;
