// Heads of the rows of qkv: norms, rotation and growth. Shared by the kernel that stores them and the one that attends
// to them at once.
//
//   h' = h / sqrt(mean(h²) + ε) · w                      (q and k, optional; w or 1 + w; h a head or all heads)
//   (h'[i], h'[i + r/2]), or interleaved (h'[2i], h'[2i + 1]), turned by position · frequency[i] and scaled; the
//   position is that of the row, or along the axis of the frequency
//
// By params, the norms follow the rotation, v is normalized without weights, q grows with its position, or qkv has q
// only.
//
// qkv [tokens][query + 2 · kv heads][head_dim] of -DX_TYPE. A head is shared by -DLANES lanes, each with -DRUNS runs of
// 8 elements (2 only if there are 32 lanes).

#pragma once
#include "common/kv_store.cuh"
#include "common/rope_angles.cuh"

struct Heads {
  const X_TYPE *qkv;
  u8 *keys;  // the pool
  u8 *values;
  const float *q_weight;  // or null
  const float *k_weight;
  const float *frequencies;  // or null: no rotation; with by_axis, the axis of each follows
  u32 query_heads;
  u32 kv_heads;
  u32 runs;  // head_dim / 8
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
  float q_slope;  // q *= 1 + q_slope · log(1 + floor((position + q_ahead) / q_positions))
  u32 q_positions;
  u32 q_ahead;
  u32 stored;  // 0 if qkv has q only, else 1
  u32 row_columns;  // of qkv
  u32 by_axis;
};

// One head of one token, for one of its lanes.
struct Unit {
  const X_TYPE *from;
  const float *weight;  // of this head, or null
  float inverse, offset;
  bool weighs_after;
  u32 position;
  const u32 *place;  // the row's position along each axis, or null: all have the same
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
__device__ __forceinline__ Eight finished_run(const Heads &heads, const Unit &unit, Eight e, u32 run, bool is_query) {
  if (unit.weight && unit.weighs_after) {
    const Eight w = load_eight(unit.weight + 8 * run);
    for (u32 i = 0; i < 8; i++) e.v[i] *= w.v[i] + unit.offset;
  }
  if (is_query && heads.q_slope != 0.0f) {
    const u32 steps = (unit.position + heads.q_ahead) / heads.q_positions;
    const float growth = 1.0f + heads.q_slope * logf(1.0f + static_cast<float>(steps));
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
__device__ __forceinline__ Eight turned_run(const Heads &heads, const Unit &unit, u32 run) {
  const Eight own = normed_run(unit, run);
  const u32 half = heads.rotary_dim / 2;
  if (8 * run >= heads.rotary_dim) return own;
  const bool by_runs = !heads.interleaved && half % 8 == 0;
  const u32 partner_run = run < half / 8 ? run + half / 8 : run - half / 8;
  const Eight other = by_runs ? normed_run(unit, partner_run) : own;
  Eight result = own;
  for (u32 i = 0; i < 8; i++) {
    const u32 element = 8 * run + i;
    if (element >= heads.rotary_dim) break;
    const bool is_first = heads.interleaved ? element % 2 == 0 : element < half;
    const u32 pair = heads.interleaved ? element / 2 : is_first ? element : element - half;
    float partner = other.v[i];
    if (heads.interleaved) partner = own.v[i ^ 1];
    else if (!by_runs) partner = normed(unit, is_first ? element + half : element - half);
    const u32 axis = unit.place ? static_cast<u32>(heads.frequencies[half + pair]) : 0;
    const float2 turn = cos_sin(unit.place ? unit.place[axis] : unit.position, heads.frequencies[pair]);
    const float sine = turn.y * heads.rope_scale;
    result.v[i] = own.v[i] * (turn.x * heads.rope_scale) + (is_first ? -partner : partner) * sine;
  }
  return result;
}

// The runs `lane`, `lane + LANES`, … of a head of a token's row, normed and turned. All lanes of a warp must call this.
__device__ __forceinline__ void turn_head(Eight (&run)[RUNS], const Heads &heads, u32 token, u32 head, u32 position,
                                          u32 lane, const u32 *place = nullptr) {
  const bool is_query = head < heads.query_heads;
  const bool is_key = !is_query && head < heads.query_heads + heads.kv_heads;
  const u32 first = is_query ? 0 : heads.query_heads;
  Unit unit;
  const X_TYPE *row = heads.qkv + static_cast<u64>(token) * heads.row_columns;
  unit.from = row + head * heads.runs * 8;
  unit.position = position;
  unit.place = place;
  unit.weight = is_query ? heads.q_weight : is_key ? heads.k_weight : nullptr;
  unit.offset = is_query ? heads.q_offset : heads.k_offset;
  unit.inverse = 1.0f;
  unit.weighs_after = heads.norm_after != 0;
  const bool is_value = !is_query && !is_key;
  if (heads.q_weight || heads.k_weight || heads.v_norm) {
    const bool whole = heads.whole_row >> (is_query ? 0 : 1) & 1;
    const u32 runs = whole && !is_value ? heads.runs * (is_query ? heads.query_heads : heads.kv_heads) : heads.runs;
    const float sum = squares(whole && !is_value ? row + first * heads.runs * 8 : unit.from, runs, lane);
    const float epsilon = is_query ? heads.q_epsilon : is_key ? heads.k_epsilon : heads.v_epsilon;
    const bool is_normed = is_value ? heads.v_norm != 0 : unit.weight != nullptr;
    if (is_normed) unit.inverse = rsqrtf(sum / static_cast<float>(runs * 8) + epsilon);
    if (whole && unit.weight) unit.weight += (head - first) * heads.runs * 8;
  }
#pragma unroll
  for (u32 i = 0; i < RUNS; i++) {
    const u32 own = lane + i * LANES;
    run[i] = {};
    if (own >= heads.runs) continue;
    const bool rotates = (is_query || is_key) && heads.frequencies;
    run[i] = rotates ? turned_run(heads, unit, own) : normed_run(unit, own);
    run[i] = finished_run(heads, unit, run[i], own, is_query);
  }
}
