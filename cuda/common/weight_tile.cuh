// A chunk of columns of some weight rows in shared memory, and its conversion into fragments of mma.m16n8k16.
//
// The packed bytes are copied unchanged. Levels are decoded when a warp needs them and stay integers (or whatever the
// format's levels are): exact in bfloat16. Scales are applied to the sums of a group. Dense rows are divided into
// groups too.
//
// Any assignment of a group's 32 columns to the steps of the product is valid if both operands use the same one. Lane q
// of four has columns 8q to 8q + 7, so that both operands load 16 bytes at once; if half a group has its own scale,
// columns 4q to 4q + 3 of each half.

#pragma once
#include "common/weight_format.cuh"

// Permutes the 16-byte parts of a chunk's rows, with four (or two) parts per row, to avoid bank conflicts in a
// fragment.
template <u32 PARTS> __device__ __forceinline__ u32 swizzle(u32 row) {
  return PARTS >= 16  ? (row & 1) << 2 | (row & 2) | (row >> 2 & 1)
         : PARTS == 8 ? (row & 3) << 1
         : PARTS == 4 ? row >> 1 & 3
         : PARTS == 2 ? row >> 2 & 1
                      : 0;
}
// The same for rows of 128 bytes or more that are read 16 (or 8) bytes at a time.
__device__ __forceinline__ u32 swizzle_dense(u32 row) { return (row & 1) << 2 | (row & 2) | (row >> 2 & 1); }

template <Weight W, u32 ROWS, u32 COLUMNS> struct WeightChunk {
  static constexpr u32 GROUPS = COLUMNS / GROUP;
  // Bytes per row.
  static constexpr u32 CODE_ROW = GROUPS * code_bytes(W), PLANE_ROW = GROUPS * plane_bytes(W);
  static constexpr u32 SCALE_ROW = GROUPS * scale_bytes(W) / 4, SUPER_ROW = has_supers(W) ? 4 : 0;
  // Where the sections start.
  static constexpr u32 PLANE = ROWS * CODE_ROW, SCALE = PLANE + ROWS * PLANE_ROW, SUPER = SCALE + ROWS * SCALE_ROW;
  static constexpr u32 BYTES = SUPER + ROWS * SUPER_ROW;
  static constexpr u32 PARTS = CODE_ROW / 16;
  static_assert(is_dense(W) || COLUMNS == 128, "scales come in words of four groups");

  static __device__ __forceinline__ u32 part_of(u32 row, u32 part) {
    return row * CODE_ROW + 16 * (part ^ (is_dense(W) ? swizzle_dense(row) : swizzle<PARTS>(row)));
  }

  // Starts copying a chunk of `rows` rows that start at `from`.
  template <u32 THREADS>
  static __device__ __forceinline__ void copy(u8 *shared, const u8 *from, const WeightLayout &layout, u32 rows,
                                              u32 chunk, u32 thread) {
#pragma unroll
    for (u32 first = 0; first < ROWS * PARTS; first += THREADS) {
      const u32 at = first + thread, row = at / PARTS, part = at % PARTS;
      if (ROWS * PARTS % THREADS != 0 && at >= ROWS * PARTS) break;
      const u32 offset = chunk * CODE_ROW + 16 * part;
      u8 *to = shared + part_of(row, part);
      if (row < rows && offset < layout.plane) copy_async_16(to, from + (u64)row * layout.row_bytes + offset);
      // If a row ends within a group, the remaining columns are multiplied by zeros.
      else if (is_dense(W)) copy_async_zero_16(to);
    }
    copy_section<THREADS, PLANE_ROW>(shared + PLANE, from + layout.plane, layout.scales - layout.plane, layout, rows,
                                     chunk, thread);
    copy_section<THREADS, SCALE_ROW>(shared + SCALE, from + layout.scales, layout.supers - layout.scales, layout, rows,
                                     chunk, thread);
    // Two chunks share the f16 scales of 256 columns, all the factor of a row.
    copy_section<THREADS, SUPER_ROW>(shared + SUPER, from + layout.supers, layout.row_bytes - layout.supers, layout,
                                     rows, has_row_factor(W) ? 0 : chunk / 2, thread);
  }

  template <u32 THREADS, u32 ROW_BYTES>
  static __device__ __forceinline__ void copy_section(u8 *shared, const u8 *from, u32 bytes, const WeightLayout &layout,
                                                      u32 rows, u32 chunk, u32 thread) {
    constexpr u32 SIZE = ROW_BYTES % 16 == 0 ? 16 : 4, EACH = ROW_BYTES / SIZE;
    if constexpr (EACH > 0) {
#pragma unroll
      for (u32 first = 0; first < ROWS * EACH; first += THREADS) {
        const u32 at = first + thread, row = at / EACH, offset = chunk * ROW_BYTES + SIZE * (at % EACH);
        if (ROWS * EACH % THREADS != 0 && at >= ROWS * EACH) break;
        if (row >= rows || offset >= bytes) continue;
        const u8 *source = from + (u64)row * layout.row_bytes + offset;
        if (SIZE == 16) copy_async_16(shared + SIZE * at, source);
        else copy_async_4(shared + SIZE * at, source);
      }
    }
  }

  // Levels of a group: step 0 in x and y, step 1 in z and w. Lane q of the four that share `row`.
  static __device__ __forceinline__ uint4 fragment(const u8 *shared, u32 row, u32 group, u32 q) {
    constexpr Codes C = codes_of(W);
    const u8 *plane = shared + PLANE + row * PLANE_ROW + group * plane_bytes(W);
    if constexpr (is_dense(W)) {
      return *reinterpret_cast<const uint4 *>(shared + part_of(row, 4 * group + q));
    } else if constexpr (C == Codes::Eight) {
      const uint2 words = *reinterpret_cast<const uint2 *>(shared + part_of(row, 2 * group + q / 2) + 8 * (q % 2));
      return pairs(bytes_of_bytes<W>(words.x), bytes_of_bytes<W>(words.y));
    } else if constexpr (C == Codes::One) {
      const u32 bits = *reinterpret_cast<const u32 *>(shared + part_of(row, group / 4) + 4 * (group % 4)) >> (8 * q);
      return pairs(bytes_of_bits<W>(bits), bytes_of_bits<W>(bits >> 4));
    } else if constexpr (C == Codes::Two || C == Codes::TwoOne) {
      const u8 *words = shared + part_of(row, group / 2) + 8 * (group % 2);
      const u32 two = reinterpret_cast<const u32 *>(words)[q / 2] >> (16 * (q % 2));
      const u32 bits = C == Codes::TwoOne ? *reinterpret_cast<const u32 *>(plane) >> (8 * q) : 0;
      return pairs(bytes_of_pairs<W>(two & 255, bits), bytes_of_pairs<W>(two >> 8 & 255, bits >> 4));
    } else {
      const u32 word = *reinterpret_cast<const u32 *>(shared + part_of(row, group) + 4 * q);
      const u32 bits = C == Codes::FourOne   ? *reinterpret_cast<const u32 *>(plane) >> (8 * q)
                       : C == Codes::FourTwo ? reinterpret_cast<const u32 *>(plane)[q / 2] >> (16 * (q % 2))
                                             : 0;
      const uint2 bytes = bytes_of_nibbles<W>(word, bits);
      return pairs(bytes.x, bytes.y);
    }
  }
  // If half a group has its own scale: levels of one half, for its step.
  static __device__ __forceinline__ uint2 half_fragment(const u8 *shared, u32 row, u32 group, u32 half, u32 q) {
    const u8 *plane = shared + PLANE + row * PLANE_ROW + group * plane_bytes(W);
    u32 bytes;
    if constexpr (codes_of(W) == Codes::FourTwo || codes_of(W) == Codes::Four) {
      const u32 word = *reinterpret_cast<const u32 *>(shared + part_of(row, group) + 8 * half + 4 * (q / 2));
      bytes = word >> (4 * (q % 2)) & 0x0f0f0f0fu;
      if (codes_of(W) == Codes::FourTwo)
        bytes |= bytes_of_pairs<W>(reinterpret_cast<const u32 *>(plane)[half] >> (8 * q) & 255, 0) << 4;
      if (has_table(W)) bytes = look_up<W>(nibbles_of_bytes(bytes));
    } else {
      const u8 *words = shared + part_of(row, group / 2) + 8 * (group % 2);
      const u32 bits = codes_of(W) == Codes::TwoOne ? *reinterpret_cast<const u32 *>(plane) >> (16 * half + 4 * q) : 0;
      bytes = bytes_of_pairs<W>(reinterpret_cast<const u32 *>(words)[half] >> (8 * q) & 255, bits);
    }
    return make_uint2(level_pair<W, 0>(bytes), level_pair<W, 1>(bytes));
  }
  static __device__ __forceinline__ uint4 pairs(u32 low, u32 high) {
    return make_uint4(level_pair<W, 0>(low), level_pair<W, 1>(low), level_pair<W, 0>(high), level_pair<W, 1>(high));
  }

  static __device__ __forceinline__ GroupScale scale(const u8 *shared, u32 row, u32 group) {
    const u8 *from = shared + SCALE + row * SCALE_ROW;
    u32 word = 0;
    if (scales_of(W) == Scales::Wide) word = *reinterpret_cast<const u32 *>(from);
    else if (SCALE_ROW == 16) word = reinterpret_cast<const u32 *>(from)[group];
    else if (SCALE_ROW == 8) word = reinterpret_cast<const u16 *>(from)[group];
    else word = from[group];
    return group_scale<W>(word, has_supers(W) ? *reinterpret_cast<const u32 *>(shared + SUPER + 4 * row) : 0);
  }
};

// An f16 as an exact sum of two bfloat16: 8 of its 11 bits, and the rest.
struct TwoTerms {
  u32 high, low;
};
__device__ __forceinline__ TwoTerms split_f16(u32 pair) {
  const float first = f16_low(pair), second = f16_high(pair);
  const u32 high = __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632);
  return {high, pack_bf16(first - bf16_low(high), second - bf16_high(high))};
}
