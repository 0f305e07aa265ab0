// y = x, or x · silu(z) with `gate_first`; out = y / sqrt(mean(y²) + ε) · w, times silu(z) otherwise; over each group.
//
// x and out [rows][groups][group] of -DX_TYPE and -DOUT_TYPE; mixed [rows][mixed_columns] of -DMIXED_TYPE, with z from
// a column on; w f32, for one group or for all. A block: one group of a row; a thread: every 128th run of 8 columns.
// Twin: backend/reference/gated_norm.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/block.cuh"
#include "common/metadata.cuh"
#include "common/rows.cuh"

struct Params {
  const X_TYPE *x;
  const MIXED_TYPE *mixed;
  const float *weight;
  OUT_TYPE *out;
  const u32 *metadata;
  u32 groups;  // of a row
  u32 eights;  // of a group
  u32 weight_eights;
  u32 mixed_columns;
  u32 gates;
  u32 gate_first;
  float epsilon;
  u32 unused;
};

constexpr u32 THREADS = 128;

KERNEL(gated_norm, THREADS, 1) {
  const u32 row = blockIdx.x / params.groups, first = blockIdx.x % params.groups * params.eights;
  if (row >= params.metadata[META_TOKEN_COUNT]) return;
  const u64 base = (static_cast<u64>(row) * params.groups * params.eights + first) * 8;
  const MIXED_TYPE *gates = params.mixed + static_cast<u64>(row) * params.mixed_columns + params.gates + first * 8;
  const bool aligned = params.mixed_columns % 8 == 0 && params.gates % 8 == 0;
  float squares = 0.0f;
  for (u32 eight = threadIdx.x; eight < params.eights; eight += THREADS) {
    Eight y = load_eight(params.x + base + 8 * eight);
    const Eight z = load_eight_at(gates + 8 * eight, aligned);
    for (u32 i = 0; i < 8; i++) {
      if (params.gate_first) y.v[i] *= silu(z.v[i]);
      squares = fmaf(y.v[i], y.v[i], squares);
    }
  }
  const float inverse = rsqrtf(block_sum<THREADS>(squares) / static_cast<float>(params.eights * 8) + params.epsilon);
  const u32 weights = first % params.weight_eights;
  for (u32 eight = threadIdx.x; eight < params.eights; eight += THREADS) {
    Eight y = load_eight(params.x + base + 8 * eight);
    const Eight z = load_eight_at(gates + 8 * eight, aligned);
    const Eight weight = load_eight(params.weight + (weights + eight) * 8);
    for (u32 i = 0; i < 8; i++) y.v[i] *= silu(z.v[i]) * (inverse * weight.v[i]);
    store_eight(params.out + base + 8 * eight, y);
  }
}
