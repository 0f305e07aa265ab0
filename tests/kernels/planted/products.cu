// Two products of a warpgroup: scores (64 × 128) = a (64 × 64) · bᵀ, then out (64 × 128) = scores · values (128 × 128),
// with scores rounded to f16.
// STRIDE: a wrong distance between the panels of the values. UNAWAITED: reads the scores before the wait for them.
// UNFENCED: no fence between the scores' use and the next product. OVERWRITTEN: writes to b before the wait for its
// product. REGISTERS: writes to the scores in registers before the wait for their product. UNPROXIED: no proxy fence
// between the copies and the products.

#include "common/wgmma.cuh"

struct Params {
  const u8 *a;       // [64][64]
  const u8 *b;       // [128][64]
  const u8 *values;  // [128][128]
  float *out;        // [64][128]
};

constexpr u32 THREADS = 128;

// Copies rows of `pieces` 16-byte pieces to panels.
__device__ __forceinline__ void copy_rows(u8 *to, const u8 *from, u32 rows, u32 pieces) {
  for (u32 at = threadIdx.x; at < rows * pieces; at += THREADS) {
    const u32 row = at / pieces, piece = at % pieces;
    copy_async_16(to + piece / 8 * rows * PANEL_ROW + panel_offset(row, piece % 8), from + at * 16);
  }
}

KERNEL(products, THREADS, 1) {
  DYNAMIC_SHARED(u8, shared);
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u8 *a = shared + (PANEL_ALIGN - shared_address(shared) % PANEL_ALIGN) % PANEL_ALIGN, *b = a + 64 * PANEL_ROW;
  u8 *values = b + 128 * PANEL_ROW;
  copy_rows(a, params.a, 64, 8);
  copy_rows(b, params.b, 128, 8);
  copy_rows(values, params.values, 128, 16);
  copy_async_commit();
  copy_async_wait<0>();
#ifndef UNPROXIED
  proxy_fence();
#endif
  __syncthreads();
  float4 scores[16], out[16];
  for (u32 i = 0; i < 16; i++) out[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  products_fence();
  for (u32 step = 0; step < 4; step++)
    multiply_rows(scores, moved(describe_panels(a, 0), step * 32), moved(describe_panels(b, 0), step * 32), step > 0);
  products_commit();
#ifdef OVERWRITTEN
  *reinterpret_cast<uint4 *>(b + threadIdx.x * 16) = make_uint4(threadIdx.x, 0x3c00, 0, warp);
#endif
  uint4 weights[8];
#ifndef UNAWAITED
  products_wait<0>();
  products_hold(scores);
#endif
  for (u32 i = 0; i < 8; i++) {
    const float4 low = scores[2 * i], high = scores[2 * i + 1];
    weights[i] = make_uint4(pack_f16(low.x, low.y), pack_f16(low.z, low.w), pack_f16(high.x, high.y),
                            pack_f16(high.z, high.w));
  }
  products_hold(weights);
#ifdef UNAWAITED
  products_wait<0>();
#endif
#ifndef UNFENCED
  products_fence();
#endif
#ifdef STRIDE
  const u64 panels = describe_panels(values, 64 * PANEL_ROW);
#else
  const u64 panels = describe_panels(values, 128 * PANEL_ROW);
#endif
  for (u32 i = 0; i < 8; i++) multiply_columns(out, weights[i], moved(panels, i * 16 * PANEL_ROW));
  products_commit();
#ifdef REGISTERS
  weights[7] = make_uint4(0, 0, 0, 0);
#endif
  products_wait<0>();
  products_hold(out);
  for (u32 i = 0; i < 16; i++) {
    float *to = params.out + (warp * 16 + lane / 4) * 128 + i * 8 + lane % 4 * 2;
    to[0] = out[i].x;
    to[1] = out[i].y;
    to[8 * 128] = out[i].z;
    to[8 * 128 + 1] = out[i].w;
  }
}
