// A recurrence over the tokens of a sequence: per head, with the state S, [key_dim][value_dim],
// S = keep · S; S += k (rate · (v − Sᵀk))ᵀ with -DDELTA=1, or S += k (rate · v)ᵀ; o = Sᵀq (+ skip · v).
//
// Delta rule: keep = exp(decay · softplus(a + bias)), rate = beta_scale · σ(b); k and q have unit length, times
// 1 / √key_dim for q; gates are b, then a. Otherwise rate = softplus(dt + bias), keep = exp(decay · rate).
// convolved [tokens][channels] and mixed [tokens][mixed_columns] (gates from a column on) of -DX_TYPE and -DMIXED_TYPE,
// out [tokens][heads][value_dim] of -DOUT_TYPE; state [slots][heads][key_dim][value_dim], decay, bias, skip f32.
// A block: 32 or 16 columns of the values of a head of a sequence; -DSLICES neighbouring threads (4 or 8) hold a column
// of S in registers, from the first token to the last, -DKEYS_EACH keys each.
// o = keep · Sᵀq + (q · k) · change, with the state before.
// Twin: backend/reference/state_scan.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

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
  u32 unused;
};

constexpr u32 THREADS = 128, COLUMNS = THREADS / SLICES;
constexpr u32 KEYS = SLICES * KEYS_EACH;
// Tokens whose keys and queries are loaded at a time: one per warp.
constexpr u32 TOKENS = THREADS / 32;

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

struct Factors {
  float keep, rate, key, query;  // the last two: scales
  float overlap;                 // q · k
};

// The factors of a token, from the sums over its keys.
__device__ __forceinline__ Factors factors_of(const Params &params, u32 row, u32 head, float k, float q, float qk) {
  const MIXED_TYPE *gates = params.mixed + static_cast<u64>(row) * params.mixed_columns + params.gates;
  const float gate = load_one(gates + head), decay = params.decay[head], bias = params.bias[head];
  if (!DELTA) {
    const float rate = softplus(gate + bias);
    return {expf(decay * rate), rate, 1.0f, 1.0f, qk};
  }
  const float keep = expf(decay * softplus(load_one(gates + params.heads + head) + bias));
  const float key = rsqrtf(k + 1e-6f), query = params.query_scale * rsqrtf(q + 1e-6f);
  return {keep, params.beta_scale / (1.0f + expf(-gate)), key, query, qk * key * query};
}

__device__ __forceinline__ float slices_sum(float value) {
  for (u32 lanes = 1; lanes < SLICES; lanes <<= 1) value += __shfl_xor_sync(ALL_LANES, value, lanes);
  return value;
}

KERNEL(state_scan, THREADS, 1) {
  __shared__ float keys[TOKENS * KEYS], queries[TOKENS * KEYS];
  __shared__ Factors factors[TOKENS];
  const u32 tiles = ceil_div(params.value_dim, COLUMNS);
  const u32 sequence = blockIdx.x / tiles / params.heads, head = blockIdx.x / tiles % params.heads;
  if (sequence >= params.metadata[META_SEQUENCE_COUNT]) return;
  const u32 start = metadata_at(params.metadata, META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_START);
  const u32 count = metadata_at(params.metadata, META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_COUNT);
  const u32 source = metadata_at(params.metadata, META_STATES, sequence * STATE_WORDS + STATE_FROM);
  const u32 slot = metadata_at(params.metadata, META_STATES, sequence * STATE_WORDS + STATE_TO);
  const u32 slice = threadIdx.x % SLICES, column = blockIdx.x % tiles * COLUMNS + threadIdx.x / SLICES;
  const bool is_live = column < params.value_dim;
  const u32 key_head = head / params.shared_by % params.key_heads * params.key_dim;

  float s[KEYS_EACH];
  const u64 from = (static_cast<u64>(source) * params.heads + head) * params.key_dim;
#pragma unroll
  for (u32 i = 0; i < KEYS_EACH; i++) {
    const u32 key = i * SLICES + slice;
    const bool is_there = is_live && source != NONE && key < params.key_dim;
    s[i] = is_there ? params.state[(from + key) * params.value_dim + column] : 0.0f;
  }
  for (u32 begin = 0; begin < count; begin += TOKENS) {
    const u32 tokens = min(TOKENS, count - begin);
    __syncthreads();
    for (u32 i = threadIdx.x; i < TOKENS * KEYS; i += THREADS) {
      const bool is_there = i / KEYS < tokens && i % KEYS < params.key_dim;
      const u64 row = start + begin + i / KEYS;
      const X_TYPE *at = params.convolved + row * params.channels + key_head + i % KEYS;
      keys[i] = is_there ? load_one(at + params.key_start) : 0.0f;
      queries[i] = is_there ? load_one(at + params.query_start) : 0.0f;
    }
    __syncthreads();
    const u32 own = threadIdx.x / 32;
    float kk = 0.0f, qq = 0.0f, qk = 0.0f;
    for (u32 key = own * KEYS + threadIdx.x % 32; key < (own + 1) * KEYS; key += 32) {
      kk += keys[key] * keys[key];
      qq += queries[key] * queries[key];
      qk += queries[key] * keys[key];
    }
    kk = warp_sum(kk), qq = warp_sum(qq), qk = warp_sum(qk);
    if (own < tokens && threadIdx.x % 32 == 0) factors[own] = factors_of(params, start + begin + own, head, kk, qq, qk);
    __syncthreads();
    for (u32 token = 0; token < tokens; token++) {
      const u64 row = start + begin + token;
      const Factors f = factors[token];
      const u32 value_at = params.value_start + head * params.value_dim + column;
      const float v = is_live ? load_one(params.convolved + row * params.channels + value_at) : 0.0f;
      const float *k = keys + token * KEYS + slice, *q = queries + token * KEYS + slice;
      float known = 0.0f, read = 0.0f;
#pragma unroll
      for (u32 i = 0; i < KEYS_EACH; i++) {
        if (DELTA) known += s[i] * k[i * SLICES];
        read += s[i] * q[i * SLICES];
      }
      if (DELTA) known = slices_sum(known);
      read = slices_sum(read);
      const float change = f.rate * (DELTA ? v - f.keep * f.key * known : v);
      if (is_live && slice == 0) {
        const float skipped = params.skip ? params.skip[head] * v : 0.0f;
        const float sum = f.keep * f.query * read + f.overlap * change + skipped;
        store_one(params.out + (row * params.heads + head) * params.value_dim + column, sum);
      }
      const float written = f.key * change;
#pragma unroll
      for (u32 i = 0; i < KEYS_EACH; i++) s[i] = f.keep * s[i] + written * k[i * SLICES];
    }
  }
  const u64 to = (static_cast<u64>(slot) * params.heads + head) * params.key_dim;
#pragma unroll
  for (u32 i = 0; i < KEYS_EACH; i++) {
    const u32 key = i * SLICES + slice;
    if (is_live && key < params.key_dim) params.state[(to + key) * params.value_dim + column] = s[i];
  }
}
