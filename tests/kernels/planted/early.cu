// Doubles each word of its input, which an earlier kernel may have written: out = 2 in. A prefetch reads nothing.
// READS: reads from the input which word to prefetch, before the earlier kernels are awaited. WRITES: clears the output
// before. COPIES: starts an asynchronous copy of the input before.

#include "common/prelude.cuh"

struct Params {
  const u32 *in;  // [threads]
  u32 *out;       // [threads]
};

__device__ __forceinline__ void prefetch(const Params &params) {
  const u32 *words = params.in + threadIdx.x / 4 * 4;
#ifdef READS
  words = params.in + params.in[threadIdx.x] / 4 * 4;
#endif
#ifdef WRITES
  params.out[threadIdx.x] = 0;
#endif
#ifdef COPIES
  DYNAMIC_SHARED(u32, shared);
  copy_async_4(shared + threadIdx.x, params.in + threadIdx.x);
#endif
  prefetch_l2(words, 16);
}

PREFETCHING_KERNEL(early, 64, 1) { params.out[threadIdx.x] = 2 * params.in[threadIdx.x]; }
