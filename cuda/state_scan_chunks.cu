// A recurrence over the tokens of a sequence, as state_scan, in chunks of 16 tokens, on tensor cores.
//
// With g(i, j) the product of keep of the tokens after j up to i, g(i) that of the chunk's tokens up to i, S the state
// before the chunk, and the unscaled keys and queries:
//   w_i = key_i rate_i (v_i − key_i (g(i) Sᵀk_i + Σ_{j<i} g(i, j) (k_i · k_j) w_j))   with -DDELTA=1, or rate_i v_i
//   o_i = query_i (g(i) Sᵀq_i + Σ_{j≤i} g(i, j) (q_i · k_j) w_j)   (+ skip v_i)
//   S = g(last) S + Σ_j g(last, j) k_j w_jᵀ
// key and query are the scales that state_scan applies to k and q. The first line is (1 + L) w = b with a strictly lower
// triangular matrix L, which the state is no part of: so w = (1 + L)⁻¹ b. As keep and rate · key² k kᵀ change no vector's
// length by a factor above 1, the elements of (1 + L)⁻¹ are at most 2. g is multiplied up from factors of at most 1:
// nothing overflows, and no logarithm is rounded.
//
// Products: a bfloat16 times a bfloat16 is exact in f32. So an f32 operand is the sum of three of them, 24 bits in all,
// and a product has a term for each pair of parts, but for those that f32 would not keep. Rows of bfloat16 have one.
//
// A block has 32 or 16 columns of the values of a head of a sequence. Each of its first four warps holds Sᵀ for 16
// columns and a slice of the keys in accumulators, from the first token to the last. The layout of accumulators is that
// of a left operand, so b, w and S follow from each other in registers. The last four warps prepare the next chunk: its
// products of keys and queries with keys, gates and inverse, which depend on no state; and they copy the rows of the one
// after it. A chunk has two barriers.
// Variants: DELTA; SLICES (2 or 4) of STEPS · 16 keys; types X_TYPE, MIXED_TYPE and OUT_TYPE. Layouts as state_scan.
// Twin: backend/reference/state_scan.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

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

struct Parts {
  u32 part[3];
};

// Two numbers in parts: each is the rest of those before, rounded.
__device__ __forceinline__ Parts split(float low, float high) {
  Parts parts;
#pragma unroll
  for (u32 i = 0; i < 3; i++) {
    parts.part[i] = pack_bf16(low, high);
    low -= bf16_low(parts.part[i]), high -= bf16_high(parts.part[i]);
  }
  return parts;
}

// Two neighboring tiles of sums as a left operand, in parts.
__device__ __forceinline__ void split(uint4 (&left)[3], const float4 &a, const float4 &b) {
  const Parts x = split(a.x, a.y), y = split(a.z, a.w), z = split(b.x, b.y), w = split(b.z, b.w);
#pragma unroll
  for (u32 i = 0; i < 3; i++) left[i] = make_uint4(x.part[i], y.part[i], z.part[i], w.part[i]);
}

// Terms of one size are summed up by themselves: more of them are under way at a time, and small ones are not lost.
struct Sums {
  float4 size[3];
};

__device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
  for (u32 i = 0; i < 3; i++) sums.size[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

template <u32 A, u32 B>
__device__ __forceinline__ void multiply(Sums &sums, const uint4 (&a)[A], const uint2 (&b)[B]) {
#pragma unroll
  for (u32 i = 0; i < A; i++) {
#pragma unroll
    for (u32 j = 0; j < B; j++) {
      if (i + j < 3) multiply_bf16(sums.size[i + j], a[i], b[j]);
    }
  }
}

__device__ __forceinline__ float4 add(const float4 &a, const float4 &b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// By value, so that neither needs an address.
__device__ __forceinline__ float4 choose(bool is_first, float4 first, float4 second) {
  return make_float4(is_first ? first.x : second.x, is_first ? first.y : second.y, is_first ? first.z : second.z,
                     is_first ? first.w : second.w);
}
__device__ __forceinline__ float4 total(const Sums &sums) { return add(sums.size[0], add(sums.size[1], sums.size[2])); }

// A lane's address of matrices with 16 rows and 16 columns.
__device__ __forceinline__ const u16 *matrices_at(const u16 *rows, u32 stride, u32 row, u32 column) {
  const u32 lane = threadIdx.x % 32;
  return rows + (row + lane % 16) * stride + column + lane / 16 * 8;
}

// One part of 16 keys (IS_QUERY = 0) or queries, from `key` on.
__device__ __forceinline__ uint4 load_rows(const u16 *rows, u32 part, u32 is_query, u32 key) {
  return load_matrices(matrices_at(rows, ROW, (part * 2 + is_query) * CHUNK, key));
}

// --- the warps that prepare chunks ---

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

// --- the warps that hold the state ---

// A thread's columns and tokens: columns c and c + 8, and tokens t, t + 1, t + 8 and t + 9. Tiles are for t and t + 8: x
// and y are tokens of column c, z and w those of c + 8.
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

// Offset of the first element of a thread. The keys of its first tile of the state are place.first_key + place.token and
// the next one; those of each tile are eight behind those of the one before. key_dim is even.
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

// The turns of the warps that prepare: in turn n, products of chunk n + 1 and then its inverse; gates and rows of n + 2.
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
