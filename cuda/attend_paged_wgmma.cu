// Paged attention of many packed rows on Hopper's tensor cores: attend_paged_prefill.cu with the products of warpgroups
// (common/wgmma.cuh), for f16 pools, without softcap and ALiBi.
//
// out, q, K, V and the work list: attend_paged_prefill.cu. One block: one item of up to 128 packed rows × one KV head.
// Each of two warpgroups has 64 rows, and a lane holds of them what it holds of 16 rows of mma.sync, so the rest is
// common/attend_tile.cuh.
// Tiles of 128 keys in two stages. While a tile's scores are multiplied and turned into weights, the tensor cores
// multiply the weights of the tile before with its values, and the copies of this tile's values and the next tile's
// keys run. Copies are cp.async of 16 bytes: 16 keys are consecutive in a pool, but the blocks of a tile are anywhere,
// so TMA would need a copy per block, of a fixed size, and could leave out no keys.
// Threads: 256. Grid: as attend_paged_prefill.cu.
// Shared: 1024 + (128 + 4 · 128) · 2 · HEAD_DIM.
// -D: HEAD_DIM (64, 128), OUT_TYPE (u16, float), Q_TYPE=u16. Twin: backend/reference/attend_paged.rs
// Compiled for sm_90a and run on the host; not yet run on a GPU.

#include "common/attend_rows.cuh"
#include "common/wgmma.cuh"

constexpr u32 THREADS = 256, GROUP_THREADS = 128, GROUP_ROWS = 64, ROWS = THREADS / GROUP_THREADS * GROUP_ROWS;
constexpr u32 TILE_KEYS = 128, PARTS = TILE_KEYS / PART, PANELS = HEAD_DIM / PANEL_COLUMNS;
constexpr u32 ROWS_PANEL = ROWS * PANEL_ROW, KEYS_PANEL = TILE_KEYS * PANEL_ROW, STAGE = PANELS * KEYS_PANEL;  // bytes
constexpr u32 PANEL_STEPS = PANEL_COLUMNS / 16, STEP_BYTES = 32;
static_assert(IS_PLAIN && PARTS == THREADS / 32, "a warp copies a part");

struct Memory {
  u8 *query, *keys, *values;  // two stages each of keys and values
};
typedef float4 Scores[1][TILE_KEYS / 8];
typedef uint4 Weights[TILE_KEYS / 16];

// Loads the query as f16; missing rows are zeros.
__device__ __forceinline__ void load_query(u8 *query, const Params &params, const Item &item, u32 kv_head) {
#pragma unroll 2
  for (u32 at = threadIdx.x; at < ROWS * PIECES; at += THREADS) {
    const u32 row = at / PIECES, piece = at % PIECES;
    uint4 w = make_uint4(0, 0, 0, 0);
    if (row < item.count)
      w = *reinterpret_cast<const uint4 *>(params.q + row_offset(params, item, item.first + row, kv_head) + piece * 8);
    u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++)
      words[i] = pack_f16(clamp_f16(bf16_low(words[i])), clamp_f16(bf16_high(words[i])));
    u8 *to = query + piece / 8 * ROWS_PANEL + panel_offset(row, piece % 8);
    *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Starts copying the keys, or the values, of the tile at `first`; returns a bit mask of the parts that have no block.
__device__ __forceinline__ u32 copy_tile(u8 *tile, const u8 *pool, const Params &params, u32 table, const Item &item,
                                         u32 kv_head, u32 first) {
  const u32 lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const u32 entry = load_entry<TILE_KEYS>(params, table, item, first, lane);
  const u32 block = __shfl_sync(ALL_LANES, entry, part);
  const u32 slots = 1u << params.block_shift, key = first + part * PART, slot = key & (slots - 1);
  const bool block_is_there = block != NONE;
  const u64 start = block_is_there ? static_cast<u64>(block) * params.kv_heads + kv_head : 0;
  const u8 *from = pool + start * (slots * SLOT_BYTES) + slot * ROW_BYTES;
#pragma unroll
  for (u32 i = 0; i < PART * PIECES / 32; i++) {
    const u32 at = lane + i * 32, row = at / PIECES, piece = at % PIECES;
    const bool key_is_there = key + row - item.key_begin < item.key_end - item.key_begin;
    copy_async_16_or_zero(tile + piece / 8 * KEYS_PANEL + panel_offset(part * PART + row, piece % 8), from + at * 16,
                          block_is_there && key_is_there);
  }
  return __ballot_sync(ALL_LANES, lane < PARTS && entry == NONE);
}

// Starts scores = query · keysᵀ.
__device__ __forceinline__ void start_scores(Scores &scores, u64 query, const u8 *keys) {
  const u64 b = describe_panels(keys, KEYS_PANEL);
#pragma unroll
  for (u32 step = 0; step < STEPS; step++) {
    const u32 panel = step / PANEL_STEPS, column = step % PANEL_STEPS * STEP_BYTES;
    const u64 a = moved(query, panel * ROWS_PANEL + column);
    multiply_rows(scores[0], a, moved(b, panel * KEYS_PANEL + column), step > 0);
  }
  products_commit();
}

// Starts out += weights · values.
__device__ __forceinline__ void start_values(Rows<1> &rows, const Weights &weights, const u8 *values) {
  const u64 b = describe_panels(values, KEYS_PANEL);
#pragma unroll
  for (u32 i = 0; i < TILE_KEYS / 16; i++) multiply_columns(rows.out[0], weights[i], moved(b, i * 16 * PANEL_ROW));
  products_commit();
}

// Turns a tile's scores into weights, in place, and adds them up; returns the factors for the sums of both rows so far.
__device__ __forceinline__ float2 weigh(Scores &scores, Rows<1> &rows, float factor) {
  float rescale[2], base[2];
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    float largest = rows.largest[i];
#pragma unroll
    for (u32 n = 0; n < TILE_KEYS / 8; n++) {
      const float4 &four = scores[0][n];
      largest = fmaxf(largest, i ? fmaxf(four.z, four.w) : fmaxf(four.x, four.y));
    }
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
    rescale[i] = exp2_near((rows.largest[i] - largest) * factor);
    base[i] = largest == LOWEST ? 0.0f : largest * factor;
    rows.largest[i] = largest;
  }
  float low = 0.0f, high = 0.0f;
#pragma unroll
  for (u32 n = 0; n < TILE_KEYS / 8; n++) {
    float4 &four = scores[0][n];
    four.x = exp2_near(four.x * factor - base[0]);
    four.y = exp2_near(four.y * factor - base[0]);
    four.z = exp2_near(four.z * factor - base[1]);
    four.w = exp2_near(four.w * factor - base[1]);
    low += four.x + four.y;
    high += four.z + four.w;
  }
  rows.sum.x = rows.sum.x * rescale[0] + low;
  rows.sum.z = rows.sum.z * rescale[1] + high;
  return make_float2(rescale[0], rescale[1]);
}

__device__ __forceinline__ void pack_weights(Weights &weights, const Scores &scores) {
#pragma unroll
  for (u32 i = 0; i < TILE_KEYS / 16; i++) {
    const float4 a = scores[0][2 * i], b = scores[0][2 * i + 1];
    weights[i] = make_uint4(pack_f16(a.x, a.y), pack_f16(a.z, a.w), pack_f16(b.x, b.y), pack_f16(b.z, b.w));
  }
}

__device__ __forceinline__ void rescale_out(Rows<1> &rows, float2 rescale) {
#pragma unroll
  for (u32 i = 0; i < 2 * STEPS; i++) {
    float4 &four = rows.out[0][i];
    four.x *= rescale.x;
    four.y *= rescale.x;
    four.z *= rescale.y;
    four.w *= rescale.y;
  }
}

// Waits for all copies, and shows them to the products of all threads. All have waited for their products of the tile
// before the last one, whose stage may then be overwritten.
__device__ __forceinline__ void await_copies() {
  copy_async_wait<0>();
  proxy_fence();
  __syncthreads();
}

__device__ __forceinline__ void attend_keys(Rows<1> &rows, const Memory &memory, const Params &params,
                                            const Item &item, u32 kv_head, u32 lane) {
  const u32 table = table_of(params, item);
  const u64 query = describe_panels(memory.query + threadIdx.x / GROUP_THREADS * GROUP_ROWS * PANEL_ROW, ROWS_PANEL);
  const float factor = score_factor(params);
  u32 all_begin, all_end, first = item.key_begin / TILE_KEYS * TILE_KEYS, stage = 0;
  common_keys(params, item, all_begin, all_end);
  u32 hidden = 0, next_hidden = copy_tile(memory.keys, params.k, params, table, item, kv_head, first);
  copy_async_commit();
  // Awaits this tile's keys and the values before it, and starts the copies of the next keys and this tile's values.
  const auto exchange_tiles = [&] {
    await_copies();
    hidden = next_hidden;
    if (first + TILE_KEYS < item.key_end)
      next_hidden =
          copy_tile(memory.keys + (stage ^ STAGE), params.k, params, table, item, kv_head, first + TILE_KEYS);
    copy_tile(memory.values + stage, params.v, params, table, item, kv_head, first);
    copy_async_commit();
  };
  Scores scores;
  Weights weights;
  const auto weigh_tile = [&] {
    products_hold(scores[0]);
    const Span span = {first, item.key_begin, item.key_end, hidden};
    if (hidden || first < all_begin || first + TILE_KEYS > all_end)
      make_exponents<1, TILE_KEYS>(scores, rows, params, span, nullptr, true, lane);
    return weigh(scores, rows, factor);
  };
  // The first tile stands apart: compilers let products overlap only if no branch lies between them.
  exchange_tiles();
  products_fence();
  start_scores(scores, query, memory.keys);
  products_wait<0>();
  weigh_tile();
  pack_weights(weights, scores);
  for (first += TILE_KEYS; first < item.key_end; first += TILE_KEYS) {
    stage ^= STAGE;
    exchange_tiles();
    products_hold(rows.out[0]);
    products_hold(weights);
    products_fence();
    start_scores(scores, query, memory.keys + stage);
    start_values(rows, weights, memory.values + (stage ^ STAGE));
    products_wait<1>();
    const float2 rescale = weigh_tile();
    products_wait<0>();
    products_hold(rows.out[0]);
    rescale_out(rows, rescale);
    pack_weights(weights, scores);
  }
  await_copies();
  products_hold(rows.out[0]);
  products_hold(weights);
  products_fence();
  start_values(rows, weights, memory.values + stage);
  products_wait<0>();
  products_hold(rows.out[0]);
}

// Sums over whole rows.
__device__ __forceinline__ void join_lanes(Rows<1> &rows) {
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    float &sum = sum_of(rows.sum, i);
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
  }
}

KERNEL(attend_paged_wgmma, THREADS, 1) {
  DYNAMIC_SHARED(u8, shared);
  if (blockIdx.x / params.kv_heads >= work_list(params)[LANE_LIST_TILES]) return;
  const u32 kv_head = blockIdx.x % params.kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Memory memory;
  memory.query = shared + (PANEL_ALIGN - shared_address(shared) % PANEL_ALIGN) % PANEL_ALIGN;
  memory.keys = memory.query + PANELS * ROWS_PANEL;
  memory.values = memory.keys + 2 * STAGE;
  Rows<1> rows;
  {
    const Item item = own_item(params);
    load_query(memory.query, params, item, kv_head);
    begin_rows(rows, params, item, warp * 16, kv_head, lane);
    attend_keys(rows, memory, params, item, kv_head, lane);
  }
  join_lanes(rows);
  end_rows(rows, params);
  const Item item = own_item(params);
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    const u32 row = warp * 16 + i * 8 + lane / 4;
    if (row < item.count) store_row(rows, params, item, kv_head, i, item.first + row, lane);
  }
}
