// Reads a buffer: the peak to compare kernels that read weights or keys with. 16 bytes per element.
//
// A block reads 1024 consecutive elements per iteration, four in flight per thread, and strides over the buffer. out
// [block][thread] receives a mix of each thread's words, so that the compiler removes nothing.
// Grid: a few blocks per multiprocessor. No twin: a benchmark of `folio bench`, not a step.
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/prelude.cuh"

struct Params {
  const uint4 *source;
  u32 *out;
  u64 elements;
};

KERNEL(bench_read, 256, 4) {
  const u64 stride = static_cast<u64>(gridDim.x) * 1024;
  u32 mixed = 0;
  for (u64 i = static_cast<u64>(blockIdx.x) * 1024 + threadIdx.x; i < params.elements; i += stride) {
    uint4 v[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      v[j] = make_uint4(0, 0, 0, 0);
      if (i + j * 256 < params.elements) v[j] = params.source[i + j * 256];
    }
#pragma unroll
    for (u32 j = 0; j < 4; j++) mixed ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  params.out[blockIdx.x * 256 + threadIdx.x] = mixed;
}
