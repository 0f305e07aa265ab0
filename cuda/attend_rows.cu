// Attention of the rows of a batch to the rows of their own sequences, in both directions, in f32.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = e^(s_j − m),  s_j = scale · q · k_j − slope · |i − j|,  |i − j| ≤ radius
//
// qk [tokens][qk_columns] of -DQ_TYPE: q heads, then k heads; v [tokens][v_columns] of -DV_TYPE, from v_start on; out
// [tokens][query heads][HEAD_DIM] of -DOUT_TYPE. A block: 16 rows of one query head, in tiles of 32 keys. The rows may
// be of several sequences; then each key is hidden from the rows of others. Scores: a thread has one key and 4 rows.
// Values: 8 threads share a row, each with every eighth run of 8 columns.
// Threads: 128. Shared: 4 · (16 + 32) · (HEAD_DIM + 4) bytes.
// -D: HEAD_DIM (multiple of 8, ≤ 512), Q_TYPE, V_TYPE, OUT_TYPE (float, u16).
// Twin: backend/reference/attend_rows.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct Params {
  const u32 *metadata;
  const Q_TYPE *qk;
  const V_TYPE *v;
  const float *slopes;  // per query head, or null
  OUT_TYPE *out;
  u32 query_heads;
  u32 group;  // query heads of a key head
  u32 qk_columns;
  u32 v_columns;
  u32 v_start;
  u32 radius;
  float scale;
  u32 unused;
};

constexpr u32 THREADS = 128, ROWS = 16, KEYS = 32, RUNS = HEAD_DIM / 8, RUNS_EACH = (RUNS + 7) / 8;
constexpr u32 STRIDE = HEAD_DIM + 4;  // avoids bank conflicts between rows

// Loads `count` rows from `first` on, each HEAD_DIM columns from `column` on; `last` is repeated.
template <typename T>
__device__ __forceinline__ void load_rows(float *to, const T *from, u32 columns, u32 column, u32 first, u32 last,
                                          u32 count) {
  for (u32 at = threadIdx.x; at < count * RUNS; at += THREADS) {
    const u32 row = min(first + at / RUNS, last), run = at % RUNS;
    const T *source = from + static_cast<u64>(row) * columns + column;
    store_eight(to + at / RUNS * STRIDE + 8 * run, load_eight(source + 8 * run));
  }
}

__device__ __forceinline__ float product(const float *q, const float *k) {
  float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (u32 i = 0; i < HEAD_DIM; i += 4) {
    const float4 a = *reinterpret_cast<const float4 *>(q + i), b = *reinterpret_cast<const float4 *>(k + i);
    sums.x += a.x * b.x;
    sums.y += a.y * b.y;
    sums.z += a.z * b.z;
    sums.w += a.w * b.w;
  }
  return (sums.x + sums.y) + (sums.z + sums.w);
}

KERNEL(attend_rows, THREADS, 1) {
  DYNAMIC_SHARED(float, queries);
  __shared__ float scores[ROWS][KEYS + 1];
  __shared__ u32 firsts[ROWS], ends[ROWS];
  float *tile_rows = queries + ROWS * STRIDE;
  const u32 head = blockIdx.x % params.query_heads, row_start = blockIdx.x / params.query_heads * ROWS;
  const u32 tokens = params.metadata[META_TOKEN_COUNT];
  if (row_start >= tokens) return;
  if (threadIdx.x < ROWS) {
    // Rows beyond the last repeat it and are not written.
    const u32 row = min(row_start + threadIdx.x, tokens - 1);
    const u32 sequence = sequence_of(params.metadata, row) * SEQUENCE_WORDS;
    const u32 start = metadata_at(params.metadata, META_SEQUENCES, sequence + SEQUENCE_ROW_START);
    const u32 end = start + metadata_at(params.metadata, META_SEQUENCES, sequence + SEQUENCE_ROW_COUNT);
    firsts[threadIdx.x] = row - min(params.radius, row - start);
    ends[threadIdx.x] = row + min(params.radius, end - 1 - row) + 1;
  }
  load_rows(queries, params.qk, params.qk_columns, head * HEAD_DIM, row_start, tokens - 1, ROWS);
  __syncthreads();
  // What rows see begins and ends in their order.
  const u32 begin = firsts[0], end = ends[ROWS - 1];
  const u32 key_column = (params.query_heads + head / params.group) * HEAD_DIM;
  const u32 value_column = params.v_start + head / params.group * HEAD_DIM;
  const float slope = params.slopes ? params.slopes[head] : 0.0f;
  const u32 own_key = threadIdx.x % KEYS, own_rows = threadIdx.x / KEYS * 4;
  const u32 row = threadIdx.x / 8, lane = threadIdx.x % 8;
  float largest = LOWEST, total = 0.0f;
  Eight sums[RUNS_EACH] = {};
  for (u32 tile = begin; tile < end; tile += KEYS) {
    load_rows(tile_rows, params.qk, params.qk_columns, key_column, tile, end - 1, KEYS);
    __syncthreads();
    const u32 key = tile + own_key;
    for (u32 of = own_rows; of < own_rows + 4; of++) {
      const u32 query = row_start + of;
      float score = product(queries + of * STRIDE, tile_rows + own_key * STRIDE) * params.scale;
      score -= slope * static_cast<float>(max(query, key) - min(query, key));
      scores[of][own_key] = key >= firsts[of] && key < ends[of] ? score : LOWEST;
    }
    __syncthreads();
    load_rows(tile_rows, params.v, params.v_columns, value_column, tile, end - 1, KEYS);
    float top = largest;
    for (u32 i = 0; i < KEYS; i++) top = fmaxf(top, scores[row][i]);
    const float shrink = expf(largest - top);
    largest = top;
    total *= shrink;
#pragma unroll
    for (u32 j = 0; j < RUNS_EACH; j++)
      for (u32 i = 0; i < 8; i++) sums[j].v[i] *= shrink;
    __syncthreads();
    for (u32 k = 0; k < min(KEYS, end - tile); k++) {
      const float score = scores[row][k], weight = score == LOWEST ? 0.0f : expf(score - top);
      total += weight;
#pragma unroll
      for (u32 j = 0; j < RUNS_EACH; j++) {
        const Eight value = load_eight(tile_rows + k * STRIDE + 8 * min(lane + 8 * j, RUNS - 1));
        for (u32 i = 0; i < 8; i++) sums[j].v[i] += weight * value.v[i];
      }
    }
    __syncthreads();
  }
  if (row_start + row >= tokens) return;
  OUT_TYPE *out = params.out + (static_cast<u64>(row_start + row) * params.query_heads + head) * HEAD_DIM;
  const float inverse = 1.0f / total;
#pragma unroll
  for (u32 j = 0; j < RUNS_EACH; j++) {
    const u32 run = lane + 8 * j;
    if (run >= RUNS) break;
    for (u32 i = 0; i < 8; i++) sums[j].v[i] *= inverse;
    store_eight(out + 8 * run, sums[j]);
  }
}
