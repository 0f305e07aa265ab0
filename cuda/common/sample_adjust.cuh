// Bias, penalties and mask: writes a row's adjusted logits to its scratch row, with the twin's order of operations and
// rounding.

#pragma once
#include "common/sample_row.cuh"

__device__ __forceinline__ void penalise(const u32 *row, u32 *adjusted, u32 id, u32 generated) {
  const float repetition = row_float(row, SAMPLE_REPETITION_PENALTY);
  const float y = __uint_as_float(adjusted[id]);
  float result = y > 0.0f ? y / repetition : __fmul_rn(y, repetition);
  if (generated > 0) {
    result = __fsub_rn(result, __fmul_rn(static_cast<float>(generated), row_float(row, SAMPLE_FREQUENCY_PENALTY)));
    result = __fsub_rn(result, row_float(row, SAMPLE_PRESENCE_PENALTY));
  }
  adjusted[id] = __float_as_uint(result);
}

__device__ __forceinline__ void add_bias(const Params &params, const u32 *row, u32 *adjusted) {
  const u32 *entries = params.metadata + params.metadata[META_BIAS] + BIAS_WORDS * row[SAMPLE_BIAS_START];
  for (u32 i = threadIdx.x; i < row[SAMPLE_BIAS_LEN]; i += THREADS) {
    const u32 *entry = entries + BIAS_WORDS * i;
    const u32 id = entry[BIAS_TOKEN_ID];
    if (id < params.vocab)
      adjusted[id] = __float_as_uint(__fadd_rn(__uint_as_float(adjusted[id]), __uint_as_float(entry[BIAS_VALUE])));
  }
}

// Ends with a barrier.
__device__ __forceinline__ void penalise_history(const Params &params, Shared &shared, const u32 *row, u32 *adjusted) {
  const u32 slot = row[SAMPLE_PENDING_SLOT];
  const u32 pending = slot != NONE ? params.feed[slot] : NONE;
  const u32 *entries = params.metadata + params.metadata[META_HISTORY] + HISTORY_WORDS * row[SAMPLE_HISTORY_START];
  if (threadIdx.x == 0) shared.flag = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < row[SAMPLE_HISTORY_LEN]; i += THREADS) {
    const u32 *entry = entries + HISTORY_WORDS * i;
    const u32 id = entry[HISTORY_TOKEN_ID];
    const bool is_pending = id == pending;
    if (is_pending) shared.flag = 1;
    if (id < params.vocab) penalise(row, adjusted, id, entry[HISTORY_GENERATED] + (is_pending ? 1 : 0));
  }
  __syncthreads();
  if (threadIdx.x == 0 && shared.flag == 0 && pending < params.vocab) penalise(row, adjusted, pending, 1);
  __syncthreads();
}

// Fills the scratch row; `own` surveys this thread's part of it. Returns whether this thread has seen a bad logit.
__device__ __forceinline__ bool adjust(const Params &params, Shared &shared, const u32 *row, const Source &source,
                                       u32 *adjusted, Survey &own) {
  const u32 fours = ceil_div(params.vocab, 4);
  Survey raw;
  uint4 *vectors = reinterpret_cast<uint4 *>(adjusted);
  each_four<THREADS, 4>(source, 0, fours, [&](uint4 v, u32 four) {
    raw.take(v, four);
    if (four < fours) vectors[four] = v;
  });
  __syncthreads();
  add_bias(params, row, adjusted);
  __syncthreads();
  penalise_history(params, shared, row, adjusted);
  const u32 mask = row[SAMPLE_MASK_START];
  const u32 *words = params.metadata + params.metadata[META_MASKS] + (mask == NONE ? 0 : mask);
  // Masked logits may be bad too, so they are checked before the mask is applied.
  Survey unmasked;
  each_four<THREADS, 2>(Source{adjusted, params.vocab, true}, 0, fours, [&](uint4 v, u32 four) {
    unmasked.take(v, four);
    if (mask != NONE && four < fours) {
      const u32 allowed = (words[four >> 3] >> ((four & 7) * 4)) & 15u;
      if (!(allowed & 1)) v.x = MINUS_INFINITY;
      if (!(allowed & 2)) v.y = MINUS_INFINITY;
      if (!(allowed & 4)) v.z = MINUS_INFINITY;
      if (!(allowed & 8)) v.w = MINUS_INFINITY;
      if (allowed != 15) vectors[four] = v;
    }
    own.take(v, four);
  });
  __syncthreads();
  return raw.is_bad() || unmasked.is_bad();
}
