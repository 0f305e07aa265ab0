// Shared by `sample` and `sample_logprobs`: params, shared memory, sums, and a list of a row's largest logits.

#pragma once
#include "common/sample.cuh"

struct Params {
  const u32 *metadata;
  const u32 *logits;
  u32 *scratch;  // rows of adjusted logits, each a multiple of four words
  u32 *feed;
  u32 *results;
  u32 row_first;  // index of the first block's sample row
  u32 vocab;
};

constexpr u32 THREADS = 1024;
constexpr u32 WARPS = THREADS / 32;
// Maximum candidates kept in shared memory.
constexpr u32 LIST = 3072;
constexpr u32 BIN_BITS = 11;
constexpr u32 BINS = 1u << BIN_BITS;

struct Shared {
  u64 warps[WARPS];
  u64 left;  // rest of a threshold's target within the bin found
  u32 found;
  u32 count;  // candidates seen; the list holds the first LIST
  u32 flag;
  float sums[WARPS];
  // Sums of weights up to 2²⁴, in two parts of 12 bits, so that 2¹⁹ weights cannot overflow a word.
  u32 bins_low[BINS];
  u32 bins_high[BINS];
  u32 keys[LIST];
  u32 ids[LIST];
};

// Sums floats, in another order than the twin.
__device__ __forceinline__ float block_sum(float value, float *sums) {
  value = warp_sum(value);
  const u32 lane = threadIdx.x % 32;
  if (lane == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_sum(sums[lane]);
  __syncthreads();
  return value;
}
__device__ __forceinline__ u64 block_sum(u64 value, u64 *warps) {
  value = warp_sum(value);
  const u32 lane = threadIdx.x % 32;
  if (lane == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_sum(warps[lane]);
  __syncthreads();
  return value;
}

// --- the list of candidates ---

// Call before the first keep_candidate; ends with a barrier.
__device__ __forceinline__ void clear_list(Shared &shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
}
__device__ __forceinline__ void keep_candidate(Shared &shared, u32 key, u32 id) {
  const u32 at = atomicAdd(&shared.count, 1u);
  if (at < LIST) {
    shared.keys[at] = key;
    shared.ids[at] = id;
  }
}
