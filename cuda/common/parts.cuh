// Products of f32 operands on tensor cores, with the precision of f32.
//
// A bfloat16 times a bfloat16 is exact in f32. So an f32 operand is the sum of three of them, 24 bits in all, and a
// product has a term for each pair of parts, but for those that f32 would not keep.

#pragma once
#include "common/prelude.cuh"

struct Parts {
  u32 part[3];
};

// Two numbers in parts: each is the rest of those before, rounded.
__device__ __forceinline__ Parts split(float low, float high) {
  Parts parts;
#pragma unroll
  for (u32 i = 0; i < 3; i++) {
    parts.part[i] = pack_bf16(low, high);
    low -= bf16_low(parts.part[i]), high -= bf16_high(parts.part[i]);
  }
  return parts;
}

// Two neighboring tiles of sums as a left operand, in parts.
__device__ __forceinline__ void split(uint4 (&left)[3], const float4 &a, const float4 &b) {
  const Parts x = split(a.x, a.y), y = split(a.z, a.w), z = split(b.x, b.y), w = split(b.z, b.w);
#pragma unroll
  for (u32 i = 0; i < 3; i++) left[i] = make_uint4(x.part[i], y.part[i], z.part[i], w.part[i]);
}

// Terms of one size are summed up by themselves: more of them are under way at a time, and small ones are not lost.
struct Sums {
  float4 size[3];
};

__device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
  for (u32 i = 0; i < 3; i++) sums.size[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

template <u32 A, u32 B>
__device__ __forceinline__ void multiply(Sums &sums, const uint4 (&a)[A], const uint2 (&b)[B]) {
#pragma unroll
  for (u32 i = 0; i < A; i++) {
#pragma unroll
    for (u32 j = 0; j < B; j++) {
      if (i + j < 3) multiply_bf16(sums.size[i + j], a[i], b[j]);
    }
  }
}

__device__ __forceinline__ float4 add(const float4 &a, const float4 &b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// By value, so that neither needs an address.
__device__ __forceinline__ float4 choose(bool is_first, float4 first, float4 second) {
  return make_float4(is_first ? first.x : second.x, is_first ? first.y : second.y, is_first ? first.z : second.z,
                     is_first ? first.w : second.w);
}
__device__ __forceinline__ float4 total(const Sums &sums) {
  return add(sums.size[0], add(sums.size[1], sums.size[2]));
}

// A lane's address of matrices with 16 rows and 16 columns.
__device__ __forceinline__ const u16 *matrices_at(const u16 *rows, u32 stride, u32 row, u32 column) {
  const u32 lane = threadIdx.x % 32;
  return rows + (row + lane % 16) * stride + column + lane / 16 * 8;
}
