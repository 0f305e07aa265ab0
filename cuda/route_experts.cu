// Chooses the experts of each token: its largest logits, largest first, ties by lowest id. Each gets a weight: its
// softmax probability over all logits, or over the chosen ones. Logits are compared by their bits as integers, so a NaN
// is above everything.
//
// logits [tokens][experts] f32; routes [tokens][per_token] of (expert, weight), per_token ≤ 32.
// One warp: one token; lane j keeps route j. Block: four tokens. Grid: tokens of the bucket / 4, rounded up.
// Twin: backend/reference/route_experts.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"
#include "common/sample.cuh"

struct Params {
  const u32 *metadata;
  const u32 *logits;
  float2 *routes;
  u32 experts;
  u32 per_token;
  u32 renormalize;
  u32 unused;
};

constexpr u32 TOKENS = 4;

KERNEL(route_experts, 128, 8) {
  const u32 lane = threadIdx.x % 32;
  const u32 token = blockIdx.x * TOKENS + threadIdx.x / 32;
  if (token >= params.metadata[META_TOKEN_COUNT]) return;
  const u32 *logits = params.logits + static_cast<u64>(token) * params.experts;

  u64 last = ~0ull;
  u32 own_id = 0;
  float top = 0.0f, own_share = 0.0f;
  for (u32 j = 0; j < params.per_token; j++) {
    u64 best = 0;
    for (u32 id = lane; id < params.experts; id += 32) {
      const u64 candidate = packed(order_of(logits[id]), id);
      if (candidate < last && candidate > best) best = candidate;
    }
    last = warp_max(best);
    const u32 id = packed_id(last);
    const float logit = __uint_as_float(logits[id]);
    if (j == 0) top = logit;
    if (j == lane) {
      own_id = id;
      own_share = expf(logit - top);
    }
  }
  float counted = own_share;
  if (params.renormalize == 0) {
    counted = 0.0f;
    for (u32 id = lane; id < params.experts; id += 32) counted += expf(__uint_as_float(logits[id]) - top);
  }
  const float sum = warp_sum(counted);
  if (lane < params.per_token)
    params.routes[static_cast<u64>(token) * params.per_token + lane] =
        make_float2(static_cast<float>(own_id), own_share / sum);
}
