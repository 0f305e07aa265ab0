// Rows that are part of wider ones, and the functions of their gates.

#pragma once
#include "common/prelude.cuh"

// Eight elements; `aligned`: they lie at a multiple of eight.
template <typename T> __device__ __forceinline__ Eight load_eight_at(const T *from, bool aligned) {
  if (aligned) return load_eight(from);
  Eight values;
  for (u32 i = 0; i < 8; i++) values.v[i] = load_one(from + i);
  return values;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
