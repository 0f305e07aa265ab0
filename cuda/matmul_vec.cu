// out (=, +=) x · Wᵀ + bias for a few rows: every weight is read once and multiplied by all rows of the group.
//
// x [rows][columns] of -DX_TYPE, W [outputs][columns] in -DWEIGHT, out [rows][stride] of -DOUT_TYPE, from column
// output_start on. A warp computes -DOUTPUTS outputs of -DROWS rows; its lanes stride over the columns, 8 at a time, or
// whole groups of 32 for quantized weights. A block has -DWARPS; blocks along y take further rows. Sums are f32: levels
// are multiplied before the scale, which is applied once per group.
// NORM: fuses the preceding norm. x is the residual stream; each block computes the norm of its rows, rounded to
// -DNORMED_TYPE, in shared memory (ROWS · columns · size of that type).
// GATED: fuses the following activation. W is gates, then ups; a warp computes both for OUTPUTS / 2 outputs, rounds
// them to -DGATED_TYPE and writes act(gate) · up.
// Each warp begins to fetch its first weights while the kernels before it still run.
// Twin: backend/reference/matmul.rs (with rms_norm.rs, gated_activation.rs).
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/activation.cuh"
#include "common/block.cuh"
#include "common/metadata.cuh"
#include "common/weight_group.cuh"

struct Params {
  const X_TYPE *x;
  const u8 *weight;
  const float *bias;  // or null
  OUT_TYPE *out;
  const u32 *metadata;
  const float *norm_weight;  // NORM
  u32 row_header;
  u32 row_times;
  u32 columns;
  u32 outputs;
  u32 stride;
  u32 output_start;
  u32 accumulate;
  float epsilon;  // NORM
  float offset;   // NORM: 1 if the weight is 1 + w
  u32 activation;  // GATED
  float alpha;
  float limit;
};

constexpr Weight W = Weight::WEIGHT;
#ifdef NORM
typedef NORMED_TYPE Row;
#else
typedef X_TYPE Row;
#endif

struct Sums {
  float v[OUTPUTS][ROWS];
};

__device__ __forceinline__ float dot(const Eight &a, const Eight &b, float sum) {
  for (u32 i = 0; i < 8; i++) sum = fmaf(a.v[i], b.v[i], sum);
  return sum;
}

__device__ __forceinline__ void add_dense(Sums &sums, const Params &params, const Row *const *x, const u8 *const *w,
                                          u32 lane) {
#pragma unroll 2
  for (u32 eight = lane; eight < params.columns / 8; eight += 32) {
    Eight weights[OUTPUTS];
#pragma unroll
    for (u32 o = 0; o < OUTPUTS; o++) weights[o] = dense_eight<W>(w[o], eight);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      const Eight values = load_eight(x[r] + 8 * eight);
#pragma unroll
      for (u32 o = 0; o < OUTPUTS; o++) sums.v[o][r] = dot(weights[o], values, sums.v[o][r]);
    }
  }
}

// Columns from 8 E on of a group: products with levels, and sums of x for the minimum.
template <u32 E>
__device__ __forceinline__ void add_eight(Sums &products, float *totals, const PackedGroup<W> *packed,
                                          const Row *const *x, u32 column, u32 columns) {
  if (column + 8 * E >= columns) return;
  Eight levels[OUTPUTS];
#pragma unroll
  for (u32 o = 0; o < OUTPUTS; o++) levels[o] = eight_levels<W, E>(packed[o]);
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) {
    const Eight values = load_eight(x[r] + column + 8 * E);
#pragma unroll
    for (u32 o = 0; o < OUTPUTS; o++) products.v[o][r] = dot(levels[o], values, products.v[o][r]);
    if (has_minimum(W)) {
      const float *v = values.v;
      totals[r] += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
  }
}

template <u32 HALF>
__device__ __forceinline__ void add_scaled(Sums &sums, Sums &products, float *totals, const GroupScale *scales) {
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
    for (u32 o = 0; o < OUTPUTS; o++) {
      sums.v[o][r] = fmaf(scales[o].a[HALF], products.v[o][r], sums.v[o][r]);
      if (has_minimum(W)) sums.v[o][r] = fmaf(scales[o].b[HALF], totals[r], sums.v[o][r]);
      products.v[o][r] = 0.0f;
    }
    totals[r] = 0.0f;
  }
}

__device__ __forceinline__ void add_groups(Sums &sums, const Params &params, const Row *const *x,
                                           const u8 *const *w, u32 lane) {
  const WeightLayout layout = weight_layout<W>(params.columns);
  for (u32 group = lane; group < ceil_div(params.columns, GROUP); group += 32) {
    PackedGroup<W> packed[OUTPUTS];
    GroupScale scales[OUTPUTS];
#pragma unroll
    for (u32 o = 0; o < OUTPUTS; o++) packed[o] = load_group<W>(w[o], layout, group);
#pragma unroll
    for (u32 o = 0; o < OUTPUTS; o++) scales[o] = group_scale<W>(packed[o]);
    Sums products = {};
    float totals[ROWS] = {};
    const u32 column = GROUP * group;
    add_eight<0>(products, totals, packed, x, column, params.columns);
    add_eight<1>(products, totals, packed, x, column, params.columns);
    if (has_half_groups(W)) add_scaled<0>(sums, products, totals, scales);
    add_eight<2>(products, totals, packed, x, column, params.columns);
    add_eight<3>(products, totals, packed, x, column, params.columns);
    add_scaled<1>(sums, products, totals, scales);
  }
}

#ifdef NORM
// Computes the norms of the block's rows, exactly as the separate step would have written them.
__device__ __forceinline__ void make_norms(Row *norms, const Params &params, u32 row_first, u32 rows) {
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) {
    const X_TYPE *x = params.x + static_cast<u64>(min(row_first + r, rows - 1)) * params.columns;
    float sum = 0.0f;
    for (u32 eight = threadIdx.x; eight < params.columns / 8; eight += WARPS * 32) {
      const Eight values = load_eight(x + 8 * eight);
      sum = dot(values, values, sum);
    }
    const float mean = block_sum<WARPS * 32>(sum) / static_cast<float>(params.columns);
    const float inverse = rsqrtf(mean + params.epsilon);
    for (u32 eight = threadIdx.x; eight < params.columns / 8; eight += WARPS * 32) {
      Eight values = load_eight(x + 8 * eight);
      const Eight weight = load_eight(params.norm_weight + 8 * eight);
      for (u32 i = 0; i < 8; i++) values.v[i] *= inverse * (weight.v[i] + params.offset);
      store_eight(norms + r * params.columns + 8 * eight, values);
    }
  }
  __syncthreads();
}
#endif

// The weight row of the warp's sum `o`.
__device__ __forceinline__ u32 weight_row(const Params &params, u32 output_first, u32 o) {
#ifdef GATED
  const u32 half = params.outputs / 2;
  return min(output_first + o / 2, half - 1) + o % 2 * half;
#else
  return min(output_first + o, params.outputs - 1);
#endif
}

#ifdef GATED
__device__ __forceinline__ float stored(float value) {
  GATED_TYPE narrow;
  store_one(&narrow, value);
  return load_one(&narrow);
}
__device__ __forceinline__ void write(const Params &params, Sums &sums, u32 output_first, u32 row_first, u32 rows) {
  const u32 half = params.outputs / 2;
#pragma unroll
  for (u32 pair = 0; pair < OUTPUTS / 2; pair++)
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      float gate = warp_sum(sums.v[2 * pair][r]), up = warp_sum(sums.v[2 * pair + 1][r]);
      const u32 output = output_first + pair;
      if (threadIdx.x % 32 != pair * ROWS + r || output >= half || row_first + r >= rows) continue;
      if (params.bias) gate += params.bias[output], up += params.bias[half + output];
      const float value = gated(params.activation, stored(gate), stored(up), params.alpha, params.limit);
      store_one(params.out + static_cast<u64>(row_first + r) * params.stride + output, value);
    }
}
#else
__device__ __forceinline__ void write(const Params &params, Sums &sums, u32 output_first, u32 row_first, u32 rows) {
#pragma unroll
  for (u32 o = 0; o < OUTPUTS; o++)
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      float value = warp_sum(sums.v[o][r]);
      if (threadIdx.x % 32 != o * ROWS + r || output_first + o >= params.outputs || row_first + r >= rows) continue;
      const u32 output = params.output_start + output_first + o;
      OUT_TYPE *out = params.out + static_cast<u64>(row_first + r) * params.stride + output;
      if (params.bias) value += params.bias[output];
      if (params.accumulate) value += load_one(out);
      store_one(out, value);
    }
}
#endif

// Outputs that a warp writes, and those of all.
#ifdef GATED
constexpr u32 OUTPUTS_EACH = OUTPUTS / 2;
__device__ __forceinline__ u32 outputs_of(const Params &params) { return params.outputs / 2; }
#else
constexpr u32 OUTPUTS_EACH = OUTPUTS;
__device__ __forceinline__ u32 outputs_of(const Params &params) { return params.outputs; }
#endif
__device__ __forceinline__ u32 first_output() { return (blockIdx.x * WARPS + threadIdx.x / 32) * OUTPUTS_EACH; }

// Bytes of codes that a warp prefetches, and at most as many of what follows them in the rows. The warps that an H100
// runs at once then have about as much in flight as its memory needs to reach its bandwidth: a tenth of the L2 cache.
constexpr u32 PREFETCH_BYTES = 2048;

// The beginning of each weight row, and of what follows its codes: one lane each.
__device__ __forceinline__ void prefetch(const Params &params) {
  const u32 lane = threadIdx.x % 32, output_first = first_output();
  if (blockIdx.y > 0 || lane >= 2 * OUTPUTS || output_first >= outputs_of(params)) return;
  const WeightLayout layout = weight_layout<W>(params.columns);
  const u32 start = lane < OUTPUTS ? 0 : layout.plane, end = lane < OUTPUTS ? layout.plane : layout.row_bytes;
  if (start == end) return;
  const u8 *row = params.weight + static_cast<u64>(weight_row(params, output_first, lane % OUTPUTS)) * layout.row_bytes;
  prefetch_l2(row + start, min(end - start, PREFETCH_BYTES / OUTPUTS));
}

PREFETCHING_KERNEL(matmul_vec, WARPS * 32, 1) {
  const u32 rows = params.metadata[params.row_header] * params.row_times;
  const u32 row_first = blockIdx.y * ROWS;
  if (row_first >= rows) return;
  // Rows and outputs beyond the last repeat the last one, and are not written.
  const Row *x[ROWS];
#ifdef NORM
  DYNAMIC_SHARED(Row, norms);
  make_norms(norms, params, row_first, rows);
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) x[r] = norms + r * params.columns;
#else
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) x[r] = params.x + static_cast<u64>(min(row_first + r, rows - 1)) * params.columns;
#endif
  const u32 output_first = first_output();
  if (output_first >= outputs_of(params)) return;
  const u8 *w[OUTPUTS];
  const u32 row_bytes = weight_layout<W>(params.columns).row_bytes;
#pragma unroll
  for (u32 o = 0; o < OUTPUTS; o++)
    w[o] = params.weight + static_cast<u64>(weight_row(params, output_first, o)) * row_bytes;

  Sums sums = {};
  if constexpr (is_dense(W)) add_dense(sums, params, x, w, threadIdx.x % 32);
  else add_groups(sums, params, x, w, threadIdx.x % 32);
  write(params, sums, output_first, row_first, rows);
}
