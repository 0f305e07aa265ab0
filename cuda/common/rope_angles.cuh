// cos and sin of position · frequency, correct to f32 rounding at any position.
//
// A float product loses the angle's fraction at long positions, and the library's sin and cos use arrays on the stack
// for large angles. So the angle is computed in turns, as a 64-bit fixed-point number: whole turns overflow and vanish.
// Same method as shaders/common/rope_angles.wgsl.

#pragma once
#include "common/prelude.cuh"

// Turns per position, in units of 2^-64, for a positive frequency in radians: mantissa · 2^(exponent − 150).
__device__ __forceinline__ u64 turns(float frequency) {
  const u32 bits = __float_as_uint(frequency);
  const u32 exponent = bits >> 23 & 0xff;
  const u64 mantissa = (bits & 0x7fffffu) | 0x800000u;
  // 1 / 2π in units of 2^-64, in two words.
  const u64 low = mantissa * 0x9391054au, high = mantissa * 0x28be60dbu;
  const u64 top = high + (low >> 32);
  // 96 bits shifted right, by at least 14 since a frequency is below 2^9.
  const u32 shift = 150 - min(exponent, 136u);
  if (shift < 32) return top << (32 - shift) | (low & 0xffffffffu) >> shift;
  return shift < 96 ? top >> (shift - 32) : 0;
}

// (cos, sin).
__device__ __forceinline__ float2 cos_sin(u32 position, float frequency) {
  // The top 32 bits of the fraction of a turn.
  const u32 phase = static_cast<u32>(position * turns(frequency) >> 32);
  const u32 quarter = (phase + 0x20000000u) >> 30;
  const float angle = static_cast<float>(static_cast<int>(phase - (quarter << 30))) * 1.4629180792671596e-9f;
  const float square = angle * angle;
  const float sine =
      angle + angle * square * (-1.6666654611e-1f + square * (8.3321608736e-3f - square * 1.9515295891e-4f));
  const float cosine =
      1.0f - 0.5f * square +
      square * square *
          (4.166664568298827e-2f + square * (-1.388731625493765e-3f + square * 2.443315711809948e-5f));
  if (quarter == 1) return make_float2(-sine, cosine);
  if (quarter == 2) return make_float2(-cosine, -sine);
  if (quarter == 3) return make_float2(sine, -cosine);
  return make_float2(cosine, sine);
}
