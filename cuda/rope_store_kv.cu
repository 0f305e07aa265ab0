// Splits qkv rows into heads; norms and rotates q and k; writes K and V to their slots in the pool, and q.
//
//   h' = h / sqrt(mean(h²) + ε) · w                      (q and k, optional; w or 1 + w; h a head or all heads)
//   (h'[i], h'[i + r/2]), or interleaved (h'[2i], h'[2i + 1]), turned by position · frequency[i] and scaled
//
// By params, the norms follow the rotation, v is normalized without weights, q grows with its position, or qkv has q
// only.
//
// qkv [tokens][query + 2 · kv heads][head_dim] of -DX_TYPE, q [tokens][query heads][head_dim] of -DOUT_TYPE; pools
// [block][kv head] tiles in -DKV (0 f32, 1 f16, 2 q8). A unit is one head of one token, shared by -DLANES lanes, each
// with -DRUNS runs of 8 elements (2 only if there are 32 lanes).
// Twin: backend/reference/rope_store_kv.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/kv_store.cuh"
#include "common/metadata.cuh"
#include "common/rope_angles.cuh"

struct Params {
  const X_TYPE *qkv;
  OUT_TYPE *q;
  u8 *keys;
  u8 *values;
  const float *q_weight;  // or null
  const float *k_weight;
  const float *frequencies;  // or null: no rotation
  const u32 *metadata;
  u32 tokens;  // maximum of the bucket
  u32 group_header;
  u32 query_heads;
  u32 kv_heads;
  u32 runs;  // head_dim / 8
  u32 block_shift;
  u32 rotary_dim;
  u32 interleaved;
  float rope_scale;
  u32 whole_row;  // whether norms are over all heads of a row: bit 0 q, bit 1 k
  float q_epsilon;
  float q_offset;  // 1 if the weight is 1 + w
  float k_epsilon;
  float k_offset;
  u32 norm_after;  // norms follow the rotation
  u32 v_norm;
  float v_epsilon;
  float q_slope;  // q *= 1 + q_slope · log(1 + floor(position / q_positions))
  u32 q_positions;
  u32 stored;  // 0 if qkv has q only, else 1
  u32 row_columns;  // of qkv
  u32 unused;
};

constexpr u32 THREADS = 128;

// One head of one token, for one of its lanes.
struct Unit {
  const X_TYPE *from;
  const float *weight;  // of this head, or null
  float inverse, offset;
  bool weighs_after;
  u32 position;
};

__device__ __forceinline__ float lanes_sum(float value) {
  for (u32 lanes = LANES / 2; lanes > 0; lanes >>= 1) value += __shfl_xor_sync(ALL_LANES, value, lanes);
  return value;
}

// The sum of squares of `runs` runs, over the lanes of the unit.
__device__ __forceinline__ float squares(const X_TYPE *from, u32 runs, u32 lane) {
  float sum = 0.0f;
  for (u32 run = lane; run < runs; run += LANES) {
    const Eight e = load_eight(from + 8 * run);
    for (u32 i = 0; i < 8; i++) sum = fmaf(e.v[i], e.v[i], sum);
  }
  return lanes_sum(sum);
}

__device__ __forceinline__ Eight normed_run(const Unit &unit, u32 run) {
  Eight e = load_eight(unit.from + 8 * run);
  if (unit.weight && !unit.weighs_after) {
    const Eight w = load_eight(unit.weight + 8 * run);
    for (u32 i = 0; i < 8; i++) e.v[i] *= unit.inverse * (w.v[i] + unit.offset);
  } else {
    for (u32 i = 0; i < 8; i++) e.v[i] *= unit.inverse;
  }
  return e;
}

// What follows the rotation: the weights of a norm, and the growth of q.
__device__ __forceinline__ Eight finished_run(const Params &params, const Unit &unit, Eight e, u32 run, bool is_query) {
  if (unit.weight && unit.weighs_after) {
    const Eight w = load_eight(unit.weight + 8 * run);
    for (u32 i = 0; i < 8; i++) e.v[i] *= w.v[i] + unit.offset;
  }
  if (is_query && params.q_slope != 0.0f) {
    const float growth = 1.0f + params.q_slope * logf(1.0f + static_cast<float>(unit.position / params.q_positions));
    for (u32 i = 0; i < 8; i++) e.v[i] *= growth;
  }
  return e;
}

__device__ __forceinline__ float normed(const Unit &unit, u32 element) {
  const float x = load_one(unit.from + element);
  if (!unit.weight || unit.weighs_after) return x * unit.inverse;
  return x * (unit.inverse * (unit.weight[element] + unit.offset));
}

// A rotated run. If the halves are whole runs, the partner elements form a run; otherwise each is looked up.
__device__ __forceinline__ Eight turned_run(const Params &params, const Unit &unit, u32 run) {
  const Eight own = normed_run(unit, run);
  const u32 half = params.rotary_dim / 2;
  if (8 * run >= params.rotary_dim) return own;
  const bool by_runs = !params.interleaved && half % 8 == 0;
  const u32 partner_run = run < half / 8 ? run + half / 8 : run - half / 8;
  const Eight other = by_runs ? normed_run(unit, partner_run) : own;
  Eight result = own;
  for (u32 i = 0; i < 8; i++) {
    const u32 element = 8 * run + i;
    if (element >= params.rotary_dim) break;
    const bool is_first = params.interleaved ? element % 2 == 0 : element < half;
    const u32 pair = params.interleaved ? element / 2 : is_first ? element : element - half;
    float partner = other.v[i];
    if (params.interleaved) partner = own.v[i ^ 1];
    else if (!by_runs) partner = normed(unit, is_first ? element + half : element - half);
    const float2 turn = cos_sin(unit.position, params.frequencies[pair]);
    const float sine = turn.y * params.rope_scale;
    result.v[i] = own.v[i] * (turn.x * params.rope_scale) + (is_first ? -partner : partner) * sine;
  }
  return result;
}

KERNEL(rope_store_kv, THREADS, 1) {
  const u32 lane = threadIdx.x % LANES;
  const u32 heads = params.query_heads + 2 * params.kv_heads * params.stored;
  const u32 at = (blockIdx.x * THREADS + threadIdx.x) / LANES;
  const u32 head = at % heads;
  const u32 count = params.metadata[META_TOKEN_COUNT];
  // All lanes of a warp must take part in its sums: units beyond the last token recompute that token and discard the
  // result.
  const bool is_live = at / heads < count;
  const u32 token = min(at / heads, count - 1);
  const bool is_query = head < params.query_heads;
  const bool is_key = !is_query && head < params.query_heads + params.kv_heads;
  const u32 first = is_query ? 0 : params.query_heads;

  Unit unit;
  const X_TYPE *row = params.qkv + static_cast<u64>(token) * params.row_columns;
  unit.from = row + head * params.runs * 8;
  unit.position = metadata_at(params.metadata, META_POSITIONS, token);
  unit.weight = is_query ? params.q_weight : is_key ? params.k_weight : nullptr;
  unit.offset = is_query ? params.q_offset : params.k_offset;
  unit.inverse = 1.0f;
  unit.weighs_after = params.norm_after != 0;
  const bool is_value = !is_query && !is_key;
  if (params.q_weight || params.k_weight || params.v_norm) {
    const bool whole = params.whole_row >> (is_query ? 0 : 1) & 1;
    const u32 runs = whole && !is_value ? params.runs * (is_query ? params.query_heads : params.kv_heads) : params.runs;
    const float sum = squares(whole && !is_value ? row + first * params.runs * 8 : unit.from, runs, lane);
    const float epsilon = is_query ? params.q_epsilon : is_key ? params.k_epsilon : params.v_epsilon;
    const bool is_normed = is_value ? params.v_norm != 0 : unit.weight != nullptr;
    if (is_normed) unit.inverse = rsqrtf(sum / static_cast<float>(runs * 8) + epsilon);
    if (whole && unit.weight) unit.weight += (head - first) * params.runs * 8;
  }

  Eight run[RUNS] = {};
#pragma unroll
  for (u32 i = 0; i < RUNS; i++) {
    const u32 own = lane + i * LANES;
    if (own >= params.runs) break;
    const bool rotates = (is_query || is_key) && params.frequencies;
    run[i] = rotates ? turned_run(params, unit, own) : normed_run(unit, own);
    run[i] = finished_run(params, unit, run[i], own, is_query);
  }
  const u32 slot = metadata_at(params.metadata, params.group_header + GROUP_SLOTS, token);
  const bool stores = !is_query && is_live && slot != NONE;
  const u32 kv_head = is_query ? 0 : (head - params.query_heads) % params.kv_heads;
  u8 *pool = is_key ? params.keys : params.values;
  const KvRow to = kv_row<KV>(pool, stores ? slot : 0, kv_head, params.kv_heads, params.block_shift, params.runs * 8);
  store_kv<KV, LANES, RUNS>(to, run, lane, params.runs, stores);
  OUT_TYPE *q = params.q + (static_cast<u64>(token) * params.query_heads + head) * params.runs * 8;
#pragma unroll
  for (u32 i = 0; i < RUNS; i++) {
    const u32 own = lane + i * LANES;
    if (is_query && is_live && own < params.runs) store_eight(q + 8 * own, run[i]);
  }
}
