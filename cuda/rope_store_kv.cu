// Splits qkv rows into heads; norms and rotates q and k (common/heads.cuh); writes K and V to their slots in the pool,
// and q.
//
// q [tokens][query heads][head_dim] of -DOUT_TYPE; pools [block][kv head] tiles in -DKV (0 f32, 1 f16, 2 q8, 3 fp8).
// The other defines are those of common/heads.cuh.
// Twin: backend/reference/rope_store_kv.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/heads.cuh"
#include "common/metadata.cuh"

struct Params {
  Heads heads;
  OUT_TYPE *q;
  const u32 *metadata;
  u32 group_header;
  u32 block_shift;
};

constexpr u32 THREADS = 128;

KERNEL(rope_store_kv, THREADS, 1) {
  const Heads &heads = params.heads;
  const u32 lane = threadIdx.x % LANES;
  const u32 all = heads.query_heads + 2 * heads.kv_heads * heads.stored;
  const u32 at = (blockIdx.x * THREADS + threadIdx.x) / LANES;
  const u32 head = at % all;
  const u32 count = params.metadata[META_TOKEN_COUNT];
  // All lanes of a warp must take part in its sums: units beyond the last token recompute that token and discard the
  // result.
  const bool is_live = at / all < count;
  const u32 token = min(at / all, count - 1);
  const bool is_query = head < heads.query_heads;
  const bool is_key = !is_query && head < heads.query_heads + heads.kv_heads;
  Eight run[RUNS];
  turn_head(run, heads, token, head, metadata_at(params.metadata, META_POSITIONS, token), lane);
  const u32 slot = metadata_at(params.metadata, params.group_header + GROUP_SLOTS, token);
  const bool stores = !is_query && is_live && slot != NONE;
  const u32 kv_head = is_query ? 0 : (head - heads.query_heads) % heads.kv_heads;
  u8 *pool = is_key ? heads.keys : heads.values;
  const KvRow to = kv_row<KV>(pool, stores ? slot : 0, kv_head, heads.kv_heads, params.block_shift, heads.runs * 8);
  store_kv<KV, LANES, RUNS>(to, run, lane, heads.runs, stores);
  OUT_TYPE *q = params.q + (static_cast<u64>(token) * heads.query_heads + head) * heads.runs * 8;
#pragma unroll
  for (u32 i = 0; i < RUNS; i++) {
    const u32 own = lane + i * LANES;
    if (is_query && is_live && own < heads.runs) store_eight(q + 8 * own, run[i]);
  }
}
