// Tensor-core products from registers alone: the peak to compare matrix products by mma.sync with.
//
// A warp keeps 4 × 4 tiles of sums (16 × 8 each) and adds two products to each per iteration: 32 · 4096 FLOP per warp
// and iteration. out [block][thread] receives the sum of each thread's results, so that the compiler removes nothing.
// Grid: two blocks of 256 threads per multiprocessor. No twin: a benchmark of `folio bench`, not a step.
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/prelude.cuh"

struct Params {
  float *out;
  u32 turns;
  u32 unused;
};

constexpr u32 LEFT = 4, RIGHT = 4;

KERNEL(bench_mma, 256, 2) {
  uint4 a[LEFT];
  uint2 b[RIGHT];
  float4 sums[LEFT][RIGHT];
  // Ones with varying signs, so that sums stay small and the compiler knows no operand.
  const u32 seed = (threadIdx.x + 1) * 0x9e3779b9u ^ params.turns;
#pragma unroll
  for (u32 i = 0; i < LEFT; i++) {
    const u32 word = 0x3f803f80u ^ ((seed >> i) & 0x80008000u);
    a[i] = make_uint4(word, word ^ 0x8000u, word ^ 0x80000000u, word);
#pragma unroll
    for (u32 j = 0; j < RIGHT; j++) sums[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (u32 j = 0; j < RIGHT; j++) b[j] = make_uint2(0x3f803f80u ^ ((seed << j) & 0x80008000u), 0x3f80bf80u);
#pragma unroll 1
  for (u32 turn = 0; turn < params.turns; turn++) {
#pragma unroll
    for (u32 half = 0; half < 2; half++)
#pragma unroll
      for (u32 i = 0; i < LEFT; i++)
#pragma unroll
        for (u32 j = 0; j < RIGHT; j++) multiply_bf16(sums[i][j], a[i], b[j]);
    a[0].x ^= 0x80008000u;
  }
  float total = 0.0f;
#pragma unroll
  for (u32 i = 0; i < LEFT; i++)
#pragma unroll
    for (u32 j = 0; j < RIGHT; j++) total += (sums[i][j].x + sums[i][j].y) + (sums[i][j].z + sums[i][j].w);
  params.out[static_cast<u64>(blockIdx.x) * 256 + threadIdx.x] = total;
}
