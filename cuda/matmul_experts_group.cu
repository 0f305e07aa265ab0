// Sorts the routes of a batch, or some of them, by expert: order[i] is a route; those of expert e are at starts[e] to
// starts[e + 1], in their original order. routes: [routes] of (expert, weight) in f32; only those from first_route on
// are taken, at most routes_max.
// Block: one expert. Each thread counts, within its part of the routes, those of earlier experts and those of this
// expert, then writes the latter to their places. So the result does not depend on timing.
// Twin: the loop over experts of backend/reference/matmul_experts.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct Params {
  const float2 *routes;
  u32 *order, *starts;  // [routes], [experts + 1]
  const u32 *metadata;
  u32 per_token, experts, first_route, routes_max;
};

constexpr u32 THREADS = 256;

// Inclusive prefix sum over the lanes.
__device__ __forceinline__ u32 scan_warp(u32 value, u32 lane) {
  for (u32 lanes = 1; lanes < 32; lanes <<= 1) {
    const u32 before = __shfl_sync(ALL_LANES, value, lane - lanes);
    if (lane >= lanes) value += before;
  }
  return value;
}

KERNEL(matmul_experts_group, THREADS, 1) {
  __shared__ u32 less_of[THREADS / 32], same_of[THREADS / 32];
  const u32 expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 all_routes = params.metadata[META_TOKEN_COUNT] * params.per_token;
  const u32 from = min(params.first_route, all_routes), routes = min(all_routes - from, params.routes_max);
  const u32 each = ceil_div(routes, THREADS);
  const u32 first = from + min(threadIdx.x * each, routes), end = min(first + each, from + routes);
  u32 less = 0, same = 0;
  for (u32 route = first; route < end; route++) {
    const u32 of = static_cast<u32>(params.routes[route].x);
    less += of < expert;
    same += of == expert;
  }
  const u32 less_here = scan_warp(less, lane), same_here = scan_warp(same, lane);
  if (lane == 31) less_of[warp] = less_here, same_of[warp] = same_here;
  __syncthreads();
  u32 start = 0, all = 0, at = same_here - same;
  for (u32 other = 0; other < THREADS / 32; other++) {
    start += less_of[other];
    all += same_of[other];
    if (other < warp) at += same_of[other];
  }
  if (threadIdx.x == 0) {
    params.starts[expert] = start;
    if (expert + 1 == params.experts) params.starts[expert + 1] = start + all;
  }
  for (u32 route = first; route < end; route++)
    if (static_cast<u32>(params.routes[route].x) == expert) params.order[start + at++] = route;
}
