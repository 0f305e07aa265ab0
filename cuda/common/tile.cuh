// The product of a tile of bfloat16 rows and a tile of weight rows on tensor cores. The kernels that use it choose the
// rows and store the sums.
//
// Chunks of columns pass through STAGES buffers in shared memory. A block's warps share its tile: WARP_ROWS ×
// WARP_OUTPUTS each. With SLICES > 1, that many warps share one part of the tile; each takes every SLICES-th group of
// 32 columns, and their sums are added at the end, so that small tiles have many warps.
// Quantized weights: sum += a · (levels · x) + b · Σ x over a group, in f32, so there is no rounding beyond the
// format's. f16 weights take two products.
// -D: WEIGHT, TILE_ROWS, TILE_OUTPUTS, WARP_ROWS, WARP_OUTPUTS, SLICES, STAGES, CHUNK (64 or 128; quantized 128).

#pragma once
#include "common/weight_tile.cuh"

constexpr Weight FORMAT = Weight::WEIGHT;
constexpr u32 ROW_WARPS = TILE_ROWS / WARP_ROWS, OUTPUT_WARPS = TILE_OUTPUTS / WARP_OUTPUTS;
constexpr u32 PART_WARPS = ROW_WARPS * OUTPUT_WARPS;
constexpr u32 TILE_THREADS = 32 * PART_WARPS * SLICES;
// Minimum blocks per multiprocessor that register use must allow: small tiles wait for memory. Scales per half group
// take more registers than two blocks leave.
constexpr u32 TILE_BLOCKS = TILE_ROWS < 128 && !has_half_groups(FORMAT) ? 2 : 1;
constexpr u32 M_TILES = WARP_ROWS / 16, N_TILES = WARP_OUTPUTS / 8;
typedef WeightChunk<FORMAT, TILE_OUTPUTS, CHUNK> TileWeight;
constexpr u32 X_ROW = 2 * CHUNK;  // bytes
constexpr u32 STAGE_BYTES = TILE_ROWS * X_ROW + TileWeight::BYTES;
// Per warp: scales of its outputs, by group, half group, and a or b.
constexpr u32 SCALE_HALVES = has_half_groups(FORMAT) ? 2 : 1, SCALE_KINDS = has_minimum(FORMAT) ? 2 : 1;
constexpr u32 SCALE_GROUPS = TileWeight::GROUPS / SLICES;
constexpr u32 WARP_SCALES = is_dense(FORMAT) ? 0 : SCALE_GROUPS * SCALE_HALVES * SCALE_KINDS * WARP_OUTPUTS;
static_assert(TileWeight::GROUPS % SLICES == 0 && TILE_ROWS % WARP_ROWS == 0 && TILE_OUTPUTS % WARP_OUTPUTS == 0, "");
static_assert(WARP_ROWS % 16 == 0 && WARP_OUTPUTS % 8 == 0 && STAGES >= 2, "whole fragments");

// Bytes: rows of x, stages, scales of the warps. The sums of the slices reuse the space of the stages.
constexpr u32 ROWS_BYTES = 4 * TILE_ROWS;
constexpr u32 TILE_SHARED_BYTES = ROWS_BYTES + STAGES * STAGE_BYTES + TILE_THREADS / 32 * WARP_SCALES * 4;
static_assert((SLICES - 1) * TILE_ROWS * TILE_OUTPUTS * 4 <= STAGES * STAGE_BYTES, "slices add up in the stages");

struct TileSums {
  float4 v[M_TILES][N_TILES];
};

// Stores two elements; the address is aligned to both together.
__device__ __forceinline__ void store_two(float *to, float2 values) { *reinterpret_cast<float2 *>(to) = values; }
__device__ __forceinline__ void store_two(u16 *to, float2 values) {
  *reinterpret_cast<u32 *>(to) = pack_bf16(values.x, values.y);
}

// The part of the tile that a thread works on.
struct TileThread {
  u32 thread, lane, slice, first_row, first_output;
};
__device__ __forceinline__ TileThread tile_thread() {
  const u32 warp = threadIdx.x / 32, part = warp % PART_WARPS;
  return {threadIdx.x, threadIdx.x % 32, warp / PART_WARPS, part / OUTPUT_WARPS * WARP_ROWS,
          part % OUTPUT_WARPS * WARP_OUTPUTS};
}

// The operands: rows of `x` by the row indices in shared memory (NONE: no row), and `outputs` weight rows.
struct TileInput {
  const u16 *x;
  const u8 *weight;
  u32 columns, outputs;
  u32 first_chunk, end_chunk;
};

__device__ __forceinline__ void copy_stage(u8 *stage, const u32 *rows, const TileInput &in, const WeightLayout &layout,
                                           u32 chunk, u32 thread) {
  constexpr u32 PARTS = X_ROW / 16;
#pragma unroll
  for (u32 first = 0; first < TILE_ROWS * PARTS; first += TILE_THREADS) {
    const u32 at = first + thread, row = at / PARTS, part = at % PARTS;
    if (TILE_ROWS * PARTS % TILE_THREADS != 0 && at >= TILE_ROWS * PARTS) break;
    u8 *to = stage + row * X_ROW + 16 * (part ^ swizzle_dense(row));
    const u32 column = chunk * CHUNK + 8 * part, x_row = rows[row];
    if (x_row != NONE && column < in.columns) copy_async_16(to, in.x + (u64)x_row * in.columns + column);
    else copy_async_zero_16(to);
  }
  TileWeight::copy<TILE_THREADS>(stage + TILE_ROWS * X_ROW, in.weight, layout, in.outputs, chunk, thread);
}

// Both steps' fragments of 16 rows from `row` on: eight columns per lane.
__device__ __forceinline__ void load_x(uint4 (&a)[2], const u8 *stage, u32 row, u32 group, u32 q) {
  const u8 *from = stage + row * X_ROW + 16 * ((4 * group + q) ^ swizzle_dense(row));
  const uint4 low = *reinterpret_cast<const uint4 *>(from), high = *reinterpret_cast<const uint4 *>(from + 8 * X_ROW);
  a[0] = make_uint4(low.x, high.x, low.y, high.y);  // row + 8 has the same swizzle
  a[1] = make_uint4(low.z, high.z, low.w, high.w);
}
// One step's fragment, for half a group: four columns per lane.
__device__ __forceinline__ uint4 load_x_half(const u8 *stage, u32 row, u32 group, u32 half, u32 q) {
  const u32 part = 4 * group + 2 * half + q / 2;
  const u8 *from = stage + row * X_ROW + 16 * (part ^ swizzle_dense(row)) + 8 * (q % 2);
  const uint2 low = *reinterpret_cast<const uint2 *>(from), high = *reinterpret_cast<const uint2 *>(from + 8 * X_ROW);
  return make_uint4(low.x, high.x, low.y, high.y);
}

__device__ __forceinline__ void add_scaled(float4 &sum, const float4 &part, float2 a) {
  sum.x += a.x * part.x, sum.y += a.y * part.y, sum.z += a.x * part.z, sum.w += a.y * part.w;
}

// Σ x of rows g and g + 8 over a step, computed as products with ones.
__device__ __forceinline__ void add_ones(float4 &total, uint4 a) {
  multiply_bf16(total, a, make_uint2(0x3f803f80u, 0x3f803f80u));
}
// Adds a · part and b · Σ x. `scales`: for the warp's outputs, first all a, then all b.
__device__ __forceinline__ void add_parts(TileSums &sums, const float4 (&part)[M_TILES], const float2 (&total)[M_TILES],
                                          const float *scales, u32 n, u32 q) {
  const float2 a = *reinterpret_cast<const float2 *>(scales + 8 * n + 2 * q);
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) add_scaled(sums.v[m][n], part[m], a);
  if constexpr (has_minimum(FORMAT)) {
    const float2 b = *reinterpret_cast<const float2 *>(scales + WARP_OUTPUTS + 8 * n + 2 * q);
#pragma unroll
    for (u32 m = 0; m < M_TILES; m++)
      add_scaled(sums.v[m][n], make_float4(total[m].x, total[m].x, total[m].y, total[m].y), b);
  }
}

// Multiplies a group of quantized weights. `scales`: those of the warp for this group.
__device__ __forceinline__ void multiply_group(TileSums &sums, const u8 *stage, const float *scales, u32 group,
                                               const TileThread &at) {
  const u32 g = at.lane / 4, q = at.lane % 4;
  uint4 a[M_TILES][2];
  float2 totals[M_TILES];
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) {
    load_x(a[m], stage, at.first_row + 16 * m + g, group, q);
    if constexpr (has_minimum(FORMAT)) {
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      add_ones(total, a[m][0]);
      add_ones(total, a[m][1]);
      totals[m] = make_float2(total.x, total.z);
    }
  }
#pragma unroll
  for (u32 n = 0; n < N_TILES; n++) {
    const uint4 w = TileWeight::fragment(stage + TILE_ROWS * X_ROW, at.first_output + 8 * n + g, group, q);
    // One step's products for all rows come before the next step's, which depend on them.
    float4 part[M_TILES];
#pragma unroll
    for (u32 m = 0; m < M_TILES; m++) {
      part[m] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      multiply_bf16(part[m], a[m][0], make_uint2(w.x, w.y));
    }
#pragma unroll
    for (u32 m = 0; m < M_TILES; m++) multiply_bf16(part[m], a[m][1], make_uint2(w.z, w.w));
    add_parts(sums, part, totals, scales, n, q);
  }
}

// Multiplies half a group that has its own scales.
__device__ __forceinline__ void multiply_half(TileSums &sums, const u8 *stage, const float *scales, u32 group, u32 half,
                                              const TileThread &at) {
  const u32 g = at.lane / 4, q = at.lane % 4;
  uint4 a[M_TILES];
  float2 totals[M_TILES];
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) {
    a[m] = load_x_half(stage, at.first_row + 16 * m + g, group, half, q);
    if constexpr (has_minimum(FORMAT)) {
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      add_ones(total, a[m]);
      totals[m] = make_float2(total.x, total.z);
    }
  }
#pragma unroll
  for (u32 n = 0; n < N_TILES; n++) {
    const uint2 w = TileWeight::half_fragment(stage + TILE_ROWS * X_ROW, at.first_output + 8 * n + g, group, half, q);
    float4 part[M_TILES];
#pragma unroll
    for (u32 m = 0; m < M_TILES; m++) {
      part[m] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      multiply_bf16(part[m], a[m], w);
    }
    add_parts(sums, part, totals, scales, n, q);
  }
}

// Multiplies both steps of dense weights.
__device__ __forceinline__ void multiply_steps(TileSums &sums, const uint4 (&a)[M_TILES][2], u32 n, uint4 w) {
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) multiply_bf16(sums.v[m][n], a[m][0], make_uint2(w.x, w.y));
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) multiply_bf16(sums.v[m][n], a[m][1], make_uint2(w.z, w.w));
}

__device__ __forceinline__ void multiply_dense(TileSums &sums, const u8 *stage, u32 group, const TileThread &at) {
  const u32 g = at.lane / 4, q = at.lane % 4;
  uint4 a[M_TILES][2];
#pragma unroll
  for (u32 m = 0; m < M_TILES; m++) load_x(a[m], stage, at.first_row + 16 * m + g, group, q);
#pragma unroll
  for (u32 n = 0; n < N_TILES; n++) {
    const uint4 w = TileWeight::fragment(stage + TILE_ROWS * X_ROW, at.first_output + 8 * n + g, group, q);
    if (FORMAT == Weight::F16) {
      const TwoTerms x = split_f16(w.x), y = split_f16(w.y), z = split_f16(w.z), v = split_f16(w.w);
      multiply_steps(sums, a, n, make_uint4(x.low, y.low, z.low, v.low));
      multiply_steps(sums, a, n, make_uint4(x.high, y.high, z.high, v.high));
    } else {
      multiply_steps(sums, a, n, w);
    }
  }
}

// Decodes the scales of the warp's outputs once for all its rows.
__device__ __forceinline__ void decode_scales(float *scales, const u8 *stage, u32 groups, const TileThread &at) {
  for (u32 output = at.lane; output < WARP_OUTPUTS; output += 32) {
#pragma unroll
    for (u32 i = 0; i < SCALE_GROUPS; i++) {
      const u32 group = at.slice + i * SLICES;
      if (group >= groups) break;
      const GroupScale s = TileWeight::scale(stage + TILE_ROWS * X_ROW, at.first_output + output, group);
      float *to = scales + i * SCALE_HALVES * SCALE_KINDS * WARP_OUTPUTS + output;
#pragma unroll
      for (u32 half = 0; half < SCALE_HALVES; half++) {
        to[half * SCALE_KINDS * WARP_OUTPUTS] = s.a[half];
        if (has_minimum(FORMAT)) to[(half * SCALE_KINDS + 1) * WARP_OUTPUTS] = s.b[half];
      }
    }
  }
}

__device__ __forceinline__ void multiply_chunk(TileSums &sums, const u8 *stage, float *scales, u32 groups,
                                               const TileThread &at) {
  if constexpr (!is_dense(FORMAT)) {
    __syncwarp();  // all lanes have read the last chunk's scales
    decode_scales(scales, stage, groups, at);
    __syncwarp();
  }
  // A large tile's groups are processed one after another: together they need too many registers.
  constexpr u32 TOGETHER = TILE_ROWS < 128 || is_dense(FORMAT) ? SCALE_GROUPS : 1;
  constexpr u32 HALVES_TOGETHER = TOGETHER == 1 ? 1 : 2;
#pragma unroll TOGETHER
  for (u32 i = 0; i < SCALE_GROUPS; i++) {
    const u32 group = at.slice + i * SLICES;
    if (group >= groups) break;
    const float *own = scales + i * SCALE_HALVES * SCALE_KINDS * WARP_OUTPUTS;
    if constexpr (is_dense(FORMAT)) {
      multiply_dense(sums, stage, group, at);
    } else if constexpr (has_half_groups(FORMAT)) {
#pragma unroll HALVES_TOGETHER
      for (u32 half = 0; half < 2; half++)
        multiply_half(sums, stage, own + half * SCALE_KINDS * WARP_OUTPUTS, group, half, at);
    } else {
      multiply_group(sums, stage, own, group, at);
    }
  }
}

// Adds the slices' sums into slice 0, in order; all threads must call it.
__device__ __forceinline__ void add_slices(TileSums &sums, u8 *stages, const TileThread &at) {
  if (SLICES == 1) return;
  float4 *parts = reinterpret_cast<float4 *>(stages);
  constexpr u32 EACH = M_TILES * N_TILES, WARP = 32 * EACH;
  const u32 part = at.thread / 32 % PART_WARPS;
  __syncthreads();
  if (at.slice > 0) {
    float4 *to = parts + ((at.slice - 1) * PART_WARPS + part) * WARP + at.lane;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) to[32 * i] = sums.v[i / N_TILES][i % N_TILES];
  }
  __syncthreads();
  if (at.slice > 0) return;
  for (u32 slice = 1; slice < SLICES; slice++) {
    const float4 *from = parts + ((slice - 1) * PART_WARPS + part) * WARP + at.lane;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      const float4 other = from[32 * i];
      float4 &sum = sums.v[i / N_TILES][i % N_TILES];
      sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
  }
}

// The whole product. Fills `rows` at the start of the shared memory, with a barrier. Threads of slice 0 get the sums.
__device__ __forceinline__ void multiply_tile(TileSums &sums, u8 *shared, const TileInput &in, const TileThread &at) {
  const WeightLayout layout = weight_layout<FORMAT>(in.columns);
  const u32 *rows = reinterpret_cast<const u32 *>(shared);
  u8 *stages = shared + ROWS_BYTES;
  float *scales = reinterpret_cast<float *>(stages + STAGES * STAGE_BYTES) + at.thread / 32 * WARP_SCALES;
  const u32 groups = ceil_div(in.columns, GROUP);
#pragma unroll
  for (u32 i = 0; i < M_TILES * N_TILES; i++) sums.v[i / N_TILES][i % N_TILES] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (u32 i = 0; i + 1 < STAGES; i++) {
    const u32 chunk = in.first_chunk + i;
    if (chunk < in.end_chunk) copy_stage(stages + i * STAGE_BYTES, rows, in, layout, chunk, at.thread);
    copy_async_commit();
  }
  u32 here = 0, next = STAGES - 1;
  for (u32 chunk = in.first_chunk; chunk < in.end_chunk; chunk++) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();
    // The next chunk goes into the stage that all threads have finished reading.
    if (chunk + STAGES - 1 < in.end_chunk)
      copy_stage(stages + next * STAGE_BYTES, rows, in, layout, chunk + STAGES - 1, at.thread);
    copy_async_commit();
    multiply_chunk(sums, stages + here * STAGE_BYTES, scales, groups - chunk * TileWeight::GROUPS, at);
    here = here + 1 == STAGES ? 0 : here + 1;
    next = next + 1 == STAGES ? 0 : next + 1;
  }
  copy_async_wait<0>();
  add_slices(sums, stages, at);
}
