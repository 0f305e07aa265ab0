// What the kernels that attend tiles of packed rows share: a block's item, and how a lane stores its rows.

#pragma once
#include "common/attend_tile.cuh"

__device__ __forceinline__ void store_pair(float *to, float a, float b) {
  *reinterpret_cast<float2 *>(to) = make_float2(a, b);
}
__device__ __forceinline__ void store_pair(u16 *to, float a, float b) {
  *reinterpret_cast<u32 *>(to) = pack_bf16(a, b);
}

// Stores one of the lane's rows: two columns of every eight; with codes, four of every sixteen.
template <u32 STRIPS>
__device__ __forceinline__ void store_row(Rows<STRIPS> &rows, const Params &params, const Item &item, u32 kv_head,
                                          u32 i, u32 packed, u32 lane) {
  const u32 strip = i / 2, high = i % 2;
  const float sum = sum_of(rows.sum, i);
  float factor = final_factor(params, rows.largest[i], sum, kv_head * params.group + packed % params.group);
  factor *= unit_of(rows);
  OUT_TYPE *out = params.out + row_offset(params, item, packed, kv_head);
#pragma unroll
  for (u32 step = 0; step < STEPS; step++) {
    const float4 a = rows.out[strip][2 * step], b = rows.out[strip][2 * step + 1];
    const float2 low = high ? make_float2(a.z, a.w) : make_float2(a.x, a.y);
    const float2 next = high ? make_float2(b.z, b.w) : make_float2(b.x, b.y);
    if (IS_CODED) {
      store_pair(out + step * 16 + lane % 4 * 4, low.x * factor, next.x * factor);
      store_pair(out + step * 16 + lane % 4 * 4 + 2, low.y * factor, next.y * factor);
    } else {
      store_pair(out + step * 16 + lane % 4 * 2, low.x * factor, low.y * factor);
      store_pair(out + step * 16 + 8 + lane % 4 * 2, next.x * factor, next.y * factor);
    }
  }
}

// The block's item; read again at the end, rather than kept in registers.
__device__ __forceinline__ Item own_item(const Params &params) {
  const u32 *work = work_list(params);
  const u32 *items = work + LANE_LIST_WORDS + work[LANE_LIST_LANES] + 1;
  return load_item(items + (work[LANE_LIST_ITEMS] + blockIdx.x / params.kv_heads) * LANE_ITEM_WORDS);
}
