// Paged attention in f32 without tensor cores, for any storage, KV format and head size: the fallback kernel.
//
//   out = Σ p_j · v_j / (Σ p_j + e^(sink − m)),  p_j = e^(s_j − m)
//   s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// q, out: [tokens][query heads][HEAD_DIM]; K, V: tiles [block][kv head] of the pool. One block: one token row × GROUP
// query heads of one KV head, 16 keys at a time. A thread computes the scores of some (head, key) pairs, a warp the
// weights of some heads, and a thread sums some runs of 8 columns.
// Threads: 128. Grid: rows of the bucket × query heads / GROUP.
// Shared: 4 · (GROUP · (HEAD_DIM + 19) + 16 · (HEAD_DIM + 4)) bytes.
// -D: HEAD_DIM (multiple of 8, ≤ 576), GROUP (1 to 16; it divides the query heads of a KV head), KV_F32, KV_F16,
// KV_Q8 or KV_FP8, Q_TYPE, OUT_TYPE (float, u16).
// Twin: backend/reference/attend_paged.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/attend.cuh"

constexpr u32 THREADS = 128, WARPS = THREADS / 32, KEYS = 16, RUNS = HEAD_DIM / 8;
constexpr u32 STRIDE = HEAD_DIM + 4;  // avoids bank conflicts between rows
constexpr u32 PIECES = (GROUP * RUNS + THREADS - 1) / THREADS;

// Query, keys or values, weights; and for each head its largest score, its sum and the factor for its old sums.
struct Shared {
  float *query, *rows, *weights, *largest, *sum, *rescale;
};

// The run of 8 elements at a slot of a tile in the pool.
__device__ __forceinline__ Eight load_run(const u8 *tile, u32 slots, u32 slot, u32 run) {
#if defined(KV_F32)
  return load_eight(reinterpret_cast<const float *>(tile) + slot * HEAD_DIM + run * 8);
#elif defined(KV_F16)
  return widen_f16(reinterpret_cast<const uint4 *>(tile)[slot * RUNS + run]);
#else
  const uint2 codes = reinterpret_cast<const uint2 *>(tile)[slot * RUNS + run];
  const float scale = reinterpret_cast<const float *>(tile + slots * HEAD_DIM)[slot];
  Eight e;
  for (u32 i = 0; i < 8; i++) {
    const u32 code = (i < 4 ? codes.x : codes.y) << (24 - i % 4 * 8);
#ifdef KV_FP8
    e.v[i] = f16_high(e4m3_halves(code)) * scale;
#else
    e.v[i] = static_cast<float>(static_cast<int>(code) >> 24) * scale;
#endif
  }
  return e;
#endif
}

constexpr u32 SLOT_BYTES =
#if defined(KV_F32)
    4 * HEAD_DIM;
#elif defined(KV_F16)
    2 * HEAD_DIM;
#else
    HEAD_DIM + 4;
#endif

// Loads keys or values from position `first` on, with zeros from `end` on; a hidden block also gives zeros.
__device__ __forceinline__ void load_rows(float *rows, const Params &params, const u8 *pool, const u32 *table,
                                          u32 kv_head, u32 first, u32 end) {
  const u32 slots = 1u << params.block_shift;
  for (u32 at = threadIdx.x; at < KEYS * RUNS; at += THREADS) {
    const u32 key = first + at / RUNS, run = at % RUNS;
    const u32 block = key < end ? table[key >> params.block_shift] : NONE;
    Eight e = {};
    if (block != NONE) {
      const u64 tile = static_cast<u64>(block) * params.kv_heads + kv_head;
      e = load_run(pool + tile * slots * SLOT_BYTES, slots, key & (slots - 1), run);
    }
    store_eight(rows + at / RUNS * STRIDE + run * 8, e);
  }
}

__device__ __forceinline__ void make_scores(const Shared &shared, const Params &params, const u32 *table,
                                            u32 first_head, u32 first, u32 position) {
  for (u32 at = threadIdx.x; at < GROUP * KEYS; at += THREADS) {
    const u32 head = at / KEYS, key = first + at % KEYS;
    const bool hidden = key > position || table[key >> params.block_shift] == NONE;
    const float *q = shared.query + head * HEAD_DIM, *k = shared.rows + at % KEYS * STRIDE;
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (u32 i = 0; i < HEAD_DIM; i += 4) {
      const float4 a = *reinterpret_cast<const float4 *>(q + i), b = *reinterpret_cast<const float4 *>(k + i);
      sums.x += a.x * b.x;
      sums.y += a.y * b.y;
      sums.z += a.z * b.z;
      sums.w += a.w * b.w;
    }
    float score = ((sums.x + sums.y) + (sums.z + sums.w)) * params.scale;
    if (params.softcap != 0.0f) score = params.softcap * tanhf(score / params.softcap);
    if (params.alibi) {
      score -= params.alibi[first_head + head] * static_cast<float>(position - key);
    }
    shared.weights[at] = hidden ? LOWEST : score * LOG2_E;
  }
}

// Turns scores into weights; lanes from 16 on duplicate the others.
__device__ __forceinline__ void make_weights(const Shared &shared) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (u32 head = warp; head < GROUP; head += WARPS) {
    const float score = shared.weights[head * KEYS + lane % KEYS], old = shared.largest[head];
    const float largest = fmaxf(old, warp_max(score));
    const float weight = share(score, largest), sum = warp_sum(lane < KEYS ? weight : 0.0f);
    __syncwarp();
    if (lane < KEYS) shared.weights[head * KEYS + lane] = weight;
    if (lane == 0) {
      const float rescale = share(old, largest);
      shared.largest[head] = largest;
      shared.rescale[head] = rescale;
      shared.sum[head] = shared.sum[head] * rescale + sum;
    }
  }
}

__device__ __forceinline__ void add_values(const Shared &shared, Eight (&sums)[PIECES]) {
#pragma unroll
  for (u32 piece = 0; piece < PIECES; piece++) {
    const u32 at = threadIdx.x + piece * THREADS, head = at / RUNS, run = at % RUNS;
    if (head >= GROUP) break;
    const float rescale = shared.rescale[head];
    for (u32 i = 0; i < 8; i++) sums[piece].v[i] *= rescale;
    for (u32 key = 0; key < KEYS; key++) {
      const float weight = shared.weights[head * KEYS + key];
      const Eight value = load_eight(shared.rows + key * STRIDE + run * 8);
      for (u32 i = 0; i < 8; i++) sums[piece].v[i] += weight * value.v[i];
    }
  }
}

KERNEL(attend_paged_vec, THREADS, 1) {
  DYNAMIC_SHARED(float, memory);
  const u32 groups = params.kv_heads * params.group / GROUP, row = blockIdx.x / groups;
  const u32 first_head = blockIdx.x % groups * GROUP, kv_head = first_head / params.group;
  if (row >= params.metadata[META_TOKEN_COUNT]) return;
  Shared shared;
  shared.query = memory;
  shared.rows = shared.query + GROUP * HEAD_DIM;
  shared.weights = shared.rows + KEYS * STRIDE;
  shared.largest = shared.weights + GROUP * KEYS;
  shared.sum = shared.largest + GROUP;
  shared.rescale = shared.sum + GROUP;
  const u32 *header = params.metadata + params.group_header;
  const u32 start = params.metadata[header[GROUP_TABLE_STARTS] + sequence_of(params.metadata, row)];
  const u32 *table = params.metadata + header[GROUP_TABLES] + start;
  const u32 position = metadata_at(params.metadata, META_POSITIONS, row);
  const u32 seen = visible_keys(params, position), begin = seen <= position ? position + 1 - seen : 0;
  const u64 offset = static_cast<u64>(blockIdx.x) * GROUP * HEAD_DIM;
  for (u32 at = threadIdx.x; at < GROUP * RUNS; at += THREADS)
    store_eight(shared.query + at * 8, load_eight(params.q + offset + at * 8));
  if (threadIdx.x < GROUP) {
    shared.largest[threadIdx.x] = LOWEST;
    shared.sum[threadIdx.x] = 0.0f;
  }
  Eight sums[PIECES] = {};
  for (u32 first = begin; first <= position; first += KEYS) {
    load_rows(shared.rows, params, params.k, table, kv_head, first, position + 1);
    __syncthreads();
    make_scores(shared, params, table, first_head, first, position);
    __syncthreads();
    make_weights(shared);
    load_rows(shared.rows, params, params.v, table, kv_head, first, position + 1);
    __syncthreads();
    add_values(shared, sums);
    __syncthreads();
  }
#pragma unroll
  for (u32 piece = 0; piece < PIECES; piece++) {
    const u32 at = threadIdx.x + piece * THREADS, head = at / RUNS;
    if (head >= GROUP) break;
    const float factor = final_factor(params, shared.largest[head], shared.sum[head], first_head + head);
    for (u32 i = 0; i < 8; i++) sums[piece].v[i] *= factor;
    store_eight(params.out + offset + at * 8, sums[piece]);
  }
}
