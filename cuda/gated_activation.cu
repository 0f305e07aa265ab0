// out[r][c] = act(gate[r][c]) · up[r][c]; up is in the same row (all gates, then all ups), in another buffer, or 1.
//
// gate_up [rows][gate_stride] of -DX_TYPE, up [rows][up_stride] of -DUP_TYPE or null, out [rows][columns] of
// -DOUT_TYPE. A thread: 8 columns of a row, which may share a gate. Stride and start of up are in runs of 8.
// Twin: backend/reference/gated_activation.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/activation.cuh"
#include "common/metadata.cuh"
#include "common/rows.cuh"

// Beside those of activation.cuh, which are also fused into products.
constexpr u32 SIGMOID = 5;
constexpr u32 GELU = 6;
constexpr u32 RELU = 7;
constexpr u32 SOFTPLUS = 8;
constexpr u32 CLAMPED_SILU = 9;

struct Params {
  const X_TYPE *gate_up;
  const UP_TYPE *up;     // or null
  const float *numbers;  // of xIELU
  OUT_TYPE *out;
  const u32 *metadata;
  u32 row_header;
  u32 row_times;
  u32 eights;  // of out
  u32 gate_stride;  // in columns
  u32 up_stride;
  u32 up_start;
  u32 activation;
  float alpha;
  float limit;
  u32 gate_first;  // column
  u32 shared_by;   // consecutive columns of out that share a gate: 1, or a multiple of 8
  u32 unused;
  const float2 *routes;  // or null: (expert, weight) of each row, whose weight multiplies its gates
};

KERNEL(gated_activation, 256, 1) {
  const u32 rows = params.metadata[params.row_header] * params.row_times;
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 row = at / params.eights, eight = at % params.eights;
  if (row >= rows) return;
  const X_TYPE *gates = params.gate_up + static_cast<u64>(row) * params.gate_stride + params.gate_first;
  Eight gate, up;
  if (params.shared_by == 1) {
    gate = load_eight_at(gates + 8 * eight, params.gate_stride % 8 == 0);
  } else {
    const float shared = load_one(gates + 8 * eight / params.shared_by);
#pragma unroll
    for (u32 i = 0; i < 8; i++) gate.v[i] = shared;
  }
  const float weight = params.routes ? params.routes[row].y : 1.0f;
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    gate.v[i] *= weight;
    up.v[i] = 1.0f;
  }
  if (params.up)
    up = load_eight(params.up + (static_cast<u64>(row) * params.up_stride + params.up_start + eight) * 8);
  Eight result;
  // Without the pragma, NVRTC 12.8 keeps the loop for sm_100a, and the numbers in local memory.
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    if (params.activation == XIELU) {
      result.v[i] = xielu(gate.v[i], params.numbers) * up.v[i];
    } else if (params.activation == SIGMOID) {
      result.v[i] = up.v[i] / (1.0f + expf(-gate.v[i]));
    } else if (params.activation == GELU) {
      result.v[i] = 0.5f * gate.v[i] * erfcf(-0.70710678f * gate.v[i]) * up.v[i];
    } else if (params.activation == SOFTPLUS) {
      result.v[i] = (fmaxf(gate.v[i], 0.0f) + log1pf(expf(-fabsf(gate.v[i])))) * up.v[i];
    } else if (params.activation == CLAMPED_SILU) {
      const float silu = fminf(gate.v[i] / (1.0f + expf(-gate.v[i])), params.limit);
      result.v[i] = silu * fminf(fmaxf(up.v[i], -params.limit), params.limit);
    } else if (params.activation == RELU) {
      result.v[i] = fmaxf(gate.v[i], 0.0f) * up.v[i];
    } else {
      result.v[i] = gated(params.activation, gate.v[i], up.v[i], params.alpha, params.limit);
    }
  }
  store_eight(params.out + (static_cast<u64>(row) * params.eights + eight) * 8, result);
}
