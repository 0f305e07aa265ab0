// Accesses to shared memory by threads of a block. Without a define, all are ordered.
// UNWRITTEN: reads another warp's word without a barrier after its write. OVERWRITTEN: writes without a barrier what
// another warp reads. LANES: reads another lane's word without __syncwarp; an exchange between lanes does not help.
// TWICE: all threads write one word. MIXED: adds to a word that others read. HALVES: reads both halves of a word of
// which another thread writes one.

#include "common/prelude.cuh"

struct Params {
  u32 *out;  // [threads]
};

KERNEL(shared, 64, 1) {
  __shared__ u32 words[64], ours, count;
  __shared__ u16 halves[128];
  const u32 thread = threadIdx.x;
  if (thread == 0) count = 0;
#ifdef TWICE
  ours = 1;
#else
  if (thread == 0) ours = 1;
#endif
  words[thread] = thread;
  // Different bytes of one word are different places.
  halves[2 * thread + 1] = static_cast<u16>(thread);
  halves[(2 * thread + 2) % 128] = static_cast<u16>(thread);
#ifndef UNWRITTEN
  __syncthreads();
#endif
  u32 sum = ours + words[thread ^ 33];
#ifndef OVERWRITTEN
  __syncthreads();
#endif
  words[thread] = sum;
  sum += __shfl_xor_sync(ALL_LANES, sum, 1);
#ifndef LANES
  __syncwarp();
#endif
  sum += words[thread ^ 1];
  atomicAdd(&count, 1u);
#ifndef MIXED
  __syncthreads();
#endif
  sum += count;
#ifdef HALVES
  halves[2 * (thread ^ 1)] = 0;
#endif
  sum += *reinterpret_cast<const u32 *>(halves + 2 * thread);
  params.out[thread] = sum;
}
