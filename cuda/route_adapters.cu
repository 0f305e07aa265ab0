// Routes each token to the slot of its sequence's adapter: (slot · experts + expert, weight) for each route to an
// expert, or (slot, 1) if the products have no experts.
//
// expert_routes and routes [tokens][per_token] of (expert, weight).
// One thread: one route. Grid: routes of the bucket / 128, rounded up.
// Twin: backend/reference/route_adapters.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct Params {
  const u32 *metadata;
  const float2 *expert_routes;  // or null
  float2 *routes;
  u32 per_token;
  u32 experts;
};

KERNEL(route_adapters, 128, 8) {
  const u32 route = blockIdx.x * 128 + threadIdx.x;
  if (route >= params.metadata[META_TOKEN_COUNT] * params.per_token) return;
  const u32 slot = metadata_at(params.metadata, META_ADAPTERS, route / params.per_token);
  const float2 chosen = params.expert_routes ? params.expert_routes[route] : make_float2(0.0f, 1.0f);
  params.routes[route] = make_float2(static_cast<float>(slot * params.experts) + chosen.x, chosen.y);
}
