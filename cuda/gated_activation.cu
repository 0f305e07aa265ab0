// out[r][c] = act(gate[r][c]) · up[r][c]; a row of gate_up is all gates, then all ups.
//
// gate_up [rows][2 · columns] of -DX_TYPE, out [rows][columns] of -DOUT_TYPE. A thread: 8 columns of a row.
// Twin: backend/reference/gated_activation.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/activation.cuh"
#include "common/metadata.cuh"

struct Params {
  const X_TYPE *gate_up;
  OUT_TYPE *out;
  const u32 *metadata;
  u32 row_header;
  u32 row_times;
  u32 eights;  // of out
  u32 activation;
  float alpha;
  float limit;
};

KERNEL(gated_activation, 256, 1) {
  const u32 rows = params.metadata[params.row_header] * params.row_times;
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 row = at / params.eights, eight = at % params.eights;
  if (row >= rows) return;
  const X_TYPE *gates = params.gate_up + static_cast<u64>(row) * params.eights * 16;
  const Eight gate = load_eight(gates + 8 * eight);
  const Eight up = load_eight(gates + 8 * (params.eights + eight));
  Eight result;
  for (u32 i = 0; i < 8; i++) result.v[i] = gated(params.activation, gate.v[i], up.v[i], params.alpha, params.limit);
  store_eight(params.out + (static_cast<u64>(row) * params.eights + eight) * 8, result);
}
