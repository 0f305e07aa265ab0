// Included by every kernel: types, conversions, warp reductions, asynchronous copies and tensor-core products. Includes
// no CUDA header, so that NVRTC needs none. emulator/emulator.h replaces the PTX instructions with C++.

#pragma once

#ifdef FOLIO_EMULATOR
#include "emulator/emulator.h"
#else

// In a graph, a kernel may begin while the one before it still runs (src/backend/cuda/overlap.rs). This waits until all
// kernels before it have ended and what they wrote is visible.
__device__ __forceinline__ void await_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel begin once all blocks of this one have called it, or have ended.
__device__ __forceinline__ void release_successors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Starts copying constant data to the L2 cache. Address and size are multiples of 16.
__device__ __forceinline__ void prefetch_l2(const void *global, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)), "r"(bytes));
#endif
}

// One kernel per file; its arguments are one struct, passed by value. Every thread of every kernel waits before it does
// anything else: a kernel that did not could end before its predecessor, and its own successor would not wait for that
// one. Successors are released after the wait, so at most one is on the device, waiting. PREFETCHING_KERNEL calls the
// file's prefetch(params) before the wait, which may access no memory but by prefetch_l2.
#define KERNEL(name, threads, blocks) KERNEL_AFTER(, name, threads, blocks)
#define PREFETCHING_KERNEL(name, threads, blocks) KERNEL_AFTER(prefetch(params), name, threads, blocks)
#define KERNEL_AFTER(before, name, threads, blocks)                                                           \
  __device__ __forceinline__ void name##_in_order(const Params &params);                                      \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Params params) { \
    before;                                                                                                   \
    await_predecessors();                                                                                     \
    release_successors();                                                                                     \
    name##_in_order(params);                                                                                  \
  }                                                                                                           \
  __device__ __forceinline__ void name##_in_order(const Params &params)
#define DYNAMIC_SHARED(type, name)                                      \
  extern __shared__ __align__(16) unsigned char folio_dynamic_shared[]; \
  type *name = reinterpret_cast<type *>(folio_dynamic_shared)

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float f16_low(unsigned pair) {
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(pair));
  return value;
}
__device__ __forceinline__ float f16_high(unsigned pair) {
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(value) : "r"(pair));
  return value;
}
// Multiplies both numbers of `a` and `b`, adds those of `c`, and rounds once.
__device__ __forceinline__ unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {
  unsigned pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}
// Adds both numbers of `a` and `b` as f16.
__device__ __forceinline__ unsigned add_f16x2(unsigned a, unsigned b) {
  unsigned pair;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
// Accurate to two units in the last place; subnormal results become 0.
__device__ __forceinline__ float exp2_near(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
__device__ __forceinline__ float reciprocal_near(float value) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
  return inverse;
}
// Loads what other blocks of this launch have written, bypassing the L1 cache.
__device__ __forceinline__ float4 load_fresh(const float4 *from) {
  float4 r;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
               : "l"(from)
               : "memory");
  return r;
}
__device__ __forceinline__ float2 load_fresh(const float2 *from) {
  float2 r;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "l"(from) : "memory");
  return r;
}

__device__ __forceinline__ unsigned shared_address(const void *shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
// Copies 16 bytes, bypassing the L1 cache. Both addresses are aligned to 16.
__device__ __forceinline__ void copy_async_16(void *shared, const void *global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_4(void *shared, const void *global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// Copies 16 bytes, or writes zeros without reading the source.
__device__ __forceinline__ void copy_async_16_or_zero(void *shared, const void *global, bool is_there) {
  const unsigned bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
// Writes zeros, in order with this thread's copies.
__device__ __forceinline__ void copy_async_zero_16(void *shared) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 0;" ::"r"(shared_address(shared)), "l"(shared) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last LEFT groups of this thread have arrived; other threads see them after a barrier.
template <int LEFT> __device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Loads four matrices of 8 × 8 16-bit elements: lane 8m + i passes the address of row i of matrix m (16 bytes in shared
// memory). Lane l receives from each matrix the pair at row l / 4, columns from 2 (l % 4) on; transposed: at column l /
// 4, rows from 2 (l % 4) on.
__device__ __forceinline__ uint4 load_matrices(const void *row) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(shared_address(row))
               : "memory");
  return r;
}
__device__ __forceinline__ uint4 load_matrices_transposed(const void *row) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(shared_address(row))
               : "memory");
  return r;
}

// sum (16 × 8) += a (16 × 16) · b (16 × 8), products and sums in f32. In lane l, with g = l / 4 and t = 2 (l % 4):
// a.x = a[g][t, t + 1], a.y = a[g + 8][t, …], a.z = a[g][t + 8, …], a.w = a[g + 8][t + 8, …];
// b.x = b[t, t + 1][g], b.y = b[t + 8, t + 9][g]; sum.xy = sum[g][t, t + 1], sum.zw = sum[g + 8][t, t + 1].
__device__ __forceinline__ void multiply_bf16(float4 &sum, uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void multiply_f16(float4 &sum, uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}
#endif

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;

// Generated from the table in src/backend/metadata.rs.
#include "common/metadata_constants.cuh"

constexpr u32 ALL_LANES = 0xffffffffu;
// Used instead of −∞, which fast-math arithmetic may not support.
constexpr float LOWEST = -3.0e38f;

__device__ __forceinline__ u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
__device__ __forceinline__ float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
// The clamping for all writes of f16: to the finite range. NaN stays NaN.
__device__ __forceinline__ float clamp_f16(float value) {
  return value != value ? value : fminf(fmaxf(value, -65504.0f), 65504.0f);
}

__device__ __forceinline__ float warp_sum(float value) {
  for (u32 lanes = 16; lanes > 0; lanes >>= 1) value += __shfl_xor_sync(ALL_LANES, value, lanes);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
  for (u32 lanes = 16; lanes > 0; lanes >>= 1) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, lanes));
  return value;
}
__device__ __forceinline__ u32 warp_max(u32 value) {
  for (u32 lanes = 16; lanes > 0; lanes >>= 1) value = max(value, __shfl_xor_sync(ALL_LANES, value, lanes));
  return value;
}

// --- row buffers: 32-bit or bfloat16 elements, eight at a time ---

struct Eight {
  float v[8];
};

template <typename T> __device__ __forceinline__ Eight load_eight(const T *from);
template <> __device__ __forceinline__ Eight load_eight<float>(const float *from) {
  const float4 *vectors = reinterpret_cast<const float4 *>(from);
  const float4 a = vectors[0], b = vectors[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ Eight widen_bf16(uint4 w) {
  return {{bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y), bf16_low(w.z), bf16_high(w.z), bf16_low(w.w),
           bf16_high(w.w)}};
}
__device__ __forceinline__ Eight widen_f16(uint4 w) {
  return {{f16_low(w.x), f16_high(w.x), f16_low(w.y), f16_high(w.y), f16_low(w.z), f16_high(w.z), f16_low(w.w),
           f16_high(w.w)}};
}
// bfloat16 elements.
template <> __device__ __forceinline__ Eight load_eight<u16>(const u16 *from) {
  return widen_bf16(*reinterpret_cast<const uint4 *>(from));
}

template <typename T> __device__ __forceinline__ void store_eight(T *to, const Eight &e);
template <> __device__ __forceinline__ void store_eight<float>(float *to, const Eight &e) {
  float4 *vectors = reinterpret_cast<float4 *>(to);
  vectors[0] = make_float4(e.v[0], e.v[1], e.v[2], e.v[3]);
  vectors[1] = make_float4(e.v[4], e.v[5], e.v[6], e.v[7]);
}
__device__ __forceinline__ uint4 narrow_bf16(const Eight &e) {
  return make_uint4(pack_bf16(e.v[0], e.v[1]), pack_bf16(e.v[2], e.v[3]), pack_bf16(e.v[4], e.v[5]),
                    pack_bf16(e.v[6], e.v[7]));
}
template <> __device__ __forceinline__ void store_eight<u16>(u16 *to, const Eight &e) {
  *reinterpret_cast<uint4 *>(to) = narrow_bf16(e);
}

__device__ __forceinline__ float load_one(const float *from) { return *from; }
__device__ __forceinline__ float load_one(const u16 *from) { return __uint_as_float(static_cast<u32>(*from) << 16); }
__device__ __forceinline__ void store_one(float *to, float value) { *to = value; }
__device__ __forceinline__ void store_one(u16 *to, float value) { *to = static_cast<u16>(pack_bf16(value, 0.0f)); }
