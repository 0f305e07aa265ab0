// out (=, +=) sum over a token's routes of weight · product: combines the products that matmul_experts_tile has written
// to scratch, for tokens_max tokens from first_token on. products: [routes, columns] f32, addressed as if scratch held
// all routes; routes: [routes] of (expert, weight); out: [tokens, columns].
// Thread: four columns of a token, in the order of its routes. -D: OUT_TYPE. Twin: backend/reference/matmul_experts.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct Params {
  const float *products;
  const float2 *routes;
  OUT_TYPE *out;
  const u32 *metadata;
  u32 per_token, columns, accumulate, first_token, tokens_max, padding;
};

constexpr u32 THREADS = 256;

KERNEL(matmul_experts_merge, THREADS, 1) {
  const u32 fours = ceil_div(params.columns, 4);
  const u32 item = blockIdx.x * THREADS + threadIdx.x;
  const u32 token = params.first_token + item / fours, column = 4 * (item % fours);
  if (token >= min(params.metadata[META_TOKEN_COUNT], params.first_token + params.tokens_max)) return;
  const u32 here = min(params.columns - column, 4u);
  const bool whole = params.columns % 4 == 0;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (u32 j = 0; j < params.per_token; j++) {
    const u64 route = (u64)token * params.per_token + j;
    const float weight = params.routes[route].y;
    const float *from = params.products + route * params.columns + column;
    if (whole) {
      const float4 values = *reinterpret_cast<const float4 *>(from);
      sum[0] += weight * values.x, sum[1] += weight * values.y;
      sum[2] += weight * values.z, sum[3] += weight * values.w;
    } else {
#pragma unroll
      for (u32 i = 0; i < 4; i++)
        if (i < here) sum[i] += weight * from[i];
    }
  }
  OUT_TYPE *to = params.out + (u64)token * params.columns + column;
#pragma unroll
  for (u32 i = 0; i < 4; i++)
    if (i < here) store_one(to + i, params.accumulate ? load_one(to + i) + sum[i] : sum[i]);
}
