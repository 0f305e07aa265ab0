// Runs kernels on the host, for tests without a GPU: CUDA's threads as fibers, its barriers and warp operations as
// synchronization points. Compiled with the kernels by any C++20 compiler on Linux or macOS; common/prelude.cuh
// includes it.
//
// Errors it detects:
// - Between two synchronization points the threads of a block run one after another, in a new random order each time:
//   code that lacks a barrier reads data that is not written yet.
// - An asynchronous copy happens at a random moment between its issue and the wait for it. Shared memory starts as NaN.
// - Blocks run in random order. If the kernel has atomic operations or fences, several take turns, and change there.
// - A warp operation synchronizes exactly the lanes in its mask; a thread that waits forever is reported with the place
//   where it waits.
// - Device memory ends at a guard page (src/backend/cuda/emulator.rs).
// - With -DFOLIO_RACES, races: see races.cpp; and accesses to device memory by a thread that has not yet awaited the
//   kernels before, which may still run.
//
// It does not detect the behavior of a real memory system, assembler or tensor core.

#pragma once
// Only C headers: this is compiled again for every variant of every kernel.
#include <math.h>
#include <stdint.h>
#include <string.h>

struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <typename T> inline T max(T a, T b) { return a < b ? b : a; }
template <typename T> inline T min(T a, T b) { return b < a ? b : a; }

#include "emulator/scheduler.h"

namespace emulator {

inline float float_of(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline unsigned bits_of(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }

inline float bf16_to_float(unsigned half) { return float_of(half << 16); }

inline unsigned bf16_from_float(float value) {
  unsigned bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float f16_to_float(unsigned half) {
  unsigned sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    float value = ldexpf((float)mantissa, -24);
    return sign ? -value : value;
  }
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds to nearest, ties to even; beyond the range, infinity.
inline unsigned f16_from_float(float value) {
  unsigned bits = bits_of(value), sign = bits >> 16 & 0x8000;
  float magnitude = fabsf(value);
  if (magnitude != magnitude) return 0x7fff;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 6.103515625e-05f) return sign | (unsigned)nearbyintf(ldexpf(magnitude, 24));
  unsigned rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return sign | (rounded - (112u << 23)) >> 13;
}

}  // namespace emulator

#define threadIdx (emulator::self->index)
#define blockIdx (emulator::block.index)
#define blockDim (emulator::block.size)
#define gridDim (emulator::block.grid)
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __constant__ static const
#define __restrict__ __restrict
#define __syncthreads() emulator::wait(emulator::State::AtBlock, __func__)
#define __syncwarp() (void)emulator::meet(~0u, emulator::align_lanes, __func__)
#define __threadfence() emulator::fence<void>(__func__)
// The library's entry points.
#define EXPORTED extern "C" __attribute__((visibility("default")))

#define KERNEL(name, threads, blocks) KERNEL_AFTER((void)params, name, threads, blocks)
#define PREFETCHING_KERNEL(name, threads, blocks) KERNEL_AFTER(prefetch(params), name, threads, blocks)
#define KERNEL_AFTER(before, name, threads, blocks)                                                                \
  static void name(const Params &params);                                                                          \
  static void name##_from_start(const void *at) {                                                                  \
    const Params &params = *(const Params *)at;                                                                    \
    before;                                                                                                        \
    emulator::await_predecessors();                                                                                \
    name(params);                                                                                                  \
  }                                                                                                                \
  EXPORTED const char *folio_launch(const void *params, const unsigned *grid, const unsigned *size,                \
                                    unsigned shared_bytes, unsigned seed) {                                        \
    if (size[0] * size[1] * size[2] > threads) emulator::fail("more threads than the kernel is built for", #name); \
    emulator::launch(name##_from_start, params, sizeof(Params), grid, size, shared_bytes, seed);                   \
    return emulator::races::found();                                                                               \
  }                                                                                                                \
  EXPORTED unsigned folio_params_bytes() { return sizeof(Params); }                                                \
  static void name(const Params &params)
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulator::block.shared

unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned lanes);
unsigned __shfl_sync(unsigned mask, unsigned value, unsigned lane);
unsigned __ballot_sync(unsigned mask, bool predicate);
unsigned __reduce_add_sync(unsigned mask, unsigned value);
inline float __shfl_xor_sync(unsigned mask, float value, unsigned lanes) {
  return emulator::float_of(__shfl_xor_sync(mask, emulator::bits_of(value), lanes));
}
inline float __shfl_sync(unsigned mask, float value, unsigned lane) {
  return emulator::float_of(__shfl_sync(mask, emulator::bits_of(value), lane));
}
inline bool __any_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }
inline bool __all_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <typename T> inline T atomicAdd(T *at, T value) {
  return emulator::atomic(at, [=](T old) { return old + value; });
}
template <typename T> inline T atomicMax(T *at, T value) {
  return emulator::atomic(at, [=](T old) { return ::max(old, value); });
}
template <typename T> inline T atomicMin(T *at, T value) {
  return emulator::atomic(at, [=](T old) { return ::min(old, value); });
}
template <typename T> inline T atomicOr(T *at, T value) {
  return emulator::atomic(at, [=](T old) { return old | value; });
}
template <typename T> inline T atomicExch(T *at, T value) {
  return emulator::atomic(at, [=](T) { return value; });
}

inline float __uint_as_float(unsigned bits) { return emulator::float_of(bits); }
inline unsigned __float_as_uint(float value) { return emulator::bits_of(value); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned __popc(unsigned bits) { return (unsigned)__builtin_popcount(bits); }
inline unsigned __ffs(unsigned bits) { return (unsigned)__builtin_ffs((int)bits); }
inline unsigned __clz(unsigned bits) { return bits ? (unsigned)__builtin_clz(bits) : 32; }
// Rounds every operation separately, even if the compiler would fuse them.
inline float __fadd_rn(float a, float b) { volatile float sum = a + b; return sum; }
inline float __fsub_rn(float a, float b) { volatile float difference = a - b; return difference; }
inline float __fmul_rn(float a, float b) { volatile float product = a * b; return product; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; i++) result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
}
// --- replacements for the PTX of common/prelude.cuh ---

inline unsigned pack_bf16(float low, float high) {
  return emulator::bf16_from_float(low) | emulator::bf16_from_float(high) << 16;
}
inline unsigned pack_f16(float low, float high) {
  return emulator::f16_from_float(low) | emulator::f16_from_float(high) << 16;
}
inline float f16_low(unsigned pair) { return emulator::f16_to_float(pair & 0xffff); }
inline float f16_high(unsigned pair) { return emulator::f16_to_float(pair >> 16); }

// Multiplies both numbers of `a` and `b`, adds those of `c`, and rounds once.
inline unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {
  auto half = [](unsigned x, unsigned shift) { return (double)emulator::bf16_to_float(x >> shift & 0xffff); };
  // Sums of products of 8-bit mantissas are exact in a double; an intermediate float could cause double rounding.
  auto rounded = [](double value) {
    float single = (float)value;
    if (single != value && (emulator::bits_of(single) & 0xffff) == 0x8000)
      single = emulator::float_of(emulator::bits_of(single) + ((fabs(value) > fabs(single)) ? 1 : -1));
    return emulator::bf16_from_float(single);
  };
  return rounded(half(a, 0) * half(b, 0) + half(c, 0)) | rounded(half(a, 16) * half(b, 16) + half(c, 16)) << 16;
}

inline unsigned add_f16x2(unsigned a, unsigned b) {
  // The f32 sum of two f16 is either exact, or far enough from a tie that rounding again gives the correct result.
  return pack_f16(f16_low(a) + f16_low(b), f16_high(a) + f16_high(b));
}
inline float exp2_near(float value) { return exp2f(value); }
inline float reciprocal_near(float value) { return 1.0f / value; }
inline float4 load_fresh(const float4 *from) { return *from; }
inline float2 load_fresh(const float2 *from) { return *from; }

inline void prefetch_l2(const void *global, unsigned bytes) { emulator::prefetch(global, bytes, __func__); }
inline void copy_async_16(void *shared, const void *global) { emulator::copy_later(shared, global, 16, __func__); }
inline void copy_async_4(void *shared, const void *global) { emulator::copy_later(shared, global, 4, __func__); }
inline void copy_async_zero_16(void *shared) {
  static const uint4 zero{};
  emulator::copy_later(shared, &zero, 16, __func__);
}
inline void copy_async_16_or_zero(void *shared, const void *global, bool is_there) {
  if (is_there) copy_async_16(shared, global);
  else copy_async_zero_16(shared);
}
inline void copy_async_commit() { emulator::commit_group(__func__); }
template <int LEFT> inline void copy_async_wait() { emulator::wait_groups(LEFT); }

uint4 load_matrices(const void *row);
uint4 load_matrices_transposed(const void *row);
void multiply_bf16(float4 &sum, uint4 a, uint2 b);
void multiply_f16(float4 &sum, uint4 a, uint2 b);
