// Paged attention of few packed rows over many keys, on tensor cores. Up to 16 rows of one KV head form the row
// dimension of the products, so that keys and values are read once for the whole group.
//
//   out = Σ p_j · v_j / (Σ p_j + e^(sink − m)),  p_j = e^(s_j − m)
//   s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// q, out: [tokens][query heads][HEAD_DIM]; K, V: tiles [block][kv head] of the pool; work list: common/attend.cuh.
// A lane of the list is a run of items, all lanes about equally long. One block: the items of a lane × one KV head,
// striding over the grid. A warp takes every WARPS-th tile of TILE_KEYS keys, through STAGES stages of its own; the
// warps' sums are joined at the end of an item. If the keys of some rows are split between items, partial sums go to
// the scratch, and the last block to finish joins them in key order.
// The next item's first tiles and query are copied while the sums of the one before it are joined, and its entries of
// the block table before that.
// Threads: 32 · WARPS. Grid: any, about what the device runs at once.
// Shared: see STAGES_END; computed by decode_variant of encode/attend_paged.rs.
// STORES: every sequence has one row, and the query, K and V of its position are made from qkv (common/heads.cuh).
// -D: HEAD_DIM (multiple of 16, ≤ 256), WARPS (4, 2), TILE_KEYS (16 or 32; 32 with codes), STAGES (2 to 4),
// OUT_TYPE (u16, float), Q_TYPE=u16, KV_Q8, KV_FP8, SOFTCAP, ALIBI. Twin: backend/reference/attend_paged.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/attend_join.cuh"

constexpr u32 COPY_UNROLL = HEAD_DIM > 128 ? 1 : 16;
constexpr u32 STAGE_BYTES = WARPS * tile_bytes(TILE_KEYS);  // of all warps
constexpr u32 TILES_BYTES = STAGES * STAGE_BYTES;
constexpr u32 QUERY_STRIDE = HEAD_DIM + 8;  // avoids bank conflicts between rows
constexpr u32 largest_of(u32 a, u32 b) { return a < b ? b : a; }

// Shared memory: the stages; what the last one does not hold of the sums and the query; then the rest. Sums, or largest
// and sum of the parts, are where all but the first stage were, since that one has the next item's tiles by then. The
// query is at the end: in the last stage if there are more than two, which is copied to after the query was loaded.
constexpr u32 SUMS_AT = STAGE_BYTES;
constexpr u32 SUMS_BYTES = largest_of(WARPS * ROWS * (SUM_STRIDE + 2) * 4, PARTS_MAX * ROWS * 8);
constexpr u32 QUERY_BYTES = ROWS * QUERY_STRIDE * 2;
constexpr u32 STAGES_END = STAGES > 2 ? TILES_BYTES : largest_of(TILES_BYTES, SUMS_AT + SUMS_BYTES) + QUERY_BYTES;
constexpr u32 QUERY_AT = STAGES_END - QUERY_BYTES;
static_assert(SUMS_AT + SUMS_BYTES <= QUERY_AT && TILES_BYTES - STAGE_BYTES <= QUERY_AT, "both have their place");
constexpr bool OPERANDS_ARE_SHARED = HEAD_DIM > 176;
constexpr u32 ENTRIES_AT = STAGES_END + (OPERANDS_ARE_SHARED ? ROWS * HEAD_DIM * 2 : 0);
constexpr u32 WARP_ENTRIES = TILE_KEYS / PART;
// With STORES: K and V of the newest position as the pool has them, their scales, and their slot.
constexpr u32 FRESH_AT = ENTRIES_AT + WARPS * 2 * 4;
constexpr u32 FRESH_SCALES_AT = FRESH_AT + 2 * ROW_BYTES, FRESH_SLOT_AT = FRESH_SCALES_AT + 8;

// The query operand of one step, with elements in the same order as the keys'.
__device__ __forceinline__ uint4 load_query(const u16 *query, u32 step, u32 lane) {
  uint4 a;
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    const u32 *q = reinterpret_cast<const u32 *>(query + (half * 8 + lane / 4) * QUERY_STRIDE) + step * 8;
    const u32 at = IS_CODED ? lane % 4 * 2 : lane % 4;
    const u32 first = q[at], second = q[at + (IS_CODED ? 1 : 4)];
    (half ? a.y : a.x) = pack_f16(clamp_f16(bf16_low(first)), clamp_f16(bf16_high(first)));
    (half ? a.w : a.z) = pack_f16(clamp_f16(bf16_low(second)), clamp_f16(bf16_high(second)));
  }
  return a;
}

// Kept in registers if they have room for it, otherwise in shared memory.
struct Query {
  uint4 steps[OPERANDS_ARE_SHARED ? 1 : STEPS];
  const uint4 *shared;
  __device__ __forceinline__ uint4 operator()(u32, u32 step) const {
    return OPERANDS_ARE_SHARED ? shared[step * 32] : steps[OPERANDS_ARE_SHARED ? 0 : step];
  }
};

// Loads the query that copy_query has copied. Its memory may be written afterwards.
__device__ __forceinline__ void load_query(Query &query, u8 *memory) {
  const u32 lane = threadIdx.x % 32;
  const u16 *rows = reinterpret_cast<const u16 *>(memory + QUERY_AT);
  uint4 *shared = reinterpret_cast<uint4 *>(memory + STAGES_END) + lane;
  query.shared = shared;
  __syncthreads();
  if constexpr (OPERANDS_ARE_SHARED) {
    for (u32 step = threadIdx.x / 32; step < STEPS; step += WARPS) shared[step * 32] = load_query(rows, step, lane);
  } else {
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) query.steps[step] = load_query(rows, step, lane);
  }
  __syncthreads();
}

#ifdef STORES
// Makes the query of an item and, if the item has the newest position, its K and V: what rope_store_kv.cu computes.
// They go to shared memory, and K and V from there to the pool by store_fresh.
__device__ __forceinline__ void turn_heads(u8 *memory, const Params &params, const Item &item, u32 kv_head) {
  u16 *rows = reinterpret_cast<u16 *>(memory + QUERY_AT);
  const Heads &heads = params.heads;
  const bool is_newest = heads.stored && item.key_end == item.position + 1;
  const u32 slot =
      is_newest ? metadata_at(params.metadata, params.group_header + GROUP_SLOTS, item.row_start) : NONE;
  if (threadIdx.x == 0) *reinterpret_cast<u32 *>(memory + FRESH_SLOT_AT) = slot;
  const u32 count = params.group + (slot == NONE ? 0 : 2), lane = threadIdx.x % LANES;
  // All lanes of a warp take part in sums: those without a head repeat the last one.
  for (u32 first = 0; first < count; first += THREADS / LANES) {
    const u32 at = min(first + threadIdx.x / LANES, count - 1);
    const bool is_query = at < params.group, is_own = at == first + threadIdx.x / LANES;
    const u32 half = is_query ? 0 : at - params.group;
    const u32 head = is_query ? kv_head * params.group + at : heads.query_heads + half * params.kv_heads + kv_head;
    Eight run[RUNS];
    turn_head(run, heads, item.row_start, head, item.position, lane);
#pragma unroll
    for (u32 i = 0; i < RUNS; i++) {
      const u32 own = lane + i * LANES;
      if (is_query && is_own && own < HEAD_DIM / 8) store_eight(rows + at * QUERY_STRIDE + 8 * own, run[i]);
    }
    if (slot == NONE) continue;
    const KvRow to = {memory + FRESH_AT + half * ROW_BYTES, reinterpret_cast<float *>(memory + FRESH_SCALES_AT) + half};
    store_kv<KV, LANES, RUNS>(to, run, lane, HEAD_DIM / 8, !is_query && is_own);
  }
  for (u32 at = params.group * (HEAD_DIM / 8) + threadIdx.x; at < ROWS * (HEAD_DIM / 8); at += THREADS)
    reinterpret_cast<uint4 *>(rows + at / (HEAD_DIM / 8) * QUERY_STRIDE)[at % (HEAD_DIM / 8)] = make_uint4(0, 0, 0, 0);
}

// Puts K and V of the newest position into the item's last tile, if the item has them: the pool does not yet.
__device__ __forceinline__ void put_fresh(u8 *tile, const u8 *memory, const Item &item, u32 first, u32 lane) {
  if (first + TILE_KEYS < item.key_end || *reinterpret_cast<const u32 *>(memory + FRESH_SLOT_AT) == NONE) return;
  const u32 row = item.key_end - 1 - first;
  for (u32 at = lane; at < 2 * PIECES; at += 32) {
    u8 *to = tile + (at / PIECES * TILE_KEYS + row) * STRIDE;
    reinterpret_cast<uint4 *>(to)[at % PIECES] = reinterpret_cast<const uint4 *>(memory + FRESH_AT)[at];
  }
  if (IS_CODED && lane < 2) {
    float *scales = reinterpret_cast<float *>(tile + 2 * TILE_KEYS * STRIDE);
    scales[lane * TILE_KEYS + row] = reinterpret_cast<const float *>(memory + FRESH_SCALES_AT)[lane];
  }
  __syncwarp();
}

// Writes K and V of the newest position to the pool, if the item has them: after the copies from it, which include
// their slot.
__device__ __forceinline__ void store_fresh(const u8 *memory, const Params &params, u32 kv_head) {
  const u32 slot = *reinterpret_cast<const u32 *>(memory + FRESH_SLOT_AT);
  if (slot == NONE) return;
  for (u32 at = threadIdx.x; at < 2 * PIECES + 2; at += THREADS) {
    const bool is_scale = at >= 2 * PIECES;
    const u32 half = is_scale ? at - 2 * PIECES : at / PIECES;
    u8 *pool = half ? params.heads.values : params.heads.keys;
    const KvRow to = kv_row<KV>(pool, slot, kv_head, params.kv_heads, params.block_shift, HEAD_DIM);
    if (!is_scale)
      reinterpret_cast<uint4 *>(to.elements)[at % PIECES] = reinterpret_cast<const uint4 *>(memory + FRESH_AT)[at];
    else if (IS_CODED) *to.scale = reinterpret_cast<const float *>(memory + FRESH_SCALES_AT)[half];
  }
}
#endif

// Starts copying the query of an item; missing rows are zeros.
__device__ __forceinline__ void copy_query(u8 *memory, const Params &params, const Item &item, u32 kv_head) {
  u16 *rows = reinterpret_cast<u16 *>(memory + QUERY_AT);
  for (u32 at = threadIdx.x; at < ROWS * HEAD_DIM / 8; at += THREADS) {
    const u32 row = at / (HEAD_DIM / 8), column = at % (HEAD_DIM / 8) * 8;
    const bool has_row = row < item.count;
    const u64 offset = row_offset(params, item, item.first + (has_row ? row : 0), kv_head);
    copy_async_16_or_zero(rows + row * QUERY_STRIDE + column, params.q + offset + column, has_row);
  }
}

// Starts copying a tile; returns a bit mask of the parts that have no block.
__device__ __forceinline__ u32 copy_tile(u8 *stage, const Params &params, const Item &item, u32 kv_head, u32 first,
                                         u32 entry, u32 lane) {
  u8 *scales = stage + 2 * TILE_KEYS * STRIDE;
#pragma unroll
  for (u32 part = 0; part < TILE_KEYS / PART; part++) {
    const u32 block = __shfl_sync(ALL_LANES, entry, part), key = first + part * PART;
    const u32 row = part * PART, value_row = TILE_KEYS + row;
    copy_part<32, COPY_UNROLL>(stage + row * STRIDE, scales + row * 4, params.k, params, block, kv_head, key, item,
                               lane);
    copy_part<32, COPY_UNROLL>(stage + value_row * STRIDE, scales + value_row * 4, params.v, params, block, kv_head,
                               key, item, lane);
  }
  return __ballot_sync(ALL_LANES, lane < TILE_KEYS / PART && entry == NONE);
}

__device__ __forceinline__ void attend_tile(Rows<1> &rows, const Query &query, const u8 *stage,
                                            const Params &params, u32 all_begin, u32 all_end, const Span &span,
                                            u32 lane) {
  const float *scales = reinterpret_cast<const float *>(stage + 2 * TILE_KEYS * STRIDE);
  const bool is_masked = span.hidden || span.first < all_begin || span.first + TILE_KEYS > all_end;
  float4 scores[1][TILE_KEYS / 8];
  multiply_keys<1, TILE_KEYS, STEPS>(scores, stage, lane, query);
  make_exponents<1, TILE_KEYS>(scores, rows, params, span, scales, is_masked, lane);
  const float unit_factor = IS_CODED ? raise_unit<TILE_KEYS>(rows, span, scales + TILE_KEYS, lane) : 1.0f;
  const float factor = score_factor(params);
  raise_largest<1, TILE_KEYS>(rows, scores, factor, unit_factor);
  uint4 weights[1][TILE_KEYS / 16];
  make_weights<1, TILE_KEYS>(weights, scores, rows, span, scales + TILE_KEYS, factor, is_masked, lane);
  multiply_values<1, TILE_KEYS>(rows.out, weights, stage + TILE_KEYS * STRIDE, lane);
}

// The key at which a warp's first tile of an item begins; it has every WARPS-th tile.
constexpr u32 HOP = WARPS * TILE_KEYS;
__device__ __forceinline__ u32 first_key(const Item &item, u32 warp) {
  return item.key_begin / TILE_KEYS * TILE_KEYS + warp * TILE_KEYS;
}

// The warp's tile of a stage.
__device__ __forceinline__ u8 *tile_of(u8 *memory, u32 stage, u32 warp) {
  return memory + stage * STAGE_BYTES + warp * (STAGE_BYTES / WARPS);
}

// Starts copying the warp's first tile of an item to the first stage, and returns the parts of it without a block. The
// entries of the table were copied by copy_entries.
__device__ __forceinline__ u32 copy_first(u8 *memory, const Params &params, const Item &item, u32 kv_head, u32 warp,
                                          u32 lane) {
  const u32 *entries = reinterpret_cast<const u32 *>(memory + ENTRIES_AT) + warp * 2;
  const u32 first = first_key(item, warp), entry = lane < WARP_ENTRIES ? entries[lane] : NONE;
  __syncwarp();
  u32 hidden = 0;
  if (first < item.key_end) hidden = copy_tile(tile_of(memory, 0, warp), params, item, kv_head, first, entry, lane);
  copy_async_commit();
  return hidden;
}

// Starts copying the table's entries of the warp's first tile of an item. The lane that copies an entry reads it.
__device__ __forceinline__ void copy_entries(u8 *memory, const Params &params, const Item &item, u32 warp, u32 lane) {
  u32 *entry = reinterpret_cast<u32 *>(memory + ENTRIES_AT) + warp * 2 + lane;
  const u32 key = first_key(item, warp) + lane * PART;
  if (lane >= WARP_ENTRIES) return;
  if (key < item.key_end && key + PART > item.key_begin)
    copy_async_4(entry, params.metadata + table_of(params, item) + (key >> params.block_shift));
  else *entry = NONE;
}

// The warp's share of an item, whose first tile is on its way, with these parts hidden. Starts copying the next item's
// entries, if there is one.
__device__ __forceinline__ void attend_keys(Rows<1> &rows, u8 *memory, const Params &params, const Item &item,
                                            const u32 *next, u32 kv_head, u32 hidden, u32 warp, u32 lane) {
  const u32 table = table_of(params, item), begin = first_key(item, warp);
  u32 all_begin, all_end;
  common_keys(params, item, all_begin, all_end);
  u32 copied = begin + HOP, stage = 0;  // `hidden`: one byte per tile, the oldest lowest
  u32 entry = load_entry<TILE_KEYS>(params, table, item, copied, lane);
#pragma unroll
  for (u32 i = 1; i < STAGES - 1; i++) {
    if (copied < item.key_end)
      hidden |= copy_tile(tile_of(memory, i, warp), params, item, kv_head, copied, entry, lane) << 8 * i;
    copy_async_commit();
    copied += HOP;
    entry = load_entry<TILE_KEYS>(params, table, item, copied, lane);
  }
#ifdef STORES
  turn_heads(memory, params, item, kv_head);
#else
  copy_async_wait<STAGES - 2>();
#endif
  Query query;
  load_query(query, memory);
  if (next) copy_entries(memory, params, load_item(next), warp, lane);
  for (u32 first = begin; first < item.key_end; first += HOP) {
    copy_async_wait<STAGES - 2>();
    __syncwarp();
    // The next tile goes into the stage that all lanes have finished reading.
    const u32 free = stage == 0 ? STAGES - 1 : stage - 1;
    if (copied < item.key_end)
      hidden |= copy_tile(tile_of(memory, free, warp), params, item, kv_head, copied, entry, lane) << 8 * (STAGES - 1);
    copy_async_commit();
    copied += HOP;
    entry = load_entry<TILE_KEYS>(params, table, item, copied, lane);
    const Span span = {first, item.key_begin, item.key_end, hidden & 255u};
#ifdef STORES
    put_fresh(tile_of(memory, stage, warp), memory, item, first, lane);
#endif
    attend_tile(rows, query, tile_of(memory, stage, warp), params, all_begin, all_end, span, lane);
    hidden >>= 8;
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  copy_async_commit();  // of a warp without a tile
  copy_async_wait<0>();
  end_rows(rows, params);
}

// Attends to an item, whose first tiles and query are on their way, and starts copying those of the next one, if there
// is one. `hidden` are the parts of the warp's first tile without a block, of this item and then of the next.
__device__ __forceinline__ void attend_item(u8 *memory, const Params &params, const u32 *words, u32 kv_head,
                                            const u32 *next, u32 next_head, u32 &hidden) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Rows<1> rows;
  {
    const Item item = load_item(words);
    begin_rows(rows, params, item, 0, kv_head, lane);
    attend_keys(rows, memory, params, item, next, kv_head, hidden, warp, lane);
  }
  if (next) hidden = copy_first(memory, params, load_item(next), next_head, warp, lane);
  __syncthreads();
  // Loaded again, rather than kept in registers through the loop.
  const Item item = load_item(words);
  constexpr u32 WARP_FLOATS = ROWS * (SUM_STRIDE + 2);
  float *sums = reinterpret_cast<float *>(memory + SUMS_AT);
  put_sums(sums + warp * WARP_FLOATS, rows, lane);
#ifdef STORES
  store_fresh(memory, params, kv_head);
#else
  if (next) copy_query(memory, params, load_item(next), next_head);
#endif
  copy_async_commit();
  __syncthreads();
  float *part = item.slot == NONE ? nullptr : part_of(params, item.slot, kv_head);
  for (u32 row = threadIdx.x / 8; row < item.count; row += THREADS / 8) {
    const float *of_row = sums + ROWS * SUM_STRIDE + row * 2;
    join_row(params, item, kv_head, row, WARPS, part,
             [&](u32 i) { return *reinterpret_cast<const float2 *>(of_row + i * WARP_FLOATS); },
             [&](u32 i, u32 column) {
               return *reinterpret_cast<const float4 *>(sums + i * WARP_FLOATS + row * SUM_STRIDE + column);
             });
  }
  if (part) join_parts(sums, params, item, kv_head);
  __syncthreads();
}

KERNEL(attend_paged_decode, THREADS, 2) {
  DYNAMIC_SHARED(u8, memory);
  const u32 *work = work_list(params);
  const u32 lanes = work[LANE_LIST_LANES], *starts = work + LANE_LIST_WORDS, *items = starts + lanes + 1;
  const u32 units = lanes * params.kv_heads;
  u32 unit = blockIdx.x, at = unit < units ? starts[unit / params.kv_heads] : 0, hidden = 0;
  if (unit < units) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Item item = load_item(items + at * LANE_ITEM_WORDS);
    copy_entries(memory, params, item, warp, lane);
    copy_async_commit();
    copy_async_wait<0>();
#ifndef STORES
    copy_query(memory, params, item, unit % params.kv_heads);
#endif
    hidden = copy_first(memory, params, item, unit % params.kv_heads, warp, lane);
  }
  while (unit < units) {
    const u32 kv_head = unit % params.kv_heads, *words = items + at * LANE_ITEM_WORDS;
    at++;
    if (at == starts[unit / params.kv_heads + 1]) {
      unit += gridDim.x;
      if (unit < units) at = starts[unit / params.kv_heads];
    }
    const u32 *next = unit < units ? items + at * LANE_ITEM_WORDS : nullptr;
    attend_item(memory, params, words, kv_head, next, unit % params.kv_heads, hidden);
  }
}
