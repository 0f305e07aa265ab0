// Writes rows of a head into the KV pool, in the formats of src/plan/format/kv.rs: f32, f16, or bytes with one scale
// per row stored after those of the tile.

#pragma once
#include "common/prelude.cuh"

constexpr u32 FORMAT_F32 = 0;
constexpr u32 FORMAT_F16 = 1;
constexpr u32 FORMAT_Q8 = 2;
constexpr u32 FORMAT_FP8 = 3;
constexpr bool kv_is_coded(u32 format) { return format >= FORMAT_Q8; }
// If all magnitudes of a row are below this, it is stored as zeros.
constexpr float KV_ROW_MIN = 1e-30f;

// Bytes of one row of a head; without its scale, which is stored elsewhere.
template <u32 FORMAT> __device__ __forceinline__ u32 kv_row_bytes(u32 head_dim) {
  return FORMAT == FORMAT_F32 ? 4 * head_dim : FORMAT == FORMAT_F16 ? 2 * head_dim : head_dim;
}
// Bytes of the tile of one block and head.
template <u32 FORMAT> __device__ __forceinline__ u32 kv_tile_bytes(u32 head_dim, u32 slots) {
  return slots * (kv_row_bytes<FORMAT>(head_dim) + (kv_is_coded(FORMAT) ? 4 : 0));
}

struct KvRow {
  u8 *elements;
  float *scale;
};

template <u32 FORMAT>
__device__ __forceinline__ KvRow kv_row(u8 *pool, u32 slot, u32 head, u32 heads, u32 block_shift, u32 head_dim) {
  const u32 slots = 1u << block_shift, offset = slot & (slots - 1);
  const u64 tile = static_cast<u64>(slot >> block_shift) * heads + head;
  u8 *start = pool + tile * kv_tile_bytes<FORMAT>(head_dim, slots);
  return {start + offset * kv_row_bytes<FORMAT>(head_dim),
          reinterpret_cast<float *>(start + slots * head_dim) + offset};
}

// The nearest code of E4M3 with the exponent bias of half precision, ties to even; |value| ≤ 1.75.
__device__ __forceinline__ u32 e4m3_code(float value) {
  const u32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
  // The exponent of 2^-14, the smallest normal magnitude, becomes 1, whose first code is 8.
  const u32 normal = (magnitude - 0x38000000u + 0x7ffffu + (magnitude >> 20 & 1)) >> 20;
  const u32 subnormal = static_cast<u32>(static_cast<int>(rintf(fabsf(value) * 131072.0f)));
  return (bits >> 24 & 0x80) | ((magnitude < 0x38800000u ? subnormal : normal) & 0x7f);
}
template <u32 FORMAT> __device__ __forceinline__ u32 kv_code(float value) {
  return FORMAT == FORMAT_FP8 ? e4m3_code(value) : static_cast<u32>(static_cast<int>(rintf(value))) & 255;
}

// Writes the runs `lane`, `lane + LANES_`, … below `runs` of the row if it is stored. All lanes of a warp must call
// this; LANES_ of them share a row.
template <u32 FORMAT, u32 LANES_, u32 RUNS_>
__device__ __forceinline__ void store_kv(const KvRow &row, const Eight (&values)[RUNS_], u32 lane, u32 runs,
                                         bool stores) {
  constexpr float CODE_MAX = FORMAT == FORMAT_FP8 ? 1.75f : 127.0f;
  float inverse = 0.0f;
  if (kv_is_coded(FORMAT)) {
    // Compared as integers, which orders a NaN above everything else. Runs that the row does not have are zero.
    u32 bits = 0;
    for (u32 r = 0; r < RUNS_; r++)
      for (u32 i = 0; i < 8; i++) bits = max(bits, __float_as_uint(values[r].v[i]) & 0x7fffffffu);
    for (u32 lanes = LANES_ / 2; lanes > 0; lanes >>= 1) bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, lanes));
    const float largest = __uint_as_float(bits);
    const bool is_zero = largest < KV_ROW_MIN;
    inverse = is_zero ? 0.0f : CODE_MAX / largest;
    if (stores && lane == 0) *row.scale = is_zero ? 0.0f : largest * (1.0f / CODE_MAX);
  }
  for (u32 r = 0; r < RUNS_; r++) {
    const u32 at = lane + r * LANES_;
    if (!stores || at >= runs) break;
    const Eight &run = values[r];
    if (FORMAT == FORMAT_F32) {
      store_eight(reinterpret_cast<float *>(row.elements) + 8 * at, run);
    } else if (FORMAT == FORMAT_F16) {
      float c[8];
      for (u32 i = 0; i < 8; i++) c[i] = clamp_f16(run.v[i]);
      const uint2 low = make_uint2(pack_f16(c[0], c[1]), pack_f16(c[2], c[3]));
      const uint4 halves = make_uint4(low.x, low.y, pack_f16(c[4], c[5]), pack_f16(c[6], c[7]));
      reinterpret_cast<uint4 *>(row.elements)[at] = halves;
    } else {
      u32 words[2] = {0, 0};
      for (u32 i = 0; i < 8; i++)
        words[i / 4] |= kv_code<FORMAT>(run.v[i] * inverse) << 8 * (i % 4);
      reinterpret_cast<uint2 *>(row.elements)[at] = make_uint2(words[0], words[1]);
    }
  }
}
