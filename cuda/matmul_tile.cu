// out (=, +=) x · Wᵀ + bias for more than a few rows, on tensor cores. x: [rows, columns] bfloat16; W: [outputs,
// columns], one section of a weight; out: [rows, output_stride] from output_start on.
// Block: one tile of rows × outputs (grid x and y) and one split of the columns (grid z). With splits, each block
// writes its sums to scratch; the last block of a tile adds them up in the order of the splits. Counters are zero
// before and after.
// -D: see common/tile.cuh, and OUT_TYPE. Twin: backend/reference/matmul.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"
#include "common/tile.cuh"

struct Params {
  const u16 *x;
  const u8 *weight;
  const float *bias;  // of all outputs, or null
  OUT_TYPE *out;
  const u32 *metadata;
  float *scratch;  // [tiles][splits][TILE_ROWS · TILE_OUTPUTS]
  u32 *counters;   // [tiles]
  u32 columns, outputs, output_start, output_stride;
  u32 count_word, count_multiplier;  // number of rows: a word of the metadata, times a factor
  u32 accumulate, splits;
};

// Writes the sums to scratch. Returns whether this block is the last of its tile; its sums are then complete.
__device__ __forceinline__ bool add_splits(TileSums &sums, u8 *shared, const Params &params, const TileThread &at) {
  constexpr u32 EACH = M_TILES * N_TILES, WARP = 32 * EACH, TILE = PART_WARPS * WARP;
  const u32 tile = blockIdx.y * gridDim.x + blockIdx.x;
  float4 *parts = reinterpret_cast<float4 *>(params.scratch) + (u64)tile * params.splits * TILE +
                  at.thread / 32 % PART_WARPS * WARP + at.lane;
  if (at.slice == 0) {
#pragma unroll
    for (u32 i = 0; i < EACH; i++) parts[blockIdx.z * TILE + 32 * i] = sums.v[i / N_TILES][i % N_TILES];
  }
  u32 *ticket = reinterpret_cast<u32 *>(shared);
  __threadfence();
  __syncthreads();
  if (at.thread == 0) {
    *ticket = atomicAdd(params.counters + tile, 1u);
    if (*ticket == params.splits - 1) params.counters[tile] = 0;
  }
  __syncthreads();
  if (*ticket != params.splits - 1) return false;
  __threadfence();
  if (at.slice > 0) return false;
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    float4 sum = parts[32 * i];
    for (u32 split = 1; split < params.splits; split++) {
      const float4 other = parts[split * TILE + 32 * i];
      sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    sums.v[i / N_TILES][i % N_TILES] = sum;
  }
  return true;
}

// Stores two adjacent outputs of a row.
__device__ __forceinline__ void store(const Params &params, u32 row, u32 output, float2 sum) {
  OUT_TYPE *to = params.out + (u64)row * params.output_stride + params.output_start + output;
  if (output >= params.outputs) return;
  const bool both = output + 1 < params.outputs;
  if (params.bias) {
    const float *bias = params.bias + params.output_start + output;
    sum.x += bias[0];
    if (both) sum.y += bias[1];
  }
  if (params.accumulate) {
    sum.x += load_one(to);
    if (both) sum.y += load_one(to + 1);
  }
  // Outputs are even, so every pair is aligned if both of these are even.
  if (both && ((params.output_start | params.output_stride) & 1) == 0) {
    store_two(to, sum);
    return;
  }
  store_one(to, sum.x);
  if (both) store_one(to + 1, sum.y);
}

KERNEL(matmul_tile, TILE_THREADS, TILE_BLOCKS) {
  DYNAMIC_SHARED(u8, shared);
  const TileThread at = tile_thread();
  const u32 rows = params.metadata[params.count_word] * params.count_multiplier;
  const u32 first_row = blockIdx.x * TILE_ROWS, first_output = blockIdx.y * TILE_OUTPUTS;
  if (first_row >= rows) return;
  u32 *x_rows = reinterpret_cast<u32 *>(shared);
  for (u32 row = at.thread; row < TILE_ROWS; row += TILE_THREADS)
    x_rows[row] = first_row + row < rows ? first_row + row : NONE;
  __syncthreads();
  const u32 chunks = ceil_div(params.columns, CHUNK);
  const WeightLayout layout = weight_layout<FORMAT>(params.columns);
  const TileInput in = {params.x,
                        params.weight + (u64)first_output * layout.row_bytes,
                        params.columns,
                        min(params.outputs - first_output, (u32)TILE_OUTPUTS),
                        blockIdx.z * chunks / params.splits,
                        (blockIdx.z + 1) * chunks / params.splits};
  TileSums sums;
  multiply_tile(sums, shared, in, at);
  if (params.splits > 1 ? !add_splits(sums, shared, params, at) : at.slice > 0) return;
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) {
    const u32 row = first_row + at.first_row + 16 * m + at.lane / 4;
#pragma unroll
    for (u32 n = 0; n < N_TILES; n++) {
      const u32 output = first_output + at.first_output + 8 * n + 2 * (at.lane % 4);
      const float4 sum = sums.v[m][n];
      if (row < rows) store(params, row, output, make_float2(sum.x, sum.y));
      if (row + 8 < rows) store(params, row + 8, output, make_float2(sum.z, sum.w));
    }
  }
}
