// out[t][i] = c[t][i] * (sum_j weight[i][j] * s[t - TAPS + 1 + j][i] + bias[i]), s = b * u, over the rows t of one
// sequence; before its first row, s is its state. -DSILU=1: out = silu(the sum), s = the first columns of x.
//
// x [tokens][width], either b, c, u or s and others, and out [tokens][columns] of -DX_TYPE and -DOUT_TYPE, float or
// u16 (bfloat16); weight [columns][TAPS], bias [columns] (or null), state [slots][TAPS - 1][columns] f32, oldest first.
// A thread: 8 columns of one row. The rows that see the state, and the state itself, are the first row's: no other
// thread reads or writes it.
// Twin: backend/reference/short_convolution.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"
#include "common/rows.cuh"

struct Params {
  const X_TYPE *x;
  const float *weight;
  const float *bias;
  float *state;
  OUT_TYPE *out;
  const u32 *metadata;
  u32 eights; // columns / 8
  u32 width;   // columns of x
};

constexpr u32 KEPT = TAPS - 1;

// s of token `at` of a sequence that begins at row `start`, counted from the oldest one in the state in `slot`.
__device__ __forceinline__ Eight input_at(const Params &params, u32 start, u32 at, u32 slot, u32 eight) {
  if (at >= KEPT) {
    const X_TYPE *row = params.x + static_cast<u64>(start + at - KEPT) * params.width + eight * 8;
    Eight input = load_eight_at(row, params.width % 8 == 0);
    if (SILU) return input;
    const Eight value = load_eight(row + 16 * params.eights);
    for (u32 i = 0; i < 8; i++) input.v[i] *= value.v[i];
    return input;
  }
  if (slot == NONE) return {};
  return load_eight(params.state + ((static_cast<u64>(slot) * KEPT + at) * params.eights + eight) * 8);
}

__device__ __forceinline__ void write_row(const Params &params, u32 start, u32 index, u32 slot, u32 eight) {
  const u64 row = start + index;
  Eight sum = {};
  for (u32 tap = 0; tap < TAPS; tap++) {
    const Eight input = input_at(params, start, index + tap, slot, eight);
    for (u32 i = 0; i < 8; i++) sum.v[i] += params.weight[(eight * 8 + i) * TAPS + tap] * input.v[i];
  }
  Eight gate = {};
  if (!SILU) gate = load_eight(params.x + row * params.width + (params.eights + eight) * 8);
  for (u32 i = 0; i < 8; i++) {
    if (params.bias) sum.v[i] += params.bias[eight * 8 + i];
    sum.v[i] = SILU ? silu(sum.v[i]) : sum.v[i] * gate.v[i];
  }
  store_eight(params.out + (row * params.eights + eight) * 8, sum);
}

KERNEL(short_convolution, 128, 1) {
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 row = at / params.eights, eight = at % params.eights;
  if (row >= params.metadata[META_TOKEN_COUNT]) return;
  const u32 sequence = sequence_of(params.metadata, row);
  const u32 record = sequence * SEQUENCE_WORDS;
  const u32 start = metadata_at(params.metadata, META_SEQUENCES, record + SEQUENCE_ROW_START);
  const u32 count = metadata_at(params.metadata, META_SEQUENCES, record + SEQUENCE_ROW_COUNT);
  const u32 source = metadata_at(params.metadata, META_STATES, sequence * STATE_WORDS + STATE_FROM);
  if (row - start >= KEPT) {
    write_row(params, start, row - start, source, eight);
    return;
  }
  if (row > start) return;
  for (u32 index = 0; index < min(KEPT, count); index++) write_row(params, start, index, source, eight);
  // Ascending: what a shorter batch moves down is read before it is overwritten.
  const u64 slot = metadata_at(params.metadata, META_STATES, sequence * STATE_WORDS + STATE_TO);
  for (u32 kept = 0; kept < KEPT; kept++) {
    const Eight input = input_at(params, start, count + kept, source, eight);
    store_eight(params.state + ((slot * KEPT + kept) * params.eights + eight) * 8, input);
  }
}
