// Copies a buffer: the peak that streaming kernels are measured against. target[i] = source[i], 16 bytes an element.
//
// A block copies 1024 neighbouring elements a turn, four under way in each thread, and strides over the buffer.
// Grid: a few blocks for each multiprocessor. No twin: a yardstick of `folio bench`, not a step.
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
