// The activations of MLPs.

#pragma once
#include "common/prelude.cuh"

constexpr u32 SILU = 0;
constexpr u32 GELU_TANH = 1;
constexpr u32 CLAMPED_SWIGLU = 2;
constexpr u32 RELU2 = 3;
constexpr u32 XIELU = 4;

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
  if (activation == RELU2) {
    const float positive = fmaxf(gate, 0.0f);
    return positive * positive * up;
  }
  return gate / (1.0f + expf(-gate)) * up;
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + logf(1.0f + expf(-fabsf(x))); }

// xIELU of four stored numbers [p, n, β, ε].
__device__ __forceinline__ float xielu(float gate, const float *numbers) {
  const float beta = numbers[2];
  const float fall = expm1f(fminf(gate, numbers[3])) - gate;
  const float curved = gate > 0.0f ? softplus(numbers[0]) * gate * gate : (beta + softplus(numbers[1])) * fall;
  return curved + beta * gate;
}
