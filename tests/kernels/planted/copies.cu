// Two asynchronous copies into the same shared memory, each read by other threads. out = both words of a neighbor.
// UNAWAITED: reads before the first copy is waited for. OVERWRITTEN: starts the second copy while others may still read
// the first.

#include "common/prelude.cuh"

struct Params {
  const u32 *in;  // [2][4 · threads]
  u32 *out;       // [2 · threads]
};

KERNEL(copies, 64, 1) {
  DYNAMIC_SHARED(u32, shared);
  const u32 thread = threadIdx.x, neighbor = thread ^ 33;
  copy_async_16(shared + 4 * thread, params.in + 4 * thread);
  copy_async_commit();
#ifndef UNAWAITED
  copy_async_wait<0>();
#endif
  __syncthreads();
  params.out[2 * thread] = shared[4 * neighbor];
#ifdef UNAWAITED
  copy_async_wait<0>();
#endif
#ifndef OVERWRITTEN
  __syncthreads();
#endif
  copy_async_16(shared + 4 * thread, params.in + 4 * (blockDim.x + thread));
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  params.out[2 * thread + 1] = shared[4 * neighbor];
}
