// Latent attention: stores a token's latent, normalized, and the rotated elements beside it; makes the heads of q to
// match. By params, q grows with its position.
//
//   stored = [l / sqrt(mean(l²) + ε) · w, turn(k)] with (l, k) = latent;  q = [absorbed, turn(last elements of query)]
//
// query [tokens][heads][8 · query_runs], absorbed [tokens][heads][rank], latent [tokens][rank + r] of -DX_TYPE,
// q [tokens][heads][rank + r] of -DOUT_TYPE; pool [block] tiles in -DKV (0 f32, 1 f16, 2 q8). Pairs as in
// rope_store_kv. A unit is one head of one token, or its latent, shared by -DLANES lanes, each with -DRUNS runs of 8
// elements.
// Twin: backend/reference/rope_store_latent.rs. Compiled for the host alone; not yet run on a GPU.

#include "common/kv_store.cuh"
#include "common/metadata.cuh"
#include "common/rope_angles.cuh"

struct Params {
  const X_TYPE *query, *absorbed, *latent;
  OUT_TYPE *q;
  u8 *keys;
  const float *weight, *frequencies;
  const u32 *metadata;
  u32 group_header;
  u32 heads;
  u32 runs;  // (rank + r) / 8
  u32 rank_runs;
  u32 query_runs;  // of a head of query
  u32 block_shift;
  u32 interleaved;
  float rope_scale;
  float epsilon;
  float q_slope;  // q *= 1 + q_slope · log(1 + floor((position + q_ahead) / q_positions))
  u32 q_positions;
  u32 q_ahead;
};

constexpr u32 THREADS = 128;

// Run `run` of a rotated part that starts at `from`.
__device__ __forceinline__ Eight turned_run(const Params &params, const X_TYPE *from, u32 position, u32 run) {
  const Eight own = load_eight(from + 8 * run);
  const u32 half = (params.runs - params.rank_runs) * 4;
  Eight result;
  for (u32 i = 0; i < 8; i++) {
    const u32 element = 8 * run + i;
    const bool is_first = params.interleaved ? element % 2 == 0 : element < half;
    const u32 pair = params.interleaved ? element / 2 : is_first ? element : element - half;
    float partner = own.v[i ^ 1];
    if (!params.interleaved) partner = load_one(from + (is_first ? element + half : element - half));
    const float2 turn = cos_sin(position, params.frequencies[pair]);
    const float sine = turn.y * params.rope_scale;
    result.v[i] = own.v[i] * (turn.x * params.rope_scale) + (is_first ? -partner : partner) * sine;
  }
  return result;
}

// 1 / root of the mean square of the latent; `runs` is 0 for units that need no norm. All lanes of a warp call this.
__device__ __forceinline__ float inverse_rms(const Params &params, const X_TYPE *from, u32 runs, u32 lane) {
  float sum = 0.0f;
  for (u32 run = lane; run < runs; run += LANES) {
    const Eight e = load_eight(from + 8 * run);
    for (u32 i = 0; i < 8; i++) sum = fmaf(e.v[i], e.v[i], sum);
  }
  for (u32 lanes = LANES / 2; lanes > 0; lanes >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, lanes);
  return rsqrtf(sum / static_cast<float>(params.rank_runs * 8) + params.epsilon);
}

KERNEL(rope_store_latent, THREADS, 1) {
  const u32 lane = threadIdx.x % LANES, units = params.heads + 1;
  const u32 at = (blockIdx.x * THREADS + threadIdx.x) / LANES;
  const u32 head = at % units, count = params.metadata[META_TOKEN_COUNT];
  // All lanes of a warp must take part in its sums: units beyond the last token recompute that token and discard the
  // result.
  const bool is_live = at / units < count, is_key = head == params.heads;
  const u32 token = min(at / units, count - 1), rotated = params.runs - params.rank_runs;
  const u32 position = metadata_at(params.metadata, META_POSITIONS, token);
  const u64 query_head = static_cast<u64>(token) * params.heads + head;
  const X_TYPE *latent = params.latent + static_cast<u64>(token) * params.runs * 8;
  const X_TYPE *plain = is_key ? latent : params.absorbed + query_head * params.rank_runs * 8;
  const X_TYPE *query = params.query + ((query_head + 1) * params.query_runs - rotated) * 8;
  const X_TYPE *turning = is_key ? latent + params.rank_runs * 8 : query;
  const float inverse = inverse_rms(params, latent, is_key ? params.rank_runs : 0, lane);

  Eight run[RUNS] = {};
#pragma unroll
  for (u32 i = 0; i < RUNS; i++) {
    const u32 own = lane + i * LANES;
    if (own >= params.runs) break;
    if (own >= params.rank_runs) {
      run[i] = turned_run(params, turning, position, own - params.rank_runs);
      continue;
    }
    run[i] = load_eight(plain + 8 * own);
    if (!is_key) continue;
    const Eight w = load_eight(params.weight + 8 * own);
    for (u32 j = 0; j < 8; j++) run[i].v[j] *= inverse * w.v[j];
  }
  const u32 slot = metadata_at(params.metadata, params.group_header + GROUP_SLOTS, token);
  const bool stores = is_key && is_live && slot != NONE;
  const KvRow to = kv_row<KV>(params.keys, stores ? slot : 0, 0, 1, params.block_shift, params.runs * 8);
  store_kv<KV, LANES, RUNS>(to, run, lane, params.runs, stores);
  if (!is_key && params.q_slope != 0.0f) {
    const u32 steps = (position + params.q_ahead) / params.q_positions;
    const float growth = 1.0f + params.q_slope * logf(1.0f + static_cast<float>(steps));
    for (u32 i = 0; i < RUNS; i++)
      for (u32 j = 0; j < 8; j++) run[i].v[j] *= growth;
  }
  OUT_TYPE *q = params.q + query_head * params.runs * 8;
#pragma unroll
  for (u32 i = 0; i < RUNS; i++) {
    const u32 own = lane + i * LANES;
    if (!is_key && is_live && own < params.runs) store_eight(q + 8 * own, run[i]);
  }
}
