// Weight formats: where the sections of a row are, and how codes become levels. Defined by src/plan/format/weight.rs.
//
// Codes become bytes in column order, four per word. A byte becomes a float, or two become a bfloat16 pair, which holds
// every level exactly. A constant that a format subtracts from all codes is subtracted here, so that only formats with
// a minimum or a zero point have a `b`. -DWEIGHT=Name selects the format, by a name of this enum and of the Rust one.

#pragma once
#include "common/prelude.cuh"

enum class Weight : u32 { F32, F16, Bf16, Q8, Q4, Q4Zero, Q5, Iq4, Mxfp4, E4m3, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4K };
enum class Codes : u32 { Dense, Eight, Four, FourOne, FourTwo, Two, TwoOne };
enum class Scales : u32 { None, Half, HalfMin, HalfZero, Exponent, Wide, K32, K32Min, K16, K16Min };

constexpr u32 GROUP = 32;

__device__ constexpr Codes codes_of(Weight w) {
  return w == Weight::Q8 || w == Weight::E4m3                                                   ? Codes::Eight
         : w == Weight::Q5 || w == Weight::Q5K                                                  ? Codes::FourOne
         : w == Weight::Q6K                                                                     ? Codes::FourTwo
         : w == Weight::Q2K                                                                     ? Codes::Two
         : w == Weight::Q3K                                                                     ? Codes::TwoOne
         : w == Weight::F32 || w == Weight::F16 || w == Weight::Bf16                            ? Codes::Dense
                                                                                                : Codes::Four;
}
__device__ constexpr Scales scales_of(Weight w) {
  return w == Weight::Q8 || w == Weight::Iq4     ? Scales::Half
         : w == Weight::Q4 || w == Weight::Q5    ? Scales::HalfMin
         : w == Weight::Q4Zero                   ? Scales::HalfZero
         : w == Weight::Mxfp4                    ? Scales::Exponent
         : w == Weight::E4m3                     ? Scales::Wide
         : w == Weight::Q2K                      ? Scales::K16Min
         : w == Weight::Q3K || w == Weight::Q6K  ? Scales::K16
         : w == Weight::Q4K || w == Weight::Q5K  ? Scales::K32Min
         : w == Weight::Iq4K                     ? Scales::K32
                                                 : Scales::None;
}
__device__ constexpr bool is_dense(Weight w) { return codes_of(w) == Codes::Dense; }
// Whether levels come from a table of 16 entries.
__device__ constexpr bool has_table(Weight w) { return w == Weight::Iq4 || w == Weight::Iq4K || w == Weight::Mxfp4; }
// Whether the format has a `b`.
__device__ constexpr bool has_minimum(Weight w) {
  return scales_of(w) == Scales::HalfMin || scales_of(w) == Scales::HalfZero || scales_of(w) == Scales::K32Min ||
         scales_of(w) == Scales::K16Min;
}
// Whether each half of a group has its own scale.
__device__ constexpr bool has_half_groups(Weight w) {
  return scales_of(w) == Scales::K16 || scales_of(w) == Scales::K16Min;
}
__device__ constexpr bool has_supers(Weight w) {
  return scales_of(w) == Scales::K32 || scales_of(w) == Scales::K32Min || has_half_groups(w);
}
// Bytes of codes per group of 32.
__device__ constexpr u32 code_bytes(Weight w) {
  return w == Weight::F32 ? 128 : is_dense(w) ? 64 : codes_of(w) == Codes::Eight ? 32
         : codes_of(w) == Codes::Two || codes_of(w) == Codes::TwoOne ? 8 : 16;
}
__device__ constexpr u32 plane_bytes(Weight w) {
  return codes_of(w) == Codes::FourTwo ? 8 : codes_of(w) == Codes::FourOne || codes_of(w) == Codes::TwoOne ? 4 : 0;
}
// Bytes of scales per four groups.
__device__ constexpr u32 scale_bytes(Weight w) {
  return scales_of(w) == Scales::HalfMin || scales_of(w) == Scales::HalfZero ? 16
         : scales_of(w) == Scales::Half || scales_of(w) == Scales::K32Min || has_half_groups(w) ? 8
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
  const u32 all_scales = scales_of(W) == Scales::Wide ? (columns + 127) / 128 * 4 : groups * scale_bytes(W) / 4;
  const u32 supers = round_up_16(scales + all_scales);
  return {plane, scales, supers, round_up_16(supers + (has_supers(W) ? (columns + 255) / 256 * 4 : 0))};
}

// Levels + 128 of two tables, four entries per word.
__device__ constexpr u32 table_word(Weight w, u32 at) {
  return w == Weight::Mxfp4 ? (at == 0 ? 0x83828180u : at == 1 ? 0x8c888684u : at == 2 ? 0x7d7e7f80u : 0x74787a7cu)
                            : (at == 0 ? 0x3f2d1801u : at == 1 ? 0x766a5d4fu : at == 2 ? 0xa6998d81u : 0xf1d9c5b5u);
}
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
// Four pairs of bits as bytes, from bit 0 on; `bits` holds their third bits.
template <Weight W> __device__ __forceinline__ u32 bytes_of_pairs(u32 pairs, u32 bits) {
  const u32 spread = (pairs & 0x0fu) | (pairs & 0xf0u) << 12;
  u32 bytes = (spread & 0x00030003u) | (spread << 6 & 0x03000300u);
  if (codes_of(W) == Codes::TwoOne) bytes |= (bits & 15u) * 0x00810204u & 0x04040404u;
  return bytes;
}
// Codes that are whole bytes; levels + 128 if they are signed.
template <Weight W> __device__ __forceinline__ u32 bytes_of_bytes(u32 word) {
  return W == Weight::Q8 ? word ^ 0x80808080u : word;
}

// The constant that is subtracted from every byte.
__device__ constexpr u32 level_offset(Weight w) {
  return has_table(w) || w == Weight::Q8 ? 128 : w == Weight::Q6K ? 32 : w == Weight::Q3K ? 4 : 0;
}
// Levels of bytes 0 and 1, or of 2 and 3, as bfloat16; exact.
template <Weight W, u32 HALF> __device__ __forceinline__ u32 level_pair(u32 bytes) {
  if (W == Weight::E4m3) {
    // Moves the exponent into place and corrects its bias by 2^120; this includes subnormal numbers.
    const u32 tops = __byte_perm(bytes, 0, HALF ? 0x3424 : 0x1404);
    return fma_bf16x2((tops & 0x80008000u) | (tops >> 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
  }
  // 0x4300 | n is 128 + n for n < 128.
  const u32 moved = __byte_perm(bytes, 0x43434343u, HALF ? 0x7362 : 0x5140);
  if (level_offset(W) == 128)
    return fma_bf16x2(moved & 0xff7fff7fu, 0x3f803f80u, ((moved & 0x00800080u) ^ 0x00800080u) | 0xc300c300u);
  constexpr u32 OFFSET = 0xc300u + level_offset(W);
  return fma_bf16x2(moved, 0x3f803f80u, OFFSET << 16 | OFFSET);
}
// The level of byte AT.
template <Weight W, u32 AT> __device__ __forceinline__ float level(u32 bytes) {
  if (W == Weight::E4m3) {
    const u32 pair = level_pair<W, AT / 2>(bytes);
    return AT % 2 ? bf16_high(pair) : bf16_low(pair);
  }
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
  // Half of 2^(biased − 127), since levels are doubled.
  const u32 biased = word & 255;
  if (S == Scales::Exponent) a = __uint_as_float(biased < 2 ? 0x200000u << biased : (biased - 1) << 23);
  if (S == Scales::Wide) a = __uint_as_float(word);
  if (S == Scales::K32) a = f16_low(super) * static_cast<float>(static_cast<int>(word << 24) >> 24);
  if (S == Scales::K32Min) {
    a = f16_low(super) * static_cast<float>(word & 255);
    b = -(f16_high(super) * static_cast<float>(word >> 8 & 255));
  }
  if (S == Scales::K16) {
    const float unit = f16_low(super);
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
