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

#include "common/state_scan.cuh"

constexpr u32 THREADS = 128, COLUMNS = THREADS / SLICES;
constexpr u32 KEYS = SLICES * KEYS_EACH;
// Tokens whose keys and queries are loaded at a time: one per warp.
constexpr u32 TOKENS = THREADS / 32;

struct Factors {
  float keep, rate, key, query;  // the last two: scales
  float overlap;                 // q · k
};

// The factors of a token, from the sums over its keys.
__device__ __forceinline__ Factors factors_of(const Params &params, u32 row, u32 head, float k, float q, float qk) {
  const Gates gates = gates_of(params, load_gates(params, row, head));
  if (!DELTA) return {gates.keep, gates.rate, 1.0f, 1.0f, qk};
  const float key = unit_scale(k), query = params.query_scale * unit_scale(q);
  return {gates.keep, gates.rate, key, query, qk * key * query};
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
  const auto [start, count, source, slot] = load_sequence(params.metadata, sequence);
  if (count >= params.chunked_min) return;
  const u32 slice = threadIdx.x % SLICES, column = blockIdx.x % tiles * COLUMNS + threadIdx.x / SLICES;
  const bool is_live = column < params.value_dim;
  const u32 key_head = key_head_of(params, head);

  float s[KEYS_EACH];
  const u64 from = state_of(params, source, head);
#pragma unroll
  for (u32 i = 0; i < KEYS_EACH; i++) {
    const u32 key = i * SLICES + slice;
    const bool is_there = is_live && source != NONE && key < params.key_dim;
    s[i] = is_there ? params.state[from + key * params.value_dim + column] : 0.0f;
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
  const u64 to = state_of(params, slot, head);
#pragma unroll
  for (u32 i = 0; i < KEYS_EACH; i++) {
    const u32 key = i * SLICES + slice;
    if (is_live && key < params.key_dim) params.state[to + key * params.value_dim + column] = s[i];
  }
}
