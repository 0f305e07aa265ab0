// A group of 32 weights of a row, from device memory to floats: for kernels that multiply a row or a few.
//
// load_group only loads (16 bytes at a time if a group has them), so that many loads can be in flight; eight_levels and
// group_scale turn them into floats in column order. Dense formats are read eight at a time by dense_eight.

#pragma once
#include "common/weight_format.cuh"

template <Weight W> struct PackedGroup {
  u32 codes[code_bytes(W) / 4];
  u32 plane[2];
  u32 scale, super;
};

template <Weight W>
__device__ __forceinline__ PackedGroup<W> load_group(const u8 *row, const WeightLayout &layout, u32 group) {
  PackedGroup<W> packed;
  constexpr u32 BYTES = code_bytes(W);
  if (BYTES == 4) packed.codes[0] = reinterpret_cast<const u32 *>(row)[group];
  if (BYTES == 8) {
    const uint2 words = reinterpret_cast<const uint2 *>(row)[group];
    packed.codes[0] = words.x, packed.codes[1] = words.y;
  }
  if constexpr (BYTES >= 16) {
#pragma unroll
    for (u32 i = 0; i < BYTES / 16; i++) {
      const uint4 words = reinterpret_cast<const uint4 *>(row)[BYTES / 16 * group + i];
      packed.codes[4 * i] = words.x, packed.codes[4 * i + 1] = words.y;
      packed.codes[4 * i + 2] = words.z, packed.codes[4 * i + 3] = words.w;
    }
  }
  packed.plane[0] = packed.plane[1] = packed.scale = packed.super = 0;
  if (plane_bytes(W) == 4) packed.plane[0] = reinterpret_cast<const u32 *>(row + layout.plane)[group];
  if (plane_bytes(W) == 8) {
    const uint2 words = reinterpret_cast<const uint2 *>(row + layout.plane)[group];
    packed.plane[0] = words.x, packed.plane[1] = words.y;
  }
  const u8 *scales = row + layout.scales;
  if (scales_of(W) == Scales::Wide) packed.scale = reinterpret_cast<const u32 *>(scales)[group / 4];
  else if (scales_of(W) == Scales::Float) packed.scale = reinterpret_cast<const u32 *>(scales)[group / 2];
  else if (scale_bytes(W) == 16) packed.scale = reinterpret_cast<const u32 *>(scales)[group];
  else if (scale_bytes(W) == 8) packed.scale = reinterpret_cast<const u16 *>(scales)[group];
  else packed.scale = scales[group];
  const u32 shared = has_row_factor(W) ? 0 : group / 8;
  if (has_supers(W)) packed.super = reinterpret_cast<const u32 *>(row + layout.supers)[shared];
  return packed;
}

template <Weight W> __device__ __forceinline__ GroupScale group_scale(const PackedGroup<W> &packed) {
  return group_scale<W>(packed.scale, packed.super);
}

// Bytes of columns 8 E to 8 E + 7 of the group.
template <Weight W, u32 E> __device__ __forceinline__ uint2 eight_bytes(const PackedGroup<W> &packed) {
  constexpr Codes C = codes_of(W);
  if constexpr (C == Codes::Eight) {
    return make_uint2(bytes_of_bytes<W>(packed.codes[2 * E]), bytes_of_bytes<W>(packed.codes[2 * E + 1]));
  } else if constexpr (C == Codes::One) {
    return make_uint2(bytes_of_bits<W>(packed.codes[0] >> (8 * E)), bytes_of_bits<W>(packed.codes[0] >> (8 * E + 4)));
  } else if constexpr (C == Codes::Two || C == Codes::TwoOne) {
    const u32 pairs = packed.codes[E / 2] >> (16 * (E % 2)), bits = packed.plane[0] >> (8 * E);
    return make_uint2(bytes_of_pairs<W>(pairs & 255, bits), bytes_of_pairs<W>(pairs >> 8 & 255, bits >> 4));
  } else {
    const u32 bits = C == Codes::FourTwo ? packed.plane[E / 2] >> (16 * (E % 2)) : packed.plane[0] >> (8 * E);
    return bytes_of_nibbles<W>(packed.codes[E], bits);
  }
}

// Levels of columns 8 E to 8 E + 7 of the group.
template <Weight W, u32 E> __device__ __forceinline__ Eight eight_levels(const PackedGroup<W> &packed) {
  const uint2 bytes = eight_bytes<W, E>(packed);
  return {{level<W, 0>(bytes.x), level<W, 1>(bytes.x), level<W, 2>(bytes.x), level<W, 3>(bytes.x),
           level<W, 0>(bytes.y), level<W, 1>(bytes.y), level<W, 2>(bytes.y), level<W, 3>(bytes.y)}};
}

// Eight weights from index 8 · eight on, of a row that is not quantized.
template <Weight W> __device__ __forceinline__ Eight dense_eight(const u8 *row, u32 eight) {
  if (W == Weight::F32) return load_eight(reinterpret_cast<const float *>(row) + 8 * eight);
  const uint4 words = reinterpret_cast<const uint4 *>(row)[eight];
  return W == Weight::F16 ? widen_f16(words) : widen_bf16(words);
}
