// Copies a buffer: the peak to compare streaming kernels with. target[i] = source[i], 16 bytes per element.
//
// A block copies 1024 consecutive elements per iteration, four in flight per thread, and strides over the buffer.
// Grid: a few blocks per multiprocessor. No twin: a benchmark of `folio bench`, not a step.
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/prelude.cuh"

struct Params {
  const uint4 *source;
  uint4 *target;
  u64 elements;
};

KERNEL(bench_copy, 256, 4) {
  const u64 stride = static_cast<u64>(gridDim.x) * 1024;
  for (u64 i = static_cast<u64>(blockIdx.x) * 1024 + threadIdx.x; i < params.elements; i += stride) {
    uint4 v[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (i + j * 256 < params.elements) v[j] = params.source[i + j * 256];
#pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (i + j * 256 < params.elements) params.target[i + j * 256] = v[j];
  }
}
