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
// Threads: 32 · WARPS. Grid: any, about what the device runs at once.
// Shared: WARPS · STAGES · tile_bytes(TILE_KEYS), and 32 · HEAD_DIM for the query if HEAD_DIM > 176.
// -D: HEAD_DIM (multiple of 16, ≤ 256), WARPS (4, 2), TILE_KEYS (16 or 32; 32 with codes), STAGES (2 to 4),
// OUT_TYPE (u16, float), Q_TYPE=u16, KV_Q8, KV_FP8, SOFTCAP, ALIBI. Twin: backend/reference/attend_paged.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/attend_tile.cuh"

constexpr u32 COPY_UNROLL = HEAD_DIM > 128 ? 1 : 16;
constexpr u32 THREADS = 32 * WARPS, PARTS_MAX = 64, ROWS = 16;
constexpr u32 STAGE_BYTES = tile_bytes(TILE_KEYS);
constexpr u32 SUM_STRIDE = HEAD_DIM + 8;  // avoids bank conflicts between rows
constexpr u32 TILES_BYTES = WARPS * STAGES * STAGE_BYTES;
constexpr bool QUERY_IS_SHARED = HEAD_DIM > 176;  // stored after the tiles
static_assert(WARPS * ROWS * (SUM_STRIDE + 2) * 4 <= TILES_BYTES, "sums fit where the tiles were");
static_assert(PARTS_MAX * ROWS * 8 <= TILES_BYTES, "largest and sum of the parts do too");

// The query operand of one step, with elements in the same order as the keys'; missing rows are zeros.
__device__ __forceinline__ uint4 load_query(const Params &params, const Item &item, u32 kv_head, u32 step, u32 lane) {
  uint4 a;
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    const u32 row = half * 8 + lane / 4;
    const bool has_row = row < item.count;
    const u64 offset = row_offset(params, item, item.first + (has_row ? row : 0), kv_head);
    const u32 *q = reinterpret_cast<const u32 *>(params.q + offset) + step * 8;
    const u32 at = IS_CODED ? lane % 4 * 2 : lane % 4;
    const u32 first = has_row ? q[at] : 0, second = has_row ? q[at + (IS_CODED ? 1 : 4)] : 0;
    (half ? a.y : a.x) = pack_f16(clamp_f16(bf16_low(first)), clamp_f16(bf16_high(first)));
    (half ? a.w : a.z) = pack_f16(clamp_f16(bf16_low(second)), clamp_f16(bf16_high(second)));
  }
  return a;
}

// Kept in registers if they have room for it, otherwise in shared memory.
struct Query {
  uint4 steps[QUERY_IS_SHARED ? 1 : STEPS];
  const uint4 *shared;
  __device__ __forceinline__ uint4 operator()(u32, u32 step) const {
    return QUERY_IS_SHARED ? shared[step * 32] : steps[QUERY_IS_SHARED ? 0 : step];
  }
};

__device__ __forceinline__ void load_query(Query &query, uint4 *shared, const Params &params, const Item &item,
                                           u32 kv_head) {
  const u32 lane = threadIdx.x % 32;
  query.shared = shared + lane;
  if constexpr (QUERY_IS_SHARED) {
    for (u32 step = threadIdx.x / 32; step < STEPS; step += WARPS)
      shared[step * 32 + lane] = load_query(params, item, kv_head, step, lane);
    __syncthreads();
  } else {
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) query.steps[step] = load_query(params, item, kv_head, step, lane);
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

// The warp's share of an item: tiles `warp`, `warp + WARPS`, …
__device__ __forceinline__ void attend_keys(Rows<1> &rows, const Query &query, u8 *stages, const Params &params,
                                            const Item &item, u32 kv_head, u32 warp, u32 lane) {
  const u32 table = table_of(params, item);
  u32 all_begin, all_end;
  common_keys(params, item, all_begin, all_end);
  constexpr u32 HOP = WARPS * TILE_KEYS;
  const u32 begin = item.key_begin / TILE_KEYS * TILE_KEYS + warp * TILE_KEYS;
  u32 copied = begin, stage = 0, hidden = 0;  // one byte per tile, the oldest lowest
  u32 entry = load_entry<TILE_KEYS>(params, table, item, begin, lane);
#pragma unroll
  for (u32 i = 0; i < STAGES - 1; i++) {
    if (copied < item.key_end)
      hidden |= copy_tile(stages + i * STAGE_BYTES, params, item, kv_head, copied, entry, lane) << 8 * i;
    copy_async_commit();
    copied += HOP;
    entry = load_entry<TILE_KEYS>(params, table, item, copied, lane);
  }
  for (u32 first = begin; first < item.key_end; first += HOP) {
    copy_async_wait<STAGES - 2>();
    __syncwarp();
    // The next tile goes into the stage that all lanes have finished reading.
    const u32 free = stage == 0 ? STAGES - 1 : stage - 1;
    if (copied < item.key_end)
      hidden |= copy_tile(stages + free * STAGE_BYTES, params, item, kv_head, copied, entry, lane) << 8 * (STAGES - 1);
    copy_async_commit();
    copied += HOP;
    entry = load_entry<TILE_KEYS>(params, table, item, copied, lane);
    const Span span = {first, item.key_begin, item.key_end, hidden & 255u};
    attend_tile(rows, query, stages + stage * STAGE_BYTES, params, all_begin, all_end, span, lane);
    hidden >>= 8;
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  copy_async_wait<0>();
  end_rows(rows, params);
}

// Stores the warp's sums as [row][column], then largest and sum as [row].
__device__ __forceinline__ void put_sums(float *sums, const Rows<1> &rows, u32 lane) {
  const float unit = unit_of(rows);
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    float *row = sums + (half * 8 + lane / 4) * SUM_STRIDE;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
      const float4 a = rows.out[0][2 * step], b = rows.out[0][2 * step + 1];
      const float2 low = half ? make_float2(a.z, a.w) : make_float2(a.x, a.y);
      const float2 high = half ? make_float2(b.z, b.w) : make_float2(b.x, b.y);
      if (IS_CODED) {
        *reinterpret_cast<float4 *>(row + step * 16 + lane % 4 * 4) =
            make_float4(low.x * unit, high.x * unit, low.y * unit, high.y * unit);
      } else {
        *reinterpret_cast<float2 *>(row + step * 16 + lane % 4 * 2) = low;
        *reinterpret_cast<float2 *>(row + step * 16 + 8 + lane % 4 * 2) = high;
      }
    }
    if (lane % 4 == 0)
      *reinterpret_cast<float2 *>(sums + ROWS * SUM_STRIDE + (half * 8 + lane / 4) * 2) =
          make_float2(rows.largest[half], half ? rows.sum.z : rows.sum.x);
  }
}

__device__ __forceinline__ void add_scaled(float4 &sum, float by, const float4 &value) {
  sum.x += by * value.x;
  sum.y += by * value.y;
  sum.z += by * value.z;
  sum.w += by * value.w;
}

__device__ __forceinline__ void store_four(float *to, const float4 &v) { *reinterpret_cast<float4 *>(to) = v; }
__device__ __forceinline__ void store_four(u16 *to, const float4 &v) {
  *reinterpret_cast<uint2 *>(to) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

// Stores four columns of a finished row.
__device__ __forceinline__ void store_result(const Params &params, const Item &item, u32 kv_head, u32 row, u32 column,
                                             float4 sum, float factor) {
  const float4 result = make_float4(sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor);
  store_four(params.out + row_offset(params, item, item.first + row, kv_head) + column, result);
}

// Joins the partial results of a row from PIECES_COUNT sources: `shares(i)` is largest and sum, `values(i, column)` is
// four columns.
template <typename Shares, typename Values>
__device__ __forceinline__ void join_row(const Params &params, const Item &item, u32 kv_head, u32 row, u32 count,
                                         float *part, Shares shares, Values values) {
  float largest = LOWEST, sum = 0.0f;
  for (u32 i = 0; i < count; i++) largest = fmaxf(largest, shares(i).x);
  for (u32 i = 0; i < count; i++) sum += share(shares(i).x, largest) * shares(i).y;
  const u32 lane = threadIdx.x % 8;
  const u32 head = kv_head * params.group + (item.first + row) % params.group;
  const float factor = part ? 1.0f : final_factor(params, largest, sum, head);
  for (u32 column = lane * 4; column < HEAD_DIM; column += 32) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (u32 i = 0; i < count; i++) add_scaled(total, share(shares(i).x, largest), values(i, column));
    if (part) store_four(part + row * HEAD_DIM + column, total);
    else store_result(params, item, kv_head, row, column, total, factor);
  }
  if (part && lane == 0) *reinterpret_cast<float2 *>(part + ROWS * HEAD_DIM + row * 2) = make_float2(largest, sum);
}

__device__ __forceinline__ float *part_of(const Params &params, u32 slot, u32 kv_head) {
  return params.scratch + (static_cast<u64>(slot) * params.kv_heads + kv_head) * (ROWS * (HEAD_DIM + 2));
}

// Joins the parts of the item's rows, if this block wrote the last part.
__device__ __forceinline__ void join_parts(float *memory, const Params &params, const Item &item, u32 kv_head) {
  __threadfence();
  __syncthreads();
  u32 *is_last = reinterpret_cast<u32 *>(memory);
  if (threadIdx.x == 0) {
    u32 *counter = params.counters + item.counter * params.kv_heads + kv_head;
    const u32 before = atomicAdd(counter, 1u);
    *is_last = before + 1 == item.parts;
    if (before + 1 == item.parts) *counter = 0;
  }
  __syncthreads();
  const bool joins = *is_last != 0;
  __syncthreads();
  if (!joins) return;
  __threadfence();
  float2 *shares = reinterpret_cast<float2 *>(memory);
  for (u32 at = threadIdx.x; at < item.parts * ROWS; at += THREADS) {
    const float *part = part_of(params, item.slot_first + at / ROWS, kv_head) + ROWS * HEAD_DIM;
    if (at % ROWS < item.count) shares[at] = load_fresh(reinterpret_cast<const float2 *>(part) + at % ROWS);
  }
  __syncthreads();
  for (u32 row = threadIdx.x / 8; row < item.count; row += THREADS / 8) {
    const float *values = part_of(params, item.slot_first, kv_head) + row * HEAD_DIM;
    const u64 stride = static_cast<u64>(params.kv_heads) * ROWS * (HEAD_DIM + 2);
    join_row(params, item, kv_head, row, item.parts, nullptr, [&](u32 i) { return shares[i * ROWS + row]; },
             [&](u32 i, u32 column) {
               return load_fresh(reinterpret_cast<const float4 *>(values + i * stride + column));
             });
  }
}

__device__ __forceinline__ void attend_item(u8 *memory, const Params &params, const u32 *words, u32 kv_head) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Rows<1> rows;
  {
    const Item item = load_item(words);
    begin_rows(rows, params, item, 0, kv_head, lane);
    Query query;
    load_query(query, reinterpret_cast<uint4 *>(memory + TILES_BYTES), params, item, kv_head);
    attend_keys(rows, query, memory + warp * STAGES * STAGE_BYTES, params, item, kv_head, warp, lane);
  }
  __syncthreads();
  // Loaded again, rather than kept in registers through the loop.
  const Item item = load_item(words);
  constexpr u32 WARP_FLOATS = ROWS * (SUM_STRIDE + 2);
  float *sums = reinterpret_cast<float *>(memory);
  put_sums(sums + warp * WARP_FLOATS, rows, lane);
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
  for (u32 unit = blockIdx.x; unit < lanes * params.kv_heads; unit += gridDim.x) {
    const u32 lane = unit / params.kv_heads, kv_head = unit % params.kv_heads;
    for (u32 i = starts[lane]; i < starts[lane + 1]; i++)
      attend_item(memory, params, items + i * LANE_ITEM_WORDS, kv_head);
  }
}
