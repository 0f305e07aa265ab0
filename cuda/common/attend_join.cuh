// How the warps of a block join their sums, and blocks those of parts of the same rows. -D: WARPS.

#pragma once
#include "common/attend_tile.cuh"

constexpr u32 THREADS = 32 * WARPS, PARTS_MAX = 64, ROWS = 16;
constexpr u32 SUM_STRIDE = HEAD_DIM + 8;  // avoids bank conflicts between rows

// Stores the warp's sums as [row][column], then largest and sum as [row].
__device__ __forceinline__ void put_sums(float *sums, const Rows<1> &rows, u32 lane) {
  const float unit = unit_of(rows);
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    float *row = sums + (half * 8 + lane / 4) * SUM_STRIDE;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
      const float4 a = rows.out[0][2 * step], b = rows.out[0][2 * step + 1];
      const float2 low = half ? make_float2(a.z, a.w) : make_float2(a.x, a.y);
      const float2 high = half ? make_float2(b.z, b.w) : make_float2(b.x, b.y);
      if (IS_CODED) {
        *reinterpret_cast<float4 *>(row + step * 16 + lane % 4 * 4) =
            make_float4(low.x * unit, high.x * unit, low.y * unit, high.y * unit);
      } else {
        *reinterpret_cast<float2 *>(row + step * 16 + lane % 4 * 2) = low;
        *reinterpret_cast<float2 *>(row + step * 16 + 8 + lane % 4 * 2) = high;
      }
    }
    if (lane % 4 == 0)
      *reinterpret_cast<float2 *>(sums + ROWS * SUM_STRIDE + (half * 8 + lane / 4) * 2) =
          make_float2(rows.largest[half], half ? rows.sum.z : rows.sum.x);
  }
}

__device__ __forceinline__ void add_scaled(float4 &sum, float by, const float4 &value) {
  sum.x += by * value.x;
  sum.y += by * value.y;
  sum.z += by * value.z;
  sum.w += by * value.w;
}

__device__ __forceinline__ void store_four(float *to, const float4 &v) { *reinterpret_cast<float4 *>(to) = v; }
__device__ __forceinline__ void store_four(u16 *to, const float4 &v) {
  *reinterpret_cast<uint2 *>(to) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

// Stores four columns of a finished row.
__device__ __forceinline__ void store_result(const Params &params, const Item &item, u32 kv_head, u32 row, u32 column,
                                             float4 sum, float factor) {
  const float4 result = make_float4(sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor);
  store_four(params.out + row_offset(params, item, item.first + row, kv_head) + column, result);
}

// Joins the partial results of a row from PIECES_COUNT sources: `shares(i)` is largest and sum, `values(i, column)` is
// four columns.
template <typename Shares, typename Values>
__device__ __forceinline__ void join_row(const Params &params, const Item &item, u32 kv_head, u32 row, u32 count,
                                         float *part, Shares shares, Values values) {
  float largest = LOWEST, sum = 0.0f;
  for (u32 i = 0; i < count; i++) largest = fmaxf(largest, shares(i).x);
  for (u32 i = 0; i < count; i++) sum += share(shares(i).x, largest) * shares(i).y;
  const u32 lane = threadIdx.x % 8;
  const u32 head = kv_head * params.group + (item.first + row) % params.group;
  const float factor = part ? 1.0f : final_factor(params, largest, sum, head);
  for (u32 column = lane * 4; column < HEAD_DIM; column += 32) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (u32 i = 0; i < count; i++) add_scaled(total, share(shares(i).x, largest), values(i, column));
    if (part) store_four(part + row * HEAD_DIM + column, total);
    else store_result(params, item, kv_head, row, column, total, factor);
  }
  if (part && lane == 0) *reinterpret_cast<float2 *>(part + ROWS * HEAD_DIM + row * 2) = make_float2(largest, sum);
}

__device__ __forceinline__ float *part_of(const Params &params, u32 slot, u32 kv_head) {
  return params.scratch + (static_cast<u64>(slot) * params.kv_heads + kv_head) * (ROWS * (HEAD_DIM + 2));
}

// Joins the parts of the item's rows, if this block wrote the last part.
__device__ __forceinline__ void join_parts(float *memory, const Params &params, const Item &item, u32 kv_head) {
  __threadfence();
  __syncthreads();
  u32 *is_last = reinterpret_cast<u32 *>(memory);
  if (threadIdx.x == 0) {
    u32 *counter = params.counters + item.counter * params.kv_heads + kv_head;
    const u32 before = atomicAdd(counter, 1u);
    *is_last = before + 1 == item.parts;
    if (before + 1 == item.parts) *counter = 0;
  }
  __syncthreads();
  const bool joins = *is_last != 0;
  __syncthreads();
  if (!joins) return;
  __threadfence();
  float2 *shares = reinterpret_cast<float2 *>(memory);
  for (u32 at = threadIdx.x; at < item.parts * ROWS; at += THREADS) {
    const float *part = part_of(params, item.slot_first + at / ROWS, kv_head) + ROWS * HEAD_DIM;
    if (at % ROWS < item.count) shares[at] = load_fresh(reinterpret_cast<const float2 *>(part) + at % ROWS);
  }
  __syncthreads();
  for (u32 row = threadIdx.x / 8; row < item.count; row += THREADS / 8) {
    const float *values = part_of(params, item.slot_first, kv_head) + row * HEAD_DIM;
    const u64 stride = static_cast<u64>(params.kv_heads) * ROWS * (HEAD_DIM + 2);
    join_row(params, item, kv_head, row, item.parts, nullptr, [&](u32 i) { return shares[i * ROWS + row]; },
             [&](u32 i, u32 column) {
               return load_fresh(reinterpret_cast<const float4 *>(values + i * stride + column));
             });
  }
}
