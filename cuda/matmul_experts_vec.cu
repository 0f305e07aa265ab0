// out = W_e · x + bias_e for every route; with COMBINE, the weighted sum over each token's routes (=, +=). Each route
// reads its expert's matrix once. Bound by memory bandwidth while routes are few.
// x: [rows, x_stride], row route / x_routes, of which `columns` are read; W: `outputs` rows per expert in one format,
// experts expert_stride bytes apart; routes: [routes] of (expert, weight); out: [routes or tokens, output_stride] from
// output_start on.
// Warp: four outputs of a route, or of a token; a lane takes every 32nd group of 32 columns (dense: of 8). Grid x:
// routes or tokens; y: 16 outputs each.
// HEADS: there are no routes; the experts are the heads of a token.
// -D: WEIGHT, X_TYPE, OUT_TYPE, COMBINE, HEADS. Twin: backend/reference/matmul_experts.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"
#include "common/weight_group.cuh"

struct Params {
  const X_TYPE *x;
  const float2 *routes;  // with HEADS: none
  const u8 *weight;
  const float *bias;  // [experts, output_stride], or null
  OUT_TYPE *out;
  const u32 *metadata;
  u64 expert_stride;
  u32 per_token, expert_first, expert_count, x_routes;
  u32 columns, outputs, output_start, output_stride;
  u32 accumulate, x_stride;
};

#ifdef COMBINE
constexpr bool COMBINED = true;
#else
constexpr bool COMBINED = false;
#endif
constexpr Weight FORMAT = Weight::WEIGHT;
constexpr u32 WARPS = 4, OUTPUTS = 4;

__device__ __forceinline__ float dot_eight(const Eight &a, const Eight &b) {
  float sum = a.v[0] * b.v[0];
#pragma unroll
  for (u32 i = 1; i < 8; i++) sum += a.v[i] * b.v[i];
  return sum;
}

// Products of eight columns' levels and x.
template <u32 E>
__device__ __forceinline__ void add_eight(const PackedGroup<FORMAT> (&packed)[OUTPUTS], const X_TYPE *x, bool here,
                                          float (&sums)[OUTPUTS], float &total) {
  if (!here) return;
  const Eight values = load_eight(x + 8 * E);
#pragma unroll
  for (u32 i = 0; i < OUTPUTS; i++) sums[i] += dot_eight(eight_levels<FORMAT, E>(packed[i]), values);
#pragma unroll
  for (u32 i = 0; i < 8; i++) total += values.v[i];
}

// a · Σ level · x + b · Σ x over half a group.
template <u32 HALF>
__device__ __forceinline__ void add_half(const PackedGroup<FORMAT> (&packed)[OUTPUTS], const X_TYPE *x, u32 left,
                                         const GroupScale (&scales)[OUTPUTS], float (&parts)[OUTPUTS]) {
  float sums[OUTPUTS] = {}, total = 0.0f;
  add_eight<2 * HALF>(packed, x, left > 16 * HALF, sums, total);
  add_eight<2 * HALF + 1>(packed, x, left > 16 * HALF + 8, sums, total);
#pragma unroll
  for (u32 i = 0; i < OUTPUTS; i++) {
    parts[i] += scales[i].a[HALF] * sums[i];
    if (has_minimum(FORMAT)) parts[i] += scales[i].b[HALF] * total;
  }
}

// This lane's part of the products of a row of x with four rows of the matrix.
__device__ __forceinline__ void multiply(const X_TYPE *x, const u8 *const (&rows)[OUTPUTS], const WeightLayout &layout,
                                         u32 columns, u32 lane, float (&parts)[OUTPUTS]) {
  if constexpr (is_dense(FORMAT)) {
#pragma unroll 2
    for (u32 eight = lane; eight < columns / 8; eight += 32) {
      const Eight values = load_eight(x + 8 * eight);
#pragma unroll
      for (u32 i = 0; i < OUTPUTS; i++) parts[i] += dot_eight(dense_eight<FORMAT>(rows[i], eight), values);
    }
  } else {
    for (u32 group = lane; group < ceil_div(columns, GROUP); group += 32) {
      PackedGroup<FORMAT> packed[OUTPUTS];
      GroupScale scales[OUTPUTS];
#pragma unroll
      for (u32 i = 0; i < OUTPUTS; i++) packed[i] = load_group<FORMAT>(rows[i], layout, group);
#pragma unroll
      for (u32 i = 0; i < OUTPUTS; i++) scales[i] = group_scale(packed[i]);
      const X_TYPE *from = x + GROUP * group;
      const u32 left = columns - GROUP * group;
      add_half<0>(packed, from, left, scales, parts);
      add_half<1>(packed, from, left, scales, parts);
    }
  }
}

KERNEL(matmul_experts_vec, 32 * WARPS, FORMAT == Weight::F32 ? 2 : 4) {
  const u32 lane = threadIdx.x % 32, unit = blockIdx.x;
  const u32 output = (blockIdx.y * WARPS + threadIdx.x / 32) * OUTPUTS;
  const u32 routes_each = COMBINED ? params.per_token : 1;
  if (unit >= params.metadata[META_TOKEN_COUNT] * (COMBINED ? 1 : params.per_token) || output >= params.outputs) return;
  const WeightLayout layout = weight_layout<FORMAT>(params.columns);
  float sums[OUTPUTS] = {};
  bool any = false;
  for (u32 j = 0; j < routes_each; j++) {
    const u32 route = unit * routes_each + j;
#ifdef HEADS
    const float2 chosen = make_float2(static_cast<float>(route % params.per_token), 1.0f);
#else
    const float2 chosen = params.routes[route];
#endif
    const u32 expert = static_cast<u32>(chosen.x);
    if (expert - params.expert_first >= params.expert_count) continue;
    any = true;
    const u8 *weight = params.weight + (expert - params.expert_first) * params.expert_stride;
    const u8 *rows[OUTPUTS];
    // Outputs past the end repeat the last row.
#pragma unroll
    for (u32 i = 0; i < OUTPUTS; i++) rows[i] = weight + (u64)min(output + i, params.outputs - 1) * layout.row_bytes;
    float parts[OUTPUTS] = {};
    multiply(params.x + (u64)(route / params.x_routes) * params.x_stride, rows, layout, params.columns, lane, parts);
    const float *bias = params.bias + (u64)expert * params.output_stride + params.output_start + output;
#pragma unroll
    for (u32 i = 0; i < OUTPUTS; i++) {
      if (params.bias && lane == 0 && output + i < params.outputs) parts[i] += bias[i];
      sums[i] += COMBINED ? chosen.y * parts[i] : parts[i];
    }
  }
  // A route is written only by the launch that has its expert; a token by every launch, as other experts add to it.
  if (!COMBINED && !any) return;
#pragma unroll
  for (u32 i = 0; i < OUTPUTS; i++) {
    const float sum = warp_sum(sums[i]);
    OUT_TYPE *to = params.out + (u64)unit * params.output_stride + params.output_start + output + i;
    if (lane == i && output + i < params.outputs) store_one(to, params.accumulate ? load_one(to) + sum : sum);
  }
}
