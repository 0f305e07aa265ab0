// Paged attention of many packed rows, on tensor cores, following FlashAttention-2.
//
//   out = Σ p_j · v_j / (Σ p_j + e^(sink − m)),  p_j = e^(s_j − m)
//   s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// q, out: [tokens][query heads][HEAD_DIM]; K, V: tiles [block][kv head] of the pool; work list: common/attend.cuh.
// One block: one item of up to ROWS = 16 · WARP_STRIPS · WARPS packed rows × one KV head, 16 · WARP_STRIPS rows a warp,
// tiles of TILE_KEYS keys. Values are copied during the query · key products, the next keys during the weight · value
// products.
// Threads: 32 · WARPS. Grid: maximum items for the bucket's rows × KV heads; the list's longest items come first.
// Shared: ROWS · 16 · (HEAD_DIM / 8 | 1) + tile_bytes(TILE_KEYS), and 4 · ROWS with two strips.
// -D: HEAD_DIM (multiple of 16, ≤ 256), WARPS (4, 8), WARP_STRIPS (1; 2 for HEAD_DIM ≤ 128), TILE_KEYS (32, 64),
// OUT_TYPE (u16, float), Q_TYPE=u16, KV_Q8, KV_FP8, SOFTCAP, ALIBI. Twin: backend/reference/attend_paged.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/attend_rows.cuh"

// The largest tile takes all registers but a few, and compilers differ in how many they need for addresses of copies.
constexpr bool IS_LARGEST = WARP_STRIPS == 2 && HEAD_DIM > 96 && TILE_KEYS == 64;
// Small, since the sums take most of the registers.
constexpr u32 COPY_UNROLL = !IS_LARGEST ? 4 : IS_CODED ? 2 : 1, STEP_UNROLL = 2;
constexpr u32 THREADS = 32 * WARPS, WARP_ROWS = 16 * WARP_STRIPS, ROWS = WARP_ROWS * WARPS;
constexpr u32 QUERY_PIECES = HEAD_DIM / 8, QUERY_STRIDE = (QUERY_PIECES | 1) * 16;
constexpr u32 PARTS = TILE_KEYS / PART, PART_WARPS = WARPS / PARTS;  // warps that copy a part
static_assert(WARPS % PARTS == 0, "whole warps copy a part");

struct Memory {
  u8 *query, *keys, *values, *scales;
};

// Each warp loads its own rows of the query as f16, with elements in the same order as the keys'; missing rows are
// zeros.
__device__ __forceinline__ void load_query(u8 *query, const Params &params, const Item &item, u32 kv_head, u32 first,
                                           u32 lane) {
  for (u32 at = lane; at < WARP_ROWS * STEPS; at += 32) {
    const u32 row = at / STEPS, step = at % STEPS;
    uint4 a = make_uint4(0, 0, 0, 0), b = a;
    if (first + row < item.count) {
      const u16 *q = params.q + row_offset(params, item, item.first + first + row, kv_head) + step * 16;
      a = reinterpret_cast<const uint4 *>(q)[0];
      b = reinterpret_cast<const uint4 *>(q)[1];
    }
    u32 w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (u32 i = 0; i < 8; i++) w[i] = pack_f16(clamp_f16(bf16_low(w[i])), clamp_f16(bf16_high(w[i])));
    uint4 *to = reinterpret_cast<uint4 *>(query + row * QUERY_STRIDE + step * 32);
    to[0] = IS_CODED ? make_uint4(w[0], w[2], w[4], w[6]) : make_uint4(w[0], w[1], w[2], w[3]);
    to[1] = IS_CODED ? make_uint4(w[1], w[3], w[5], w[7]) : make_uint4(w[4], w[5], w[6], w[7]);
  }
  __syncwarp();
}

// Starts copying the keys, or the values, of the tile at `first`; returns a bit mask of the parts that have no block.
__device__ __forceinline__ u32 copy_tile(u8 *rows, u8 *scales, const u8 *pool, const Params &params, u32 table,
                                         const Item &item, u32 kv_head, u32 first) {
  const u32 lane = threadIdx.x % 32, part = threadIdx.x / 32 / PART_WARPS;
  const u32 entry = load_entry<TILE_KEYS>(params, table, item, first, lane);
  const u32 block = __shfl_sync(ALL_LANES, entry, part);
  copy_part<32 * PART_WARPS, COPY_UNROLL>(rows + part * PART * STRIDE, scales + part * PART * 4, pool, params, block,
                                          kv_head, first + part * PART, item, threadIdx.x % (32 * PART_WARPS));
  copy_async_commit();
  return __ballot_sync(ALL_LANES, lane < PARTS && entry == NONE);
}

__device__ __forceinline__ void attend_keys(Rows<WARP_STRIPS> &rows, const Memory &memory, const Params &params,
                                            const Item &item, u32 kv_head, u32 lane) {
  const u32 table = table_of(params, item);
  u8 *key_scales = memory.scales, *value_scales = key_scales + TILE_KEYS * 4;
  u32 all_begin, all_end, first = item.key_begin / TILE_KEYS * TILE_KEYS;
  common_keys(params, item, all_begin, all_end);
  const u8 *query = memory.query + lane % 16 * QUERY_STRIDE + lane / 16 * 16;
  u32 hidden = copy_tile(memory.keys, key_scales, params.k, params, table, item, kv_head, first);
  for (; first < item.key_end; first += TILE_KEYS) {
    copy_async_wait<0>();
    __syncthreads();
    copy_tile(memory.values, value_scales, params.v, params, table, item, kv_head, first);
    const Span span = {first, item.key_begin, item.key_end, hidden};
    const bool is_masked = hidden || first < all_begin || first + TILE_KEYS > all_end;
    const float factor = score_factor(params);
    float4 scores[WARP_STRIPS][TILE_KEYS / 8];
    multiply_keys<WARP_STRIPS, TILE_KEYS, STEP_UNROLL>(scores, memory.keys, lane, [&](u32 strip, u32 step) {
      return load_matrices(query + strip * 16 * QUERY_STRIDE + step * 32);
    });
    make_exponents<WARP_STRIPS, TILE_KEYS>(scores, rows, params, span, reinterpret_cast<float *>(key_scales), is_masked,
                                           lane);
    copy_async_wait<0>();
    __syncthreads();
    if (first + TILE_KEYS < item.key_end)
      hidden = copy_tile(memory.keys, key_scales, params.k, params, table, item, kv_head, first + TILE_KEYS);
    const float *scales = reinterpret_cast<float *>(value_scales);
    const float unit_factor = IS_CODED ? raise_unit<TILE_KEYS>(rows, span, scales, lane) : 1.0f;
    raise_largest<WARP_STRIPS, TILE_KEYS>(rows, scores, factor, unit_factor);
    uint4 weights[WARP_STRIPS][TILE_KEYS / 16];
    make_weights<WARP_STRIPS, TILE_KEYS>(weights, scores, rows, span, scales, factor, is_masked, lane);
    multiply_values<WARP_STRIPS, TILE_KEYS>(rows.out, weights, memory.values, lane);
  }
  end_rows(rows, params);
}

KERNEL(attend_paged_prefill, THREADS, WARPS == 4 ? 2 : 1) {
  DYNAMIC_SHARED(u8, shared);
  if (blockIdx.x / params.kv_heads >= work_list(params)[2]) return;
  const u32 kv_head = blockIdx.x % params.kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Memory memory;
  memory.query = shared + warp * WARP_ROWS * QUERY_STRIDE;
  memory.keys = shared + ROWS * QUERY_STRIDE;
  memory.values = memory.keys + TILE_KEYS * STRIDE;
  memory.scales = memory.values + TILE_KEYS * STRIDE;
  Rows<WARP_STRIPS> rows;
  if constexpr (WARP_STRIPS > 1)
    rows.positions = reinterpret_cast<u32 *>(memory.scales + 2 * TILE_KEYS * SCALE_BYTES) + warp * WARP_ROWS + lane / 4;
  {
    const Item item = own_item(params);
    load_query(memory.query, params, item, kv_head, warp * WARP_ROWS, lane);
    begin_rows(rows, params, item, warp * WARP_ROWS, kv_head, lane);
    attend_keys(rows, memory, params, item, kv_head, lane);
  }
  const Item item = own_item(params);
#pragma unroll
  for (u32 i = 0; i < 2 * WARP_STRIPS; i++) {
    const u32 row = warp * WARP_ROWS + i * 8 + lane / 4;
    if (row < item.count) store_row(rows, params, item, kv_head, i, item.first + row, lane);
  }
}
