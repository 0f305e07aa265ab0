// What is computed of a chunk of tokens without the state, for state_scan_chunks.cu: see there. Variants: DELTA,
// SLICES, STEPS; types of row buffers as in state_scan.cuh.

#pragma once
#include "common/parts.cuh"
#include "common/state_scan.cuh"

constexpr u32 CHUNK = 16, THREADS = 256;
// Threads that hold the state, and then as many that prepare chunks.
constexpr u32 STATE_THREADS = THREADS / 2, COLUMNS = STATE_THREADS / 32 / SLICES * 16;
// Keys of a warp, and of a block. A row in shared memory has 16 bytes more, so that eight rows lie in all banks.
constexpr u32 SLICE = 16 * STEPS, KEYS = SLICES * SLICE, ROW = KEYS + 8;
constexpr u32 PARTS = sizeof(X_TYPE) == 2 ? 1 : 3;
// Keys, then queries of a chunk, for each part.
constexpr u32 ROWS = PARTS * 2 * CHUNK * ROW;
// Rows are copied two chunks ahead.
constexpr u32 STAGES = 3;
constexpr u32 KEPT = CHUNK + 1, PRODUCTS = CHUNK + 4, INVERSE = CHUNK + 8;

// What the gates of a chunk say. kept[i · KEPT + j] = g(i, j), 0 for j > i; j = CHUNK: g(i).
struct Decays {
  float kept[CHUNK * KEPT], rate[CHUNK];
};

// What is computed of a chunk without the state. The state's products with k_i and q_i times known and read are what is
// known of v_i and read from it; written_i times tail is added to the state.
struct alignas(16) Chunk {
  u16 inverse[3][CHUNK * INVERSE];  // (1 + L)⁻¹ in parts, a column in each row
  u32 reads[3][2][2][32];           // g(i, j) (q_i · k_j) in parts, as right operands: [eight i][eight j][lane]
  float value[CHUNK], known[CHUNK], read[CHUNK], query[CHUNK], tail[CHUNK];
  float whole;  // g(last)
};

// A warp's sums over its keys, for the warps with the others.
struct Exchange {
  float4 known[2][32], read[2][32];
};

struct Shared {
  Chunk chunks[2];
  Exchange exchanges[STATE_THREADS / 32];
  Decays decays[2];
  float scales[2][CHUNK];                       // of the keys, and of the queries
  alignas(16) float products[CHUNK * PRODUCTS];  // g(i, j) (k_i · k_j), at [j][i]
};

// One part of 16 keys, or queries, from `key` on.
__device__ __forceinline__ uint4 load_rows(const u16 *rows, u32 part, u32 is_query, u32 key) {
  return load_matrices(matrices_at(rows, ROW, (part * 2 + is_query) * CHUNK, key));
}

__device__ __forceinline__ void copy_row(u16 *to, const u16 *from, bool is_there) {
  copy_async_16_or_zero(to, from, is_there);
}
__device__ __forceinline__ void copy_row(u16 *to, const float *from, bool is_there) {
  Eight row = {};
  if (is_there) row = load_eight(from);
  Parts pairs[4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) pairs[i] = split(row.v[2 * i], row.v[2 * i + 1]);
#pragma unroll
  for (u32 i = 0; i < 3; i++) {
    const uint4 eight = make_uint4(pairs[0].part[i], pairs[1].part[i], pairs[2].part[i], pairs[3].part[i]);
    *reinterpret_cast<uint4 *>(to + i * 2 * CHUNK * ROW) = eight;
  }
}

// Copies the keys and queries of `tokens` rows; zeros behind them.
__device__ __forceinline__ void copy_rows(const Params &params, u16 *rows, u64 row, u32 tokens, u32 key_head) {
  constexpr u32 EIGHTS = KEYS / 8;
  for (u32 i = threadIdx.x - STATE_THREADS; i < 2 * CHUNK * EIGHTS; i += THREADS - STATE_THREADS) {
    const u32 place = i / EIGHTS, key = i % EIGHTS * 8, token = place % CHUNK;
    const bool is_there = token < tokens && key < params.key_dim;
    const u64 at = is_there ? (row + token) * params.channels + key : row * params.channels;
    const u32 start = place < CHUNK ? params.key_start : params.query_start;
    copy_row(rows + place * ROW + key, params.convolved + at + start + key_head, is_there);
  }
  copy_async_commit();
}

// The gates of a chunk, of which each lane has those of a token. Tokens after the last keep the state.
__device__ __forceinline__ void make_decays(Decays &decays, const Gates &gates) {
  const u32 lane = threadIdx.x % 32;
  if (lane < CHUNK) decays.rate[lane] = gates.rate;
  float kept = 1.0f;
#pragma unroll
  for (u32 token = 0; token < CHUNK; token++) {
    const float keep = __shfl_sync(ALL_LANES, gates.keep, token);
    if (lane == CHUNK || token > lane) kept *= keep;
    if (lane <= CHUNK) decays.kept[token * KEPT + lane] = lane < CHUNK && token < lane ? 0.0f : kept;
  }
}

// Products of 16 keys, or queries, with eight keys, and the sums of squares of eight: a warp has one of four tiles.
__device__ __forceinline__ void make_products(Shared &shared, Chunk &chunk, const Decays &decays, const u16 *rows,
                                              float query_scale) {
  const u32 lane = threadIdx.x % 32, is_query = threadIdx.x / 64 % 2, tile = threadIdx.x / 32 % 2;
  if (!DELTA && !is_query) return;
  // Even and odd steps apart, so that more products are under way at a time.
  Sums sums[2], squares[2];
  clear(sums[0]), clear(sums[1]), clear(squares[0]), clear(squares[1]);
#pragma unroll 4
  for (u32 step = 0; step < KEYS / 16; step++) {
    uint4 left[PARTS];
    uint2 keys[PARTS], same[PARTS];
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
      left[part] = load_rows(rows, part, is_query, 16 * step);
      const uint4 own = left[part], key = is_query ? load_rows(rows, part, 0, 16 * step) : own;
      keys[part] = tile ? make_uint2(key.y, key.w) : make_uint2(key.x, key.z);
      same[part] = tile ? make_uint2(own.y, own.w) : make_uint2(own.x, own.z);
    }
    multiply(sums[step % 2], left, keys);
    if (DELTA && is_query) multiply(squares[step % 2], left, same);
  }
  const u32 row = lane / 4, column = 8 * tile + lane % 4 * 2;
  const float4 products = add(total(sums[0]), total(sums[1]));
  if (DELTA && lane % 4 == row / 2) {
    const float4 diagonal = is_query ? add(total(squares[0]), total(squares[1])) : products;
    const float2 pair = tile ? make_float2(diagonal.z, diagonal.w) : make_float2(diagonal.x, diagonal.y);
    const float scale = unit_scale(row % 2 ? pair.y : pair.x);
    shared.scales[is_query][8 * tile + row] = is_query ? query_scale * scale : scale;
  }
  const float *kept = decays.kept + row * KEPT + column, *kept_below = kept + 8 * KEPT;
  const float2 upper = make_float2(products.x * kept[0], products.y * kept[1]);
  const float2 lower = make_float2(products.z * kept_below[0], products.w * kept_below[1]);
  if (is_query) {
    const Parts first = split(upper.x, upper.y), second = split(lower.x, lower.y);
#pragma unroll
    for (u32 part = 0; part < 3; part++) {
      chunk.reads[part][0][tile][lane] = first.part[part];
      chunk.reads[part][1][tile][lane] = second.part[part];
    }
  } else {
    float *to = shared.products + column * PRODUCTS + row;
    to[0] = upper.x, to[PRODUCTS] = upper.y, to[8] = lower.x, to[PRODUCTS + 8] = lower.y;
  }
}

// The factors of a chunk's tokens, and the inverse, of which each lane has a column: by one warp.
__device__ __forceinline__ void finish_chunk(const Shared &shared, Chunk &chunk, const Decays &decays) {
  const u32 lane = threadIdx.x % 32, own = lane % CHUNK;
  const float rate = decays.rate[own], before = decays.kept[own * KEPT + CHUNK];
  const float key = DELTA ? shared.scales[0][own] : 1.0f, query = DELTA ? shared.scales[1][own] : 1.0f;
  if (lane < CHUNK) {
    chunk.value[own] = key * rate;
    chunk.known[own] = key * key * rate * before;
    chunk.read[own] = query * before;
    chunk.query[own] = query;
    chunk.tail[own] = decays.kept[(CHUNK - 1) * KEPT + own];
    if (lane == CHUNK - 1) chunk.whole = before;
  }
  if (!DELTA) return;
  const float factor = key * key * rate;
  float known[CHUNK] = {}, column[CHUNK];
#pragma unroll
  for (u32 j = 0; j < CHUNK; j++) {
    column[j] = (j == own ? 1.0f : 0.0f) - __shfl_sync(ALL_LANES, factor, j) * known[j];
#pragma unroll
    for (u32 quad = (j + 1) / 4; quad < CHUNK / 4; quad++) {
      const float4 m = *reinterpret_cast<const float4 *>(shared.products + j * PRODUCTS + 4 * quad);
      known[4 * quad] += m.x * column[j], known[4 * quad + 1] += m.y * column[j];
      known[4 * quad + 2] += m.z * column[j], known[4 * quad + 3] += m.w * column[j];
    }
  }
  Parts pairs[CHUNK / 2];
#pragma unroll
  for (u32 i = 0; i < CHUNK / 2; i++) pairs[i] = split(column[2 * i], column[2 * i + 1]);
  if (lane >= CHUNK) return;
#pragma unroll
  for (u32 part = 0; part < 3; part++) {
    uint4 *to = reinterpret_cast<uint4 *>(chunk.inverse[part] + own * INVERSE);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const Parts *four = pairs + 4 * i;
      to[i] = make_uint4(four[0].part[part], four[1].part[part], four[2].part[part], four[3].part[part]);
    }
  }
}

// The turns of the warps that prepare: in turn n, products of chunk n + 1 and then its inverse; gates and rows of
// n + 2. Their barriers are those of the warps that hold the state: all threads of a warp meet at the same one.
__device__ __forceinline__ void prepare(const Params &params, Shared &shared, u16 *rows, const Sequence &sequence,
                                        u32 head) {
  const u32 warp = (threadIdx.x - STATE_THREADS) / 32, lane = threadIdx.x % 32, key_head = key_head_of(params, head);
  const int chunks = ceil_div(sequence.count, CHUNK);
  for (int turn = -2; turn < chunks; turn++) {
    const u32 next = turn + 1, last = turn + 2;
    const bool has_next = turn >= -1 && turn + 1 < chunks, has_last = turn + 2 < chunks;
    const u64 row = sequence.start + last * CHUNK;
    const u32 tokens = has_last ? min(CHUNK, sequence.count - last * CHUNK) : 0;
    const bool has_gates = warp == 1 && lane < tokens;
    GateInputs inputs;
    if (has_last) copy_rows(params, rows + last % STAGES * ROWS, row, tokens, key_head);
    if (has_gates) inputs = load_gates(params, row + lane, head);
    Chunk &chunk = shared.chunks[next % 2];
    const Decays &decays = shared.decays[next % 2];
    if (has_next) make_products(shared, chunk, decays, rows + next % STAGES * ROWS, params.query_scale);
    __syncthreads();
    if (has_next && warp == 0) finish_chunk(shared, chunk, decays);
    if (has_last && warp == 1) {
      const Gates gates = has_gates ? gates_of(params, inputs) : Gates{1.0f, 0.0f};
      make_decays(shared.decays[last % 2], gates);
    }
    copy_async_wait<0>();
    __syncthreads();
  }
}
