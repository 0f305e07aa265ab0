// What the recurrences over the tokens of a sequence share: params, the rows and state slots of a sequence, and the
// gates of a token. Including kernels are compiled with DELTA = 1 (gated delta rule) or 0 (Mamba-2), and the types
// X_TYPE, MIXED_TYPE and OUT_TYPE of row buffers.

#pragma once
#include "common/metadata.cuh"

struct Params {
  const X_TYPE *convolved;
  const MIXED_TYPE *mixed;
  const float *decay;
  const float *bias;
  const float *skip;  // or null
  float *state;
  OUT_TYPE *out;
  const u32 *metadata;
  u32 heads;
  u32 shared_by;  // head h uses key head h / shared_by % key_heads
  u32 key_heads;
  u32 key_dim;
  u32 value_dim;
  u32 channels;
  u32 query_start;  // channels, as are the other two
  u32 key_start;
  u32 value_start;
  u32 mixed_columns;
  u32 gates;
  float beta_scale;
  float query_scale;
  u32 chunked_min;  // sequences with fewer rows go to state_scan, the others to state_scan_chunks
};

// The rows of a sequence, and the slots of its state.
struct Sequence {
  u32 start, count, source, slot;
};

__device__ __forceinline__ Sequence load_sequence(const u32 *metadata, u32 sequence) {
  const u32 rows = sequence * SEQUENCE_WORDS, states = sequence * STATE_WORDS;
  return {metadata_at(metadata, META_SEQUENCES, rows + SEQUENCE_ROW_START),
          metadata_at(metadata, META_SEQUENCES, rows + SEQUENCE_ROW_COUNT),
          metadata_at(metadata, META_STATES, states + STATE_FROM),
          metadata_at(metadata, META_STATES, states + STATE_TO)};
}

// The channel offset of the key head of a head.
__device__ __forceinline__ u32 key_head_of(const Params &params, u32 head) {
  return head / params.shared_by % params.key_heads * params.key_dim;
}

// Offset of a head's state.
__device__ __forceinline__ u64 state_of(const Params &params, u32 slot, u32 head) {
  return (static_cast<u64>(slot) * params.heads + head) * params.key_dim * params.value_dim;
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// What the gates of a token are computed from: dt, or b and a; and the head's decay and bias.
struct GateInputs {
  float gate, decay_gate, decay, bias;
};

__device__ __forceinline__ GateInputs load_gates(const Params &params, u32 row, u32 head) {
  const MIXED_TYPE *gates = params.mixed + static_cast<u64>(row) * params.mixed_columns + params.gates + head;
  return {load_one(gates), DELTA ? load_one(gates + params.heads) : 0.0f, params.decay[head], params.bias[head]};
}

struct Gates {
  float keep, rate;
};

__device__ __forceinline__ Gates gates_of(const Params &params, const GateInputs &from) {
  if (!DELTA) {
    const float rate = softplus(from.gate + from.bias);
    return {expf(from.decay * rate), rate};
  }
  return {expf(from.decay * softplus(from.decay_gate + from.bias)), params.beta_scale / (1.0f + expf(-from.gate))};
}

// The scale that gives a vector with this sum of squares unit length.
__device__ __forceinline__ float unit_scale(float squares) { return rsqrtf(squares + 1e-6f); }
