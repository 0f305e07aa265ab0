// out[route] = x[route / x_routes] · W_eᵀ + bias_e for many routes, on tensor cores. The routes of an expert are
// multiplied together, so that its matrix is read once per TILE_ROWS routes. x: bfloat16 rows of `columns`; W:
// `outputs` rows per expert in one format, experts expert_stride bytes apart; out: [routes, output_stride] from
// output_start on. If a token's products are to be combined, out is scratch, and matmul_experts_merge adds them up.
// Block: one tile of an expert's routes (grid x, at most routes / TILE_ROWS + experts) and of its outputs (grid y).
// -D: see common/tile.cuh, and OUT_TYPE. Shared memory: TILE_SHARED_BYTES + 4 · TILE_ROWS + 16.
// Twin: backend/reference/matmul_experts.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/tile.cuh"

struct Params {
  const u16 *x;
  const u8 *weight;
  const float *bias;  // [experts, output_stride], or null
  OUT_TYPE *out;
  const u32 *order, *starts;  // from matmul_experts_group
  u64 expert_stride;
  u32 experts, expert_first, expert_count, x_routes;
  u32 columns, outputs, output_start, output_stride;
};

// `count` routes of one expert, from order[first] on; none if the tile does not exist.
struct ExpertTile {
  u32 expert, first, count;
};

// Finds the tile with this number, counting the experts' tiles in order; called by a whole warp.
__device__ __forceinline__ ExpertTile find_tile(const Params &params, u32 tile, u32 lane) {
  u32 before = 0;
  for (u32 base = 0; base < params.experts; base += 32) {
    const u32 expert = base + lane;
    u32 start = 0, end = 0;
    if (expert < params.experts) start = params.starts[expert], end = params.starts[expert + 1];
    const u32 tiles = ceil_div(end - start, TILE_ROWS);
    u32 upto = tiles;
    for (u32 lanes = 1; lanes < 32; lanes <<= 1) {
      const u32 other = __shfl_sync(ALL_LANES, upto, lane - lanes);
      if (lane >= lanes) upto += other;
    }
    const u32 found = __ballot_sync(ALL_LANES, before + upto > tile);
    if (found != 0) {
      const u32 owner = __ffs(found) - 1;
      const u32 within = tile - before - __shfl_sync(ALL_LANES, upto - tiles, owner);
      const u32 first = __shfl_sync(ALL_LANES, start, owner) + within * TILE_ROWS;
      return {base + owner, first, min(__shfl_sync(ALL_LANES, end, owner) - first, (u32)TILE_ROWS)};
    }
    before += __shfl_sync(ALL_LANES, upto, 31);
  }
  return {0, 0, 0};
}

// Stores two adjacent outputs of a route.
__device__ __forceinline__ void store(const Params &params, const float *bias, u32 route, u32 output, float2 sum) {
  if (output >= params.outputs) return;
  OUT_TYPE *to = params.out + (u64)route * params.output_stride + params.output_start + output;
  const bool both = output + 1 < params.outputs;
  if (bias) {
    sum.x += bias[output];
    if (both) sum.y += bias[output + 1];
  }
  if (both && ((params.output_start | params.output_stride) & 1) == 0) {
    store_two(to, sum);
    return;
  }
  store_one(to, sum.x);
  if (both) store_one(to + 1, sum.y);
}

KERNEL(matmul_experts_tile, TILE_THREADS, TILE_BLOCKS) {
  DYNAMIC_SHARED(u8, shared);
  u32 *x_rows = reinterpret_cast<u32 *>(shared), *out_rows = reinterpret_cast<u32 *>(shared + TILE_SHARED_BYTES);
  u32 *found = out_rows + TILE_ROWS;
  const TileThread at = tile_thread();
  if (at.thread < 32) {
    const ExpertTile tile = find_tile(params, blockIdx.x, at.lane);
    if (at.lane == 0) found[0] = tile.expert, found[1] = tile.first, found[2] = tile.count;
  }
  __syncthreads();
  const u32 expert = found[0], first = found[1], count = found[2];
  if (count == 0 || expert - params.expert_first >= params.expert_count) return;
  for (u32 row = at.thread; row < TILE_ROWS; row += TILE_THREADS) {
    const u32 route = row < count ? params.order[first + row] : NONE;
    out_rows[row] = route;
    x_rows[row] = row < count ? route / params.x_routes : NONE;
  }
  __syncthreads();
  const u32 first_output = blockIdx.y * TILE_OUTPUTS;
  const WeightLayout layout = weight_layout<FORMAT>(params.columns);
  const u8 *weight = params.weight + (expert - params.expert_first) * params.expert_stride;
  const TileInput in = {params.x,
                        weight + (u64)first_output * layout.row_bytes,
                        params.columns,
                        min(params.outputs - first_output, (u32)TILE_OUTPUTS),
                        0,
                        ceil_div(params.columns, CHUNK)};
  TileSums sums;
  multiply_tile(sums, shared, in, at);
  if (at.slice > 0) return;
  const float *bias = params.bias ? params.bias + (u64)expert * params.output_stride + params.output_start : nullptr;
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) {
    const u32 row = at.first_row + 16 * m + at.lane / 4;
#pragma unroll
    for (u32 n = 0; n < N_TILES; n++) {
      const u32 output = first_output + at.first_output + 8 * n + 2 * (at.lane % 4);
      const float4 sum = sums.v[m][n];
      if (row < count) store(params, bias, out_rows[row], output, make_float2(sum.x, sum.y));
      if (row + 8 < count) store(params, bias, out_rows[row + 8], output, make_float2(sum.z, sum.w));
    }
  }
}
