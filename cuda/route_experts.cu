// Chooses the experts of each token: its largest logits, largest first, ties by lowest id. Each gets a weight: its
// softmax probability over all logits, or over the chosen ones. Logits are compared by their bits as integers, so a NaN
// is above everything.
// With `sigmoid`, a weight is sigmoid(logit), of a capped logit with `softcap`, divided by the sum of the chosen if
// `renormalize`; with a bias, experts are chosen by sigmoid(logit) + bias; without `sigmoid`, by the probability over
// all + bias. With groups, they are chosen only among those of the groups with the largest sums of two, or without a
// bias with the largest logits. Weights are multiplied by `factor` and the expert's scale. With `mixer`, a weight is
// the softmax among the experts that were not chosen before and are near: the logit l with m - l <= mixer · max(|l|,
// m), where m is the chosen one's.
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
  const float *bias;   // or null
  const float *scale;  // or null
  u32 experts;
  u32 per_token;
  u32 renormalize;
  u32 sigmoid;
  u32 groups;  // 0: none; at most 32
  u32 kept;
  float factor;
  float mixer;  // 0: none
  float softcap;  // 0: none
  u32 unused;
};

constexpr u32 TOKENS = 4;

__device__ __forceinline__ float sigmoid(const Params &params, u32 bits) {
  float logit = __uint_as_float(bits);
  if (params.softcap > 0.0f) logit = params.softcap * tanhf(logit / params.softcap);
  return 1.0f / (1.0f + expf(-logit));
}

// What makes a logit a probability over all.
struct Softmax {
  float top;
  float sum;
};

// The largest logit of a token, and the sum of all shares; only where a bias is added to probabilities.
__device__ __forceinline__ Softmax softmax_of(const Params &params, const u32 *logits, u32 lane) {
  if (params.bias == nullptr || params.sigmoid != 0) return {0.0f, 1.0f};
  u64 best = 0;
  for (u32 id = lane; id < params.experts; id += 32) {
    const u64 candidate = packed(order_of(logits[id]), id);
    if (candidate > best) best = candidate;
  }
  const float top = __uint_as_float(logits[packed_id(warp_max(best))]);
  float sum = 0.0f;
  for (u32 id = lane; id < params.experts; id += 32) sum += expf(__uint_as_float(logits[id]) - top);
  return {top, warp_sum(sum)};
}

// The number by whose bits an expert is ordered.
__device__ __forceinline__ u32 choice(const Params &params, const u32 *logits, u32 id, const Softmax &softmax) {
  if (params.bias == nullptr) return logits[id];
  const float score =
      params.sigmoid ? sigmoid(params, logits[id]) : expf(__uint_as_float(logits[id]) - softmax.top) / softmax.sum;
  return __float_as_uint(score + params.bias[id]);
}

// A bit for each group whose experts may be chosen. A lane values one group.
__device__ __forceinline__ u32 kept_groups(const Params &params, const u32 *logits, u32 lane) {
  if (params.groups == 0) return ~0u;
  const u32 size = params.experts / params.groups;
  float first = -3.0e38f, second = -3.0e38f;
  for (u32 i = 0; i < size && lane < params.groups; i++) {
    const float value = __uint_as_float(choice(params, logits, lane * size + i, {0.0f, 1.0f}));
    second = fmaxf(second, fminf(first, value));
    first = fmaxf(first, value);
  }
  const float value = params.bias ? first + second : first;
  const u32 key = lane < params.groups ? order_of(__float_as_uint(value)) : 0;
  u32 rank = 0;
  for (u32 distance = 1; distance < 32; distance++) {
    const u32 other = lane ^ distance;
    const u32 theirs = __shfl_xor_sync(ALL_LANES, key, distance);
    if (theirs > key || (theirs == key && other < lane)) rank++;
  }
  u32 kept = lane < params.groups && rank < params.kept ? 1u << lane : 0;
  for (u32 lanes = 16; lanes > 0; lanes >>= 1) kept |= __shfl_xor_sync(ALL_LANES, kept, lanes);
  return kept;
}

// The sum of SparseMixer for the expert that was chosen last, of logit `top`.
__device__ __forceinline__ float near_sum(const Params &params, const u32 *logits, u64 last, float top, u32 lane) {
  float sum = 0.0f;
  for (u32 id = lane; id < params.experts; id += 32) {
    const float logit = __uint_as_float(logits[id]);
    if (packed(order_of(logits[id]), id) <= last && top - logit <= params.mixer * fmaxf(fabsf(logit), top))
      sum += expf(logit - top);
  }
  return warp_sum(sum);
}

KERNEL(route_experts, 128, 8) {
  const u32 lane = threadIdx.x % 32;
  const u32 token = blockIdx.x * TOKENS + threadIdx.x / 32;
  if (token >= params.metadata[META_TOKEN_COUNT]) return;
  const u32 *logits = params.logits + static_cast<u64>(token) * params.experts;

  const Softmax softmax = softmax_of(params, logits, lane);
  const bool is_biased = params.bias != nullptr && params.sigmoid == 0;
  const u32 kept = kept_groups(params, logits, lane);
  const u32 size = params.groups ? params.experts / params.groups : params.experts;
  u64 last = ~0ull;
  u32 own_id = 0;
  float top = 0.0f, own_share = 0.0f;
  for (u32 j = 0; j < params.per_token; j++) {
    u64 best = 0;
    for (u32 id = lane; id < params.experts; id += 32) {
      if ((kept >> (id / size) & 1) == 0) continue;
      const u64 candidate = packed(order_of(choice(params, logits, id, softmax)), id);
      if (candidate < last && candidate > best) best = candidate;
    }
    last = warp_max(best);
    const u32 id = packed_id(last);
    const float logit = __uint_as_float(logits[id]);
    if (j == 0) top = is_biased ? softmax.top : logit;
    if (j == lane) {
      own_id = id;
      own_share = params.sigmoid ? sigmoid(params, logits[id]) : expf(logit - top);
    }
    if (params.mixer > 0.0f) {
      const float share = 1.0f / near_sum(params, logits, last, logit, lane);
      if (j == lane) own_share = share;
    }
  }
  float counted = own_share;
  if (params.renormalize == 0 && params.sigmoid == 0) {
    counted = 0.0f;
    for (u32 id = lane; id < params.experts; id += 32) counted += expf(__uint_as_float(logits[id]) - top);
  }
  const float all = warp_sum(counted);
  const bool is_whole = params.mixer > 0.0f || (params.sigmoid != 0 && params.renormalize == 0);
  const float sum = is_whole ? 1.0f : params.sigmoid == 0 ? all : all + 1e-20f;
  const float factor = params.scale ? params.factor * params.scale[own_id] : params.factor;
  if (lane < params.per_token)
    params.routes[static_cast<u64>(token) * params.per_token + lane] =
        make_float2(static_cast<float>(own_id), own_share / sum * factor);
}
