// The counter-based generator Philox4x32-10 (Salmon et al., 2011), and Gumbel noise from its output.

#pragma once
#include "common/prelude.cuh"

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 seed) {
  uint4 words = counter;
  uint2 key = seed;
// Not all ten rounds at once: `sample` has no registers left for their keys.
#pragma unroll 5
  for (u32 round = 0; round < 10; round++) {
    const u64 first = static_cast<u64>(words.x) * 0xd2511f53u;
    const u64 second = static_cast<u64>(words.z) * 0xcd9e8d57u;
    words = make_uint4(static_cast<u32>(second >> 32) ^ words.y ^ key.x, static_cast<u32>(second),
                       static_cast<u32>(first >> 32) ^ words.w ^ key.y, static_cast<u32>(first));
    key = make_uint2(key.x + 0x9e3779b9u, key.y + 0xbb67ae85u);
  }
  return words;
}

// 1 − u for u = ((word >> 8) + ½) · 2⁻²⁴, exact where it is at most ½.
__device__ __forceinline__ float one_minus_uniform(u32 word) {
  return (static_cast<float>(0xffffffu - (word >> 8)) + 0.5f) * 5.9604644775390625e-8f;
}

// −ln(−ln u). Above ½, a series in 1 − u replaces the logarithm, which has few significant digits near 1.
__device__ __forceinline__ float gumbel(u32 word) {
  const u32 k = word >> 8;
  float e;
  if (k < 0x800000u) {
    e = -logf((static_cast<float>(k) + 0.5f) * 5.9604644775390625e-8f);
  } else {
    const float v = one_minus_uniform(word);
    const float s = v / (2.0f - v);
    const float z = s * s;
    const float tail = 1.0f / 7.0f + z * (1.0f / 9.0f + z * (1.0f / 11.0f + z / 13.0f));
    e = 2.0f * s * (1.0f + z * (1.0f / 3.0f + z * (0.2f + z * tail)));
  }
  return -logf(e);
}
