// A recurrence over the tokens of a sequence, as state_scan, in chunks of 16 tokens, on tensor cores.
//
// With g(i, j) the product of keep of the tokens after j up to i, g(i) that of the chunk's tokens up to i, the state S
// before the chunk, and keys and queries as they are in the rows:
//   w_i = key_i rate_i (v_i − key_i (g(i) Sᵀk_i + Σ_{j<i} g(i, j) (k_i · k_j) w_j))   with -DDELTA=1, or rate_i v_i
//   o_i = query_i (g(i) Sᵀq_i + Σ_{j≤i} g(i, j) (q_i · k_j) w_j)   (+ skip v_i)
//   S = g(last) S + Σ_j g(last, j) k_j w_jᵀ
// key and query are the scales that state_scan applies to k and q. The first line is (1 + L) w = b with a strictly
// lower triangular matrix L, which the state is no part of: so w = (1 + L)⁻¹ b. As keep and rate · key² k kᵀ change no
// vector's length by a factor above 1, the elements of (1 + L)⁻¹ are at most 2. g is multiplied up from factors of at
// most 1: nothing overflows, and no logarithm is rounded.
//
// Products have the precision of f32 (common/parts.cuh): an operand has three parts, rows of bfloat16 have one.
//
// A block has 32 or 16 columns of the values of a head of a sequence. Each of its first four warps holds Sᵀ for 16
// columns and a slice of the keys in accumulators, from the first token to the last. The layout of accumulators is that
// of a left operand, so b, w and S follow from each other in registers. The last four warps prepare the next chunk
// (common/state_chunk.cuh): its products of keys and queries with keys, gates and inverse, which depend on no state;
// and they copy the rows of the one after it. A chunk has two barriers.
// Variants: DELTA; SLICES (2 or 4) of STEPS · 16 keys; types X_TYPE, MIXED_TYPE and OUT_TYPE. Layouts as state_scan.
// Twin: backend/reference/state_scan.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/state_chunk.cuh"

// A thread's columns c and c + 8, and tokens t, t + 1, t + 8 and t + 9. Tiles are for t and t + 8: x and y are tokens
// of column c, z and w those of c + 8.
struct Place {
  u32 slice, lane, token, column, first_key;
  bool is_live[2];
};

__device__ __forceinline__ Place place_of(const Params &params, u32 first_column) {
  const u32 lane = threadIdx.x % 32, slice = threadIdx.x / 32 % SLICES;
  const u32 column = first_column + threadIdx.x / 32 / SLICES * 16 + lane / 4;
  return {slice, lane, lane % 4 * 2, column, slice * SLICE, {column < params.value_dim, column + 8 < params.value_dim}};
}

// The values of `tokens` rows.
__device__ __forceinline__ void load_values(float4 (&v)[2], const Params &params, const Place &place, u64 row,
                                            u32 tokens, u32 head) {
  const X_TYPE *from = params.convolved + params.value_start + head * params.value_dim + place.column;
#pragma unroll
  for (u32 tile = 0; tile < 2; tile++) {
    const u32 token = 8 * tile + place.token;
    const X_TYPE *at = from + (row + token) * params.channels, *next = at + params.channels;
    const bool is_first = token < tokens, is_next = token + 1 < tokens;
    v[tile].x = is_first && place.is_live[0] ? load_one(at) : 0.0f;
    v[tile].y = is_next && place.is_live[0] ? load_one(next) : 0.0f;
    v[tile].z = is_first && place.is_live[1] ? load_one(at + 8) : 0.0f;
    v[tile].w = is_next && place.is_live[1] ? load_one(next + 8) : 0.0f;
  }
}

// Multiplies the state with the keys of a chunk (known) and its queries (read), each in two tiles of eight tokens.
__device__ __forceinline__ void multiply_state(float4 (&known)[2], float4 (&read)[2], const float4 (&s)[STEPS][2],
                                               const u16 *rows, const Place &place) {
  Sums sums[4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) clear(sums[i]);
#pragma unroll
  for (u32 step = 0; step < STEPS; step++) {
    uint4 left[3];
    split(left, s[step][0], s[step][1]);
#pragma unroll
    for (u32 is_query = DELTA ? 0 : 1; is_query < 2; is_query++) {
      uint2 first[PARTS], second[PARTS];
#pragma unroll
      for (u32 part = 0; part < PARTS; part++) {
        const uint4 loaded = load_rows(rows, part, is_query, place.first_key + 16 * step);
        first[part] = make_uint2(loaded.x, loaded.z), second[part] = make_uint2(loaded.y, loaded.w);
      }
      multiply(sums[2 * is_query], left, first);
      multiply(sums[2 * is_query + 1], left, second);
    }
  }
  known[0] = total(sums[0]), known[1] = total(sums[1]), read[0] = total(sums[2]), read[1] = total(sums[3]);
}

// Two factors of tokens by the elements of a tile.
__device__ __forceinline__ float4 scale(const float4 &tile, const float *factors) {
  const float2 f = *reinterpret_cast<const float2 *>(factors);
  return make_float4(f.x * tile.x, f.y * tile.y, f.x * tile.z, f.y * tile.w);
}

// w, from the values and what is known of them.
__device__ __forceinline__ void make_written(float4 (&written)[2], const Chunk &chunk, const Place &place,
                                             const float4 (&v)[2], const float4 (&known)[2]) {
#pragma unroll
  for (u32 tile = 0; tile < 2; tile++) {
    const u32 token = 8 * tile + place.token;
    written[tile] = scale(v[tile], chunk.value + token);
    if (!DELTA) continue;
    const float4 less = scale(known[tile], chunk.known + token), all = written[tile];
    written[tile] = make_float4(all.x - less.x, all.y - less.y, all.z - less.z, all.w - less.w);
  }
  if (!DELTA) return;
  uint4 left[3];
  split(left, written[0], written[1]);
  uint2 first[3], second[3];
#pragma unroll
  for (u32 part = 0; part < 3; part++) {
    const uint4 loaded = load_matrices_transposed(matrices_at(chunk.inverse[part], INVERSE, 0, 0));
    first[part] = make_uint2(loaded.x, loaded.y), second[part] = make_uint2(loaded.z, loaded.w);
  }
  Sums sums[2];
  clear(sums[0]), clear(sums[1]);
  multiply(sums[0], left, first);
  multiply(sums[1], left, second);
  written[0] = total(sums[0]), written[1] = total(sums[1]);
}

// Stores the outputs of eight tokens: one of the first two slices has them.
__device__ __forceinline__ void store_outputs(const Params &params, const Chunk &chunk, const Place &place, u64 row,
                                              u32 tokens, u32 head, const float4 (&written)[2], const float4 &read,
                                              const float4 &v) {
  uint4 left[3];
  split(left, written[0], written[1]);
  uint2 right[3];
#pragma unroll
  for (u32 part = 0; part < 3; part++) {
    const u32(&reads)[2][32] = chunk.reads[part][place.slice];
    right[part] = make_uint2(reads[0][place.lane], reads[1][place.lane]);
  }
  Sums sums;
  clear(sums);
  multiply(sums, left, right);
  const u32 token = 8 * place.slice + place.token;
  const float skip = params.skip ? params.skip[head] : 0.0f;
  float4 out = add(scale(total(sums), chunk.query + token), scale(read, chunk.read + token));
  out = add(out, make_float4(skip * v.x, skip * v.y, skip * v.z, skip * v.w));
  OUT_TYPE *to = params.out + ((row + token) * params.heads + head) * params.value_dim + place.column;
  OUT_TYPE *next = to + params.heads * params.value_dim;
  const bool is_first = token < tokens, is_next = token + 1 < tokens;
  if (is_first && place.is_live[0]) store_one(to, out.x);
  if (is_next && place.is_live[0]) store_one(next, out.y);
  if (is_first && place.is_live[1]) store_one(to + 8, out.z);
  if (is_next && place.is_live[1]) store_one(next + 8, out.w);
}

// Adds what a chunk writes to the state.
__device__ __forceinline__ void add_written(float4 (&s)[STEPS][2], const Chunk &chunk, const Place &place,
                                            const u16 *rows, const float4 (&written)[2]) {
  uint4 left[3];
  split(left, scale(written[0], chunk.tail + place.token), scale(written[1], chunk.tail + 8 + place.token));
  const float whole = chunk.whole;
#pragma unroll
  for (u32 step = 0; step < STEPS; step++) {
    uint2 right[2][PARTS];
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
      const u16 *at = matrices_at(rows, ROW, part * 2 * CHUNK, place.first_key + 16 * step);
      const uint4 loaded = load_matrices_transposed(at);
      right[0][part] = make_uint2(loaded.x, loaded.y), right[1][part] = make_uint2(loaded.z, loaded.w);
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      Sums sums;
      clear(sums);
      multiply(sums, left, right[i]);
      const float4 more = total(sums), old = s[step][i];
      s[step][i] = make_float4(whole * old.x + more.x, whole * old.y + more.y, whole * old.z + more.z,
                               whole * old.w + more.w);
    }
  }
}

// The same number, unknown to the compiler: what is computed from it for the last stores it would otherwise keep in
// registers from the first loads on.
__device__ __forceinline__ u32 anew(u32 number) {
  asm volatile("" : "+r"(number));
  return number;
}

// Offset of the first element of a thread. The keys of its first tile of the state are place.first_key + place.token
// and the next one; those of each tile are eight behind those of the one before. key_dim is even.
__device__ __forceinline__ u64 first_element(const Params &params, const Place &place, u32 slot, u32 head, u32 stride) {
  return state_of(params, slot, head) + (place.first_key + place.token) * stride + place.column;
}

__device__ __forceinline__ void load_state(float4 (&s)[STEPS][2], const Params &params, const Place &place, u32 source,
                                           u32 head) {
  const u32 stride = params.value_dim;
  const float *at = params.state + first_element(params, place, source, head, stride);
#pragma unroll
  for (u32 i = 0; i < 2 * STEPS; i++) {
    const bool is_there = source != NONE && place.first_key + 8 * i + place.token < params.key_dim;
    const float *next = at + stride;
    float4 &tile = s[i / 2][i % 2];
    tile.x = is_there && place.is_live[0] ? at[0] : 0.0f;
    tile.y = is_there && place.is_live[0] ? next[0] : 0.0f;
    tile.z = is_there && place.is_live[1] ? at[8] : 0.0f;
    tile.w = is_there && place.is_live[1] ? next[8] : 0.0f;
    at += 8 * stride;
  }
}

__device__ __forceinline__ void store_state(const float4 (&s)[STEPS][2], const Params &params, const Place &place,
                                            u32 slot, u32 head) {
  const u32 stride = anew(params.value_dim), first_key = anew(place.first_key + place.token);
  float *at = params.state + first_element(params, place, slot, head, stride);
#pragma unroll
  for (u32 i = 0; i < 2 * STEPS; i++) {
    if (first_key + 8 * i >= params.key_dim) break;
    float *next = at + stride;
    const float4 &tile = s[i / 2][i % 2];
    if (place.is_live[0]) at[0] = tile.x, next[0] = tile.y;
    if (place.is_live[1]) at[8] = tile.z, next[8] = tile.w;
    at += 8 * stride;
  }
}

// The turns of the warps that hold the state: in turn n, all of chunk n. They wait while the first is prepared.
__device__ __forceinline__ void scan(const Params &params, Shared &shared, const u16 *all_rows, const Place &place,
                                     const Sequence &sequence, u32 head) {
  const u32 warp = threadIdx.x / 32, lane = place.lane;
  float4 s[STEPS][2], next_v[2];
  load_state(s, params, place, sequence.source, head);
  load_values(next_v, params, place, sequence.start, sequence.count, head);
  for (u32 i = 0; i < 4; i++) __syncthreads();
  for (u32 begin = 0, turn = 0; begin < sequence.count; begin += CHUNK, turn++) {
    const u16 *rows = all_rows + turn % STAGES * ROWS;
    const Chunk &chunk = shared.chunks[turn % 2];
    const u64 row = sequence.start + begin;
    const u32 tokens = sequence.count - begin;
    const float4 v[2] = {next_v[0], next_v[1]};
    float4 known[2], read[2], written[2];
    multiply_state(known, read, s, rows, place);
    Exchange &own = shared.exchanges[warp];
#pragma unroll
    for (u32 tile = 0; tile < 2; tile++) {
      if (DELTA) own.known[tile][lane] = known[tile];
      own.read[tile][lane] = read[tile];
    }
    __syncthreads();
    load_values(next_v, params, place, row + CHUNK, tokens > CHUNK ? tokens - CHUNK : 0, head);
    float4 all = choose(place.slice == 0, read[0], read[1]);
#pragma unroll
    for (u32 i = 1; i < SLICES; i++) {
      const Exchange &other = shared.exchanges[warp ^ i];
      if (DELTA) known[0] = add(known[0], other.known[0][lane]), known[1] = add(known[1], other.known[1][lane]);
      if (place.slice < 2) all = add(all, other.read[place.slice][lane]);
    }
    make_written(written, chunk, place, v, known);
    add_written(s, chunk, place, rows, written);
    const float4 own_v = choose(place.slice == 0, v[0], v[1]);
    if (place.slice < 2) store_outputs(params, chunk, place, row, tokens, head, written, all, own_v);
    __syncthreads();
  }
  store_state(s, params, place, sequence.slot, head);
}

KERNEL(state_scan_chunks, THREADS, 1) {
  __shared__ Shared shared;
  DYNAMIC_SHARED(u16, rows);
  const u32 tiles = ceil_div(params.value_dim, COLUMNS);
  const u32 index = blockIdx.x / tiles / params.heads, head = blockIdx.x / tiles % params.heads;
  if (index >= params.metadata[META_SEQUENCE_COUNT]) return;
  const Sequence sequence = load_sequence(params.metadata, index);
  if (sequence.count < params.chunked_min) return;
  if (threadIdx.x < STATE_THREADS) {
    const Place place = place_of(params, blockIdx.x % tiles * COLUMNS);
    scan(params, shared, rows, place, sequence, head);
  } else {
    prepare(params, shared, rows, sequence, head);
  }
}
