// In place: logits = softcap · tanh(scale · logits / softcap), or scale · logits.
//
// logits [logits rows][vocab] f32, as one run of elements, four per thread and iteration. Values that are not finite
// are kept, so that the sampler still detects a row that failed. Blocks stride over the run. Variants: SOFTCAP.
// Twin: backend/reference/scale_logits.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct Params {
  const u32 *metadata;
  float *logits;
  u32 vocab;
  float scale;
  float softcap;
  u32 unused;
};

__device__ __forceinline__ float scaled(const Params &params, float logit) {
  if ((__float_as_uint(logit) & 0x7fffffffu) >= 0x7f800000u) return logit;
#ifdef SOFTCAP
  return params.softcap * tanhf(params.scale * logit / params.softcap);
#else
  return params.scale * logit;
#endif
}

KERNEL(scale_logits, 256, 4) {
  const u64 elements = static_cast<u64>(params.metadata[META_LOGITS_COUNT]) * params.vocab;
  float4 *fours = reinterpret_cast<float4 *>(params.logits);
  const u64 first = static_cast<u64>(blockIdx.x) * 256 + threadIdx.x, stride = static_cast<u64>(gridDim.x) * 256;
  for (u64 i = first; i < elements / 4; i += stride) {
    const float4 v = fours[i];
    fours[i] = make_float4(scaled(params, v.x), scaled(params, v.y), scaled(params, v.z), scaled(params, v.w));
  }
  const u64 rest = elements / 4 * 4 + first;
  if (rest < elements) params.logits[rest] = scaled(params, params.logits[rest]);
}
