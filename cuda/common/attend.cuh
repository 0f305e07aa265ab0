// Shared by the kernels of paged attention: params, the work list that src/backend/cuda/encode/attend_paged.rs plans,
// and how a row is finished.
//
// Packed rows: the query heads of one KV head over the token rows of one sequence; row p is token p / group, query head
// kv_head · group + p % group. -D: Q_TYPE, OUT_TYPE (float or u16), HEAD_DIM; STORES if the kernel makes q from qkv;
// CHUNKS if a query sees the keys of its chunk.

#pragma once
#include "common/metadata.cuh"
#ifdef STORES
#include "common/heads.cuh"
#endif

struct Params {
  const u32 *metadata;
  const Q_TYPE *q;
  const u8 *k;
  const u8 *v;
  const float *alibi;  // slope per query head, or null
  const float *sinks;  // logit per query head, or null
  OUT_TYPE *out;
  float *scratch;
  u32 *counters;
  u32 group_header;
  u32 kv_heads;
  u32 group;  // query heads per KV head
  u32 block_shift;
  u32 window;  // tokens of a window or chunk
  float scale;
  float softcap;  // 0: none
  u32 unused;
#ifdef STORES
  Heads heads;
#endif
};

constexpr float LOG2_E = 1.4426950408889634f;

// How many of the last keys a query sees, its own included.
__device__ __forceinline__ u32 visible_keys(const Params &params, u32 position) {
#ifdef CHUNKS
  return position % params.window + 1;
#else
  return params.window;
#endif
}

// The list: LANE_LIST_WORDS words; the index of each lane's first item, and the end of the last lane; the items of the
// lanes, then those of the tiles.

// A range of a sequence's packed rows, over a range of keys.
struct Item {
  u32 row_start;  // the sequence's first token row
  u32 first;      // packed row
  u32 count;
  u32 position;  // of the sequence's first token row
  u32 key_begin;
  u32 key_end;
  u32 table_start;
  u32 slot;  // in the scratch; NONE if these are all the keys that the rows see
  u32 slot_first;
  u32 parts;
  u32 counter;
};

__device__ __forceinline__ const u32 *work_list(const Params &params) {
  return params.metadata + params.metadata[params.group_header + GROUP_WORK];
}
__device__ __forceinline__ Item load_item(const u32 *w) {
  return {w[ITEM_ROW],     w[ITEM_PACKED], w[ITEM_COUNT], w[ITEM_POSITION],       w[ITEM_KEY_BEGIN],
          w[ITEM_KEY_END], w[ITEM_TABLE],  w[ITEM_SLOT],  w[LANE_ITEM_SLOT_FIRST], w[LANE_ITEM_PARTS],
          w[LANE_ITEM_COUNTER]};
}
// Where the item's block table starts in the metadata.
__device__ __forceinline__ u32 table_of(const Params &params, const Item &item) {
  return params.metadata[params.group_header + GROUP_TABLES] + item.table_start;
}

// Widens two codes of fp8, in the upper bytes of both halves, to f16: their sign, exponent and mantissa are the first
// bits of an f16's, except that its exponent has one more at the top, which is 0.
__device__ __forceinline__ u32 e4m3_halves(u32 codes) { return (codes & 0x80008000u) | (codes >> 1 & 0x3f803f80u); }

// Offset of a packed row in q and out.
__device__ __forceinline__ u64 row_offset(const Params &params, const Item &item, u32 packed, u32 kv_head) {
  const u32 token = item.row_start + packed / params.group;
  const u32 head = kv_head * params.group + packed % params.group;
  return (static_cast<u64>(token) * params.kv_heads * params.group + head) * HEAD_DIM;
}

// exp2(value − largest), where `largest` may be LOWEST.
__device__ __forceinline__ float share(float value, float largest) {
  return exp2_near(value - (largest == LOWEST ? 0.0f : largest));
}

// The factor for a row's sums at the end, from its largest exponent and the sum of its weights.
__device__ __forceinline__ float final_factor(const Params &params, float largest, float sum, u32 query_head) {
  float factor = 1.0f;
  if (params.sinks) {
    const float sink = params.sinks[query_head] * LOG2_E, top = fmaxf(largest, sink);
    factor = exp2_near(largest - top);
    sum = sum * factor + exp2_near(sink - top);
  }
  return sum == 0.0f ? 0.0f : factor / sum;
}
