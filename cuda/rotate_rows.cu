// Norms and rotates the q and k heads of rows (common/heads.cuh), without storing them in a pool.
//
// qkv [tokens][query + 2 · kv heads][head_dim] of -DX_TYPE, out [tokens][query + kv heads][head_dim] of -DOUT_TYPE. The
// other defines are those of common/heads.cuh.
// Twin: backend/reference/rotate_rows.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/heads.cuh"
#include "common/metadata.cuh"

struct Params {
  Heads heads;
  OUT_TYPE *out;
  const u32 *metadata;
};

constexpr u32 THREADS = 128;

KERNEL(rotate_rows, THREADS, 1) {
  const Heads &heads = params.heads;
  const u32 lane = threadIdx.x % LANES, all = heads.query_heads + heads.kv_heads;
  const u32 at = (blockIdx.x * THREADS + threadIdx.x) / LANES;
  const u32 head = at % all, count = params.metadata[META_TOKEN_COUNT];
  // All lanes of a warp must take part in its sums: units beyond the last token recompute that token.
  const u32 token = min(at / all, count - 1);
  Eight run[RUNS];
  const u32 *place = params.metadata + params.metadata[META_PLACES] + token * PLACE_WORDS;
  const u32 position = metadata_at(params.metadata, META_POSITIONS, token);
  turn_head(run, heads, token, head, position, lane, heads.by_axis ? place : nullptr);
  if (at / all >= count) return;
  OUT_TYPE *out = params.out + (static_cast<u64>(token) * all + head) * heads.runs * 8;
#pragma unroll
  for (u32 i = 0; i < RUNS; i++) {
    const u32 own = lane + i * LANES;
    if (own < heads.runs) store_eight(out + 8 * own, run[i]);
  }
}
