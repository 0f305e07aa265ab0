// The last block to finish adds up what all have written: out = Σ in. The counter is zero before and after.
// EARLY: counts a block before it has written. UNRELEASED: no fence between a block's write and its count. UNACQUIRED:
// no fence between the last count and the reads.

#include "common/prelude.cuh"

struct Params {
  const u32 *in;  // [blocks]
  u32 *scratch;   // [blocks][threads]
  u32 *counter;
  u32 *out;
};

KERNEL(blocks, 64, 1) {
  __shared__ u32 ticket;
#ifdef EARLY
  if (threadIdx.x == 0) ticket = atomicAdd(params.counter, 1u);
#endif
  params.scratch[blockIdx.x * blockDim.x + threadIdx.x] = params.in[blockIdx.x];
#ifndef UNRELEASED
  __threadfence();
#endif
  __syncthreads();
#ifndef EARLY
  if (threadIdx.x == 0) ticket = atomicAdd(params.counter, 1u);
#endif
  __syncthreads();
  if (ticket + 1 < gridDim.x) return;
#ifndef UNACQUIRED
  __threadfence();
#endif
  u32 sum = 0;
  for (u32 block = 0; block < gridDim.x; block++) sum += params.scratch[block * blockDim.x + (threadIdx.x ^ 33)];
  if (threadIdx.x == 0) {
    *params.counter = 0;
    *params.out = sum;
  }
}
