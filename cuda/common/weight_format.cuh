// Weight formats: where the sections of a row are, and how codes become levels. Defined by src/plan/format/weight.rs.
//
// Codes become bytes in column order, four per word. A byte becomes a float, or two become a bfloat16 pair, which holds
// every level exactly. A constant that a format subtracts from all codes is subtracted here, so that only formats with
// a minimum or a zero point have a `b`. -DWEIGHT=Name selects the format, by a name of this enum and of the Rust one.

#pragma once
#include "common/prelude.cuh"

enum class Weight : u32 {
  F32, F16, Bf16, Q8, Q4, Q4Zero, Q5, Iq4, Mxfp4, E4m3, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4K,
  Q2, Q3, Q6, Q8Min, Q2Zero, Q3Zero, Q8Zero, Int8, Mxfp8, Nvfp4, Nf4, Fp4, Iq1, Iq2, Iq3Xxs, Iq3S, Q1, Ternary
};
enum class Codes : u32 { Dense, Eight, Four, FourOne, FourTwo, Two, TwoOne, One };
enum class Levels : u32 { Unsigned, Signed, Iq4, E2m1, E4m3, Sign, Iq1, Iq2, Iq3Xxs, Iq3S, Nf4, Fp4 };
enum class Scales : u32 { None, Half, HalfMin, HalfZero, Exponent, Float, Wide, E4m3, K32, K32Min, K16, K16Min };

constexpr u32 GROUP = 32;

// The components of a format, and what unsigned codes are greater by than what they stand for.
struct Parts {
  Codes codes;
  Levels levels;
  Scales scales;
  u32 offset;
};
__device__ constexpr Parts parts_of(Weight w) {
  switch (w) {
    case Weight::Q8: return {Codes::Eight, Levels::Signed, Scales::Half, 0};
    case Weight::Q4: return {Codes::Four, Levels::Unsigned, Scales::HalfMin, 0};
    case Weight::Q4Zero: return {Codes::Four, Levels::Unsigned, Scales::HalfZero, 0};
    case Weight::Q5: return {Codes::FourOne, Levels::Unsigned, Scales::HalfMin, 0};
    case Weight::Iq4: return {Codes::Four, Levels::Iq4, Scales::Half, 0};
    case Weight::Mxfp4: return {Codes::Four, Levels::E2m1, Scales::Exponent, 0};
    case Weight::E4m3: return {Codes::Eight, Levels::E4m3, Scales::Wide, 0};
    case Weight::Q2K: return {Codes::Two, Levels::Unsigned, Scales::K16Min, 0};
    case Weight::Q3K: return {Codes::TwoOne, Levels::Unsigned, Scales::K16, 4};
    case Weight::Q4K: return {Codes::Four, Levels::Unsigned, Scales::K32Min, 0};
    case Weight::Q5K: return {Codes::FourOne, Levels::Unsigned, Scales::K32Min, 0};
    case Weight::Q6K: return {Codes::FourTwo, Levels::Unsigned, Scales::K16, 32};
    case Weight::Iq4K: return {Codes::Four, Levels::Iq4, Scales::K32, 0};
    case Weight::Q2: return {Codes::Two, Levels::Unsigned, Scales::HalfMin, 0};
    case Weight::Q3: return {Codes::TwoOne, Levels::Unsigned, Scales::HalfMin, 0};
    case Weight::Q6: return {Codes::FourTwo, Levels::Unsigned, Scales::HalfMin, 0};
    case Weight::Q8Min: return {Codes::Eight, Levels::Unsigned, Scales::HalfMin, 0};
    case Weight::Q2Zero: return {Codes::Two, Levels::Unsigned, Scales::HalfZero, 0};
    case Weight::Q3Zero: return {Codes::TwoOne, Levels::Unsigned, Scales::HalfZero, 0};
    case Weight::Q8Zero: return {Codes::Eight, Levels::Unsigned, Scales::HalfZero, 0};
    case Weight::Int8: return {Codes::Eight, Levels::Signed, Scales::Wide, 0};
    case Weight::Mxfp8: return {Codes::Eight, Levels::E4m3, Scales::Exponent, 0};
    case Weight::Nvfp4: return {Codes::Four, Levels::E2m1, Scales::E4m3, 0};
    case Weight::Nf4: return {Codes::Four, Levels::Nf4, Scales::Float, 0};
    case Weight::Fp4: return {Codes::Four, Levels::Fp4, Scales::Float, 0};
    case Weight::Iq1: return {Codes::TwoOne, Levels::Iq1, Scales::K16, 0};
    case Weight::Iq2: return {Codes::TwoOne, Levels::Iq2, Scales::K16, 0};
    case Weight::Iq3Xxs: return {Codes::Four, Levels::Iq3Xxs, Scales::K32, 0};
    case Weight::Iq3S: return {Codes::Four, Levels::Iq3S, Scales::K32, 0};
    case Weight::Q1: return {Codes::One, Levels::Sign, Scales::Half, 0};
    case Weight::Ternary: return {Codes::Two, Levels::Unsigned, Scales::Half, 1};
    default: return {Codes::Dense, Levels::Unsigned, Scales::None, 0};
  }
}
__device__ constexpr Codes codes_of(Weight w) { return parts_of(w).codes; }
__device__ constexpr Levels levels_of(Weight w) { return parts_of(w).levels; }
__device__ constexpr Scales scales_of(Weight w) { return parts_of(w).scales; }
__device__ constexpr bool is_dense(Weight w) { return codes_of(w) == Codes::Dense; }
// Whether levels are floats of a table that bfloat16 does not hold exactly.
__device__ constexpr bool has_float_table(Weight w) {
  return levels_of(w) == Levels::Nf4 || levels_of(w) == Levels::Fp4;
}
// Whether levels are integers of a table of 16 entries.
__device__ constexpr bool has_table(Weight w) {
  return levels_of(w) != Levels::Unsigned && levels_of(w) != Levels::Signed && levels_of(w) != Levels::E4m3 &&
         !has_float_table(w);
}
// How many times larger than what the scales refer to the levels are.
__device__ constexpr float level_multiple(Weight w) {
  return levels_of(w) == Levels::E2m1 || levels_of(w) == Levels::Iq3Xxs ? 2.0f
         : levels_of(w) == Levels::Iq1 || levels_of(w) == Levels::Iq2   ? 8.0f
                                                                        : 1.0f;
}
// Whether the format has a `b`.
__device__ constexpr bool has_minimum(Weight w) {
  return scales_of(w) == Scales::HalfMin || scales_of(w) == Scales::HalfZero || scales_of(w) == Scales::K32Min ||
         scales_of(w) == Scales::K16Min;
}
// Whether each half of a group has its own scale.
__device__ constexpr bool has_half_groups(Weight w) {
  return scales_of(w) == Scales::K16 || scales_of(w) == Scales::K16Min || scales_of(w) == Scales::E4m3;
}
// Whether rows end with a factor, in place of what 256 columns share.
__device__ constexpr bool has_row_factor(Weight w) { return scales_of(w) == Scales::E4m3; }
__device__ constexpr bool has_supers(Weight w) {
  return scales_of(w) == Scales::K32 || scales_of(w) == Scales::K32Min || has_half_groups(w);
}
// Bytes of codes per group of 32.
__device__ constexpr u32 code_bytes(Weight w) {
  return w == Weight::F32 ? 128 : is_dense(w) ? 64 : codes_of(w) == Codes::Eight ? 32
         : codes_of(w) == Codes::Two || codes_of(w) == Codes::TwoOne ? 8 : codes_of(w) == Codes::One ? 4 : 16;
}
__device__ constexpr u32 plane_bytes(Weight w) {
  return codes_of(w) == Codes::FourTwo ? 8 : codes_of(w) == Codes::FourOne || codes_of(w) == Codes::TwoOne ? 4 : 0;
}
// Bytes of scales per four groups.
__device__ constexpr u32 scale_bytes(Weight w) {
  return scales_of(w) == Scales::HalfMin || scales_of(w) == Scales::HalfZero ? 16
         : scales_of(w) == Scales::Half || scales_of(w) == Scales::Float || scales_of(w) == Scales::K32Min ||
                 has_half_groups(w)
             ? 8
         : is_dense(w) ? 0 : 4;
}

// Where the sections of a row start, in bytes.
struct WeightLayout {
  u32 plane, scales, supers, row_bytes;
};
__device__ constexpr u32 round_up_16(u32 bytes) { return (bytes + 15) & ~15u; }
template <Weight W> __device__ constexpr WeightLayout weight_layout(u32 columns) {
  if (is_dense(W)) {
    const u32 bytes = columns * (code_bytes(W) / GROUP);
    return {bytes, bytes, bytes, bytes};
  }
  const u32 groups = (columns + GROUP - 1) / GROUP;
  const u32 plane = round_up_16(groups * code_bytes(W));
  const u32 scales = round_up_16(plane + groups * plane_bytes(W));
  const u32 all_scales = scales_of(W) == Scales::Wide    ? (groups + 3) / 4 * 4
                         : scales_of(W) == Scales::Float ? (groups + 1) / 2 * 4
                                                         : groups * scale_bytes(W) / 4;
  const u32 supers = round_up_16(scales + all_scales);
  const u32 shared = has_row_factor(W) ? 4 : has_supers(W) ? (columns + 255) / 256 * 4 : 0;
  return {plane, scales, supers, round_up_16(supers + shared)};
}

// Levels + 128 of a table, four entries per word.
struct TableWords {
  u32 words[4];
};
__device__ constexpr TableWords table_words(Weight w) {
  switch (levels_of(w)) {
    case Levels::E2m1: return {{0x83828180u, 0x8c888684u, 0x7d7e7f80u, 0x74787a7cu}};
    case Levels::Sign: return {{0x8080817fu, 0x80808080u, 0x80808080u, 0x80808080u}};
    case Levels::Iq1: return {{0x817f7977u, 0x80808987u, 0x80808080u, 0x80808080u}};
    case Levels::Iq2: return {{0x88786755u, 0x8080ab99u, 0x80808080u, 0x80808080u}};
    case Levels::Iq3Xxs: return {{0x6e6a6661u, 0x7e7a7672u, 0x8e8a8682u, 0x9f9a9692u}};
    case Levels::Iq3S: return {{0x77757371u, 0x7f7d7b79u, 0x87858381u, 0x8f8d8b89u}};
    default: return {{0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u}};
  }
}
__device__ constexpr u32 table_word(Weight w, u32 at) { return table_words(w).words[at]; }
// Levels that are floats.
__device__ const float NF4_LEVELS[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f,
    -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,
    0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
__device__ const float FP4_LEVELS[16] = {
    0.0f, 0.0052083334885537624f, 0.6666666865348816f, 1.0f, 0.3333333432674408f, 0.5f, 0.1666666716337204f, 0.25f,
    0.0f, -0.0052083334885537624f, -0.6666666865348816f, -1.0f,
    -0.3333333432674408f, -0.5f, -0.1666666716337204f, -0.25f};

// The table entries of four nibbles, the lowest first.
template <Weight W> __device__ __forceinline__ u32 look_up(u32 nibbles) {
  const u32 within = nibbles & 0x7777u;
  const u32 low = __byte_perm(table_word(W, 0), table_word(W, 1), within);
  const u32 high = __byte_perm(table_word(W, 2), table_word(W, 3), within);
  return __byte_perm(low, high, 0x3210u | (nibbles & 0x8888u) >> 1);
}

// The eight nibbles of a word as bytes; `bits` holds their fifth bits, or fifth and sixth bits, from bit 0 on.
template <Weight W> __device__ __forceinline__ uint2 bytes_of_nibbles(u32 word, u32 bits) {
  if (has_table(W)) {
    // A byte holds columns i and i + 4.
    const u32 even = look_up<W>(word), odd = look_up<W>(word >> 16);
    return make_uint2(__byte_perm(even, odd, 0x6420), __byte_perm(even, odd, 0x7531));
  }
  uint2 bytes = make_uint2(word & 0x0f0f0f0fu, word >> 4 & 0x0f0f0f0fu);
  if (codes_of(W) == Codes::FourOne) {
    // Spreads four bits over four bytes: the shifted copies do not overlap.
    bytes.x |= (bits & 15u) * 0x02040810u & 0x10101010u;
    bytes.y |= (bits >> 4 & 15u) * 0x02040810u & 0x10101010u;
  }
  if (codes_of(W) == Codes::FourTwo) {
    const u32 low = (bits & 0x0fu) | (bits & 0xf0u) << 12, high = (bits >> 8 & 0x0fu) | (bits >> 8 & 0xf0u) << 12;
    bytes.x |= (low << 4 & 0x00300030u) | (low << 10 & 0x30003000u);
    bytes.y |= (high << 4 & 0x00300030u) | (high << 10 & 0x30003000u);
  }
  return bytes;
}
// Four bytes below 16 as the nibbles of the low half of a word.
__device__ __forceinline__ u32 nibbles_of_bytes(u32 bytes) {
  const u32 pairs = bytes | bytes >> 4;
  return (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
}
// Four pairs of bits as bytes, from bit 0 on; `bits` holds their third bits.
template <Weight W> __device__ __forceinline__ u32 bytes_of_pairs(u32 pairs, u32 bits) {
  const u32 spread = (pairs & 0x0fu) | (pairs & 0xf0u) << 12;
  u32 bytes = (spread & 0x00030003u) | (spread << 6 & 0x03000300u);
  if (codes_of(W) == Codes::TwoOne) bytes |= (bits & 15u) * 0x00810204u & 0x04040404u;
  return has_table(W) ? look_up<W>(nibbles_of_bytes(bytes)) : bytes;
}
// Four bits as bytes, from bit 0 on.
template <Weight W> __device__ __forceinline__ u32 bytes_of_bits(u32 bits) {
  return look_up<W>(nibbles_of_bytes((bits & 15u) * 0x00204081u & 0x01010101u));
}
// Codes that are whole bytes; levels + 128 if they are signed.
template <Weight W> __device__ __forceinline__ u32 bytes_of_bytes(u32 word) {
  return levels_of(W) == Levels::Signed ? word ^ 0x80808080u : word;
}

// The constant that is subtracted from every byte.
__device__ constexpr u32 level_offset(Weight w) {
  return has_table(w) || levels_of(w) == Levels::Signed ? 128 : parts_of(w).offset;
}
// Levels of bytes 0 and 1, or of 2 and 3, as bfloat16; exact.
template <Weight W, u32 HALF> __device__ __forceinline__ u32 level_pair(u32 bytes) {
  static_assert(!has_float_table(W), "these levels are no bfloat16");
  if (levels_of(W) == Levels::E4m3) {
    // Moves the exponent into place and corrects its bias by 2^120; this includes subnormal numbers.
    const u32 tops = __byte_perm(bytes, 0, HALF ? 0x3424 : 0x1404);
    return fma_bf16x2((tops & 0x80008000u) | (tops >> 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
  }
  // 0x4300 | n is 128 + n for n < 128.
  const u32 moved = __byte_perm(bytes, 0x43434343u, HALF ? 0x7362 : 0x5140);
  if (level_offset(W) == 128)
    return fma_bf16x2(moved & 0xff7fff7fu, 0x3f803f80u, ((moved & 0x00800080u) ^ 0x00800080u) | 0xc300c300u);
  // Of unsigned bytes the highest bit is 128, which moving adds to all: it is subtracted where the bit is not set.
  if (codes_of(W) == Codes::Eight)
    return fma_bf16x2(moved & 0xff7fff7fu, 0x3f803f80u, 0xc300c300u - (moved >> 7 & 0x00010001u) * 0xc300u);
  constexpr u32 OFFSET = 0xc300u + level_offset(W);
  return fma_bf16x2(moved, 0x3f803f80u, OFFSET << 16 | OFFSET);
}
// The level of byte AT.
template <Weight W, u32 AT> __device__ __forceinline__ float level(u32 bytes) {
  if constexpr (levels_of(W) == Levels::E4m3) {
    const u32 pair = level_pair<W, AT / 2>(bytes);
    return AT % 2 ? bf16_high(pair) : bf16_low(pair);
  }
  if (levels_of(W) == Levels::Nf4) return NF4_LEVELS[bytes >> (8 * AT) & 15];
  if (levels_of(W) == Levels::Fp4) return FP4_LEVELS[bytes >> (8 * AT) & 15];
  // 0x4b000000 | n is 2^23 + n.
  return __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440 + AT)) - (8388608.0f + level_offset(W));
}

// A weight is a · level + b; in some formats each half of a group has its own scale.
struct GroupScale {
  float a[2], b[2];
};
// Decoded from the bytes of a group's scales (the lowest first) and the f16 scales of its 256 columns.
template <Weight W> __device__ __forceinline__ GroupScale group_scale(u32 word, u32 super) {
  constexpr Scales S = scales_of(W);
  float a = 1.0f, b = 0.0f;
  if (S == Scales::Half) a = f16_low(word);
  if (S == Scales::HalfMin) a = f16_low(word), b = f16_high(word);
  if (S == Scales::HalfZero) {
    a = f16_low(word);
    b = -(a * static_cast<float>(static_cast<int>(word) >> 16));
  }
  // 2^(biased − 127), the smallest of which is subnormal.
  const u32 biased = word & 255;
  constexpr float PART = 1.0f / level_multiple(W);
  if (S == Scales::Exponent) a = __uint_as_float(biased == 0 ? 1u << 22 : biased << 23) * PART;
  if (S == Scales::Float || S == Scales::Wide) a = __uint_as_float(word);
  if (S == Scales::E4m3) {
    // The half that begins with the bits of E4M3 has an exponent that is 8 too small.
    const float factor = __uint_as_float(super);
    const float first = f16_low((word & 127u) << 7) * (256.0f * PART);
    const float second = f16_low((word >> 8 & 127u) << 7) * (256.0f * PART);
    return {{first * factor, second * factor}, {0.0f, 0.0f}};
  }
  if (S == Scales::K32) a = f16_low(super) * PART * static_cast<float>(static_cast<int>(word << 24) >> 24);
  if (S == Scales::K32Min) {
    a = f16_low(super) * static_cast<float>(word & 255);
    b = -(f16_high(super) * static_cast<float>(word >> 8 & 255));
  }
  if (S == Scales::K16) {
    const float unit = f16_low(super) * PART;
    return {{unit * static_cast<float>(static_cast<int>(word << 24) >> 24),
             unit * static_cast<float>(static_cast<int>(word << 16) >> 24)},
            {0.0f, 0.0f}};
  }
  if (S == Scales::K16Min) {
    const float unit = f16_low(super), least = -f16_high(super);
    return {{unit * static_cast<float>(word & 15), unit * static_cast<float>(word >> 8 & 15)},
            {least * static_cast<float>(word >> 4 & 15), least * static_cast<float>(word >> 12 & 15)}};
  }
  return {{a, a}, {b, b}};
}
