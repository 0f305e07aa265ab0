// Sums over a block.

#pragma once
#include "common/prelude.cuh"

// The sum over all threads, returned to every thread. A call starts with a barrier, so calls may follow each other.
template <u32 THREADS> __device__ __forceinline__ float block_sum(float value) {
  __shared__ float sums[THREADS / 32];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (u32 warp = 0; warp < THREADS / 32; warp++) total += sums[warp];
  return total;
}
