// x[r] += delta[r] (optional); out[r][c] (=, +=) x[r][c] / sqrt(mean_c(x[r]²) + ε) · (w[c] + offset) + b[c];
// out[r] *= s. With `center`, x[r] minus its mean. A row here is a run of the step.
//
// x, delta, out [rows][columns] of -DX_TYPE, -DDELTA_TYPE, -DOUT_TYPE; w f32. A block: one row; a thread: every 256th
// run of 8 columns, read twice, the second time from the cache.
// Twin: backend/reference/rms_norm.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/block.cuh"
#include "common/metadata.cuh"

struct Params {
  X_TYPE *x;
  const DELTA_TYPE *delta;  // or null
  const float *weight;
  OUT_TYPE *out;
  const u32 *metadata;
  u32 row_header;  // header word with the number of rows
  u32 row_times;
  u32 eights;
  float epsilon;
  float offset;  // 1 if the weight is 1 + w
  u32 accumulate;
  const float *bias;   // or null
  const float *scale;  // or null
  u32 center;
  u32 unused;
};

constexpr u32 THREADS = 256;

KERNEL(rms_norm, THREADS, 1) {
  const u32 row = blockIdx.x;
  if (row >= params.metadata[params.row_header] * params.row_times) return;
  const u64 first = static_cast<u64>(row) * params.eights * 8;
  X_TYPE *x = params.x + first;
  // An element is subtracted before the sums: a row's mean may be large against its spread.
  const float start = params.center ? load_one(x) : 0.0f;
  float sum = 0.0f, total = 0.0f;
  for (u32 eight = threadIdx.x; eight < params.eights; eight += THREADS) {
    Eight values = load_eight(x + 8 * eight);
    if (params.delta) {
      const Eight delta = load_eight(params.delta + first + 8 * eight);
      for (u32 i = 0; i < 8; i++) values.v[i] += delta.v[i];
      store_eight(x + 8 * eight, values);
      // The value as stored, rounded.
      values = load_eight(x + 8 * eight);
    }
    for (u32 i = 0; i < 8; i++) {
      const float value = values.v[i] - start;
      sum = fmaf(value, value, sum);
      total += value;
    }
  }
  const float columns = static_cast<float>(params.eights * 8);
  const float mean = params.center ? block_sum<THREADS>(total) / columns : 0.0f;
  const float inverse = rsqrtf(block_sum<THREADS>(sum) / columns - mean * mean + params.epsilon);
  const float shift = start + mean;
  OUT_TYPE *out = params.out + first;
  for (u32 eight = threadIdx.x; eight < params.eights; eight += THREADS) {
    Eight values = load_eight(x + 8 * eight);
    const Eight weight = load_eight(params.weight + 8 * eight);
    for (u32 i = 0; i < 8; i++) values.v[i] = (values.v[i] - shift) * (inverse * (weight.v[i] + params.offset));
    if (params.bias) {
      const Eight bias = load_eight(params.bias + 8 * eight);
      for (u32 i = 0; i < 8; i++) values.v[i] += bias.v[i];
    }
    if (params.accumulate) {
      const Eight old = load_eight(out + 8 * eight);
      for (u32 i = 0; i < 8; i++) values.v[i] += old.v[i];
    }
    if (params.scale) {
      for (u32 i = 0; i < 8; i++) values.v[i] *= params.scale[0];
    }
    store_eight(out + 8 * eight, values);
  }
}
