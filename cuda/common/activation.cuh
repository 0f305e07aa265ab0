// The activations of gated MLPs.

#pragma once
#include "common/prelude.cuh"

constexpr u32 SILU = 0;
constexpr u32 GELU_TANH = 1;
constexpr u32 CLAMPED_SWIGLU = 2;

// act(gate) · up; alpha and limit are parameters of the clamped SwiGLU.
__device__ __forceinline__ float gated(u32 activation, float gate, float up, float alpha, float limit) {
  if (activation == GELU_TANH) {
    const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1.0f + tanhf(inner)) * up;
  }
  if (activation == CLAMPED_SWIGLU) {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit) + 1.0f;
    return gate / (1.0f + expf(-alpha * gate)) * up;
  }
  return gate / (1.0f + expf(-gate)) * up;
}
