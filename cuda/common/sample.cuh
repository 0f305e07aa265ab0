// Sample rows in the metadata, integer keys with the order of logits, loads of four logits, and records in the results.

#pragma once
#include "common/metadata.cuh"

constexpr u32 KEY_LOWEST = 0x007fffffu;    // −∞
constexpr u32 KEY_INFINITE = 0xff800000u;  // +∞; a NaN is above it or below KEY_LOWEST
constexpr u32 KEY_BAD = 0xffffffffu;
constexpr u32 MINUS_INFINITY = 0xff800000u;  // bits

__device__ __forceinline__ const u32 *sample_row(const u32 *metadata, u32 index) {
  return metadata + metadata[META_SAMPLES] + index * SAMPLE_WORDS;
}
__device__ __forceinline__ float row_float(const u32 *row, u32 word) { return __uint_as_float(row[word]); }

__device__ __forceinline__ bool is_adjusted(const u32 *row) {
  const bool is_penalised = row_float(row, SAMPLE_REPETITION_PENALTY) != 1.0f ||
                            row_float(row, SAMPLE_PRESENCE_PENALTY) != 0.0f ||
                            row_float(row, SAMPLE_FREQUENCY_PENALTY) != 0.0f;
  return is_penalised || row[SAMPLE_BIAS_LEN] != 0 || row[SAMPLE_MASK_START] != NONE;
}
// Greedy without any other option: such rows are handled by sample_argmax.
__device__ __forceinline__ bool is_plain(const u32 *row) {
  const bool is_reported = row[SAMPLE_LOGPROB] != 0 || row[SAMPLE_TOP_LOGPROBS] != 0;
  const bool is_drawn = row[SAMPLE_SCORED_TOKEN] == NONE;
  return row_float(row, SAMPLE_TEMPERATURE) == 0.0f && !is_reported && !is_adjusted(row) && is_drawn;
}

// Maps float bits to a u32 with the same order; −0 and subnormals get values of their own.
__device__ __forceinline__ u32 order_of(u32 bits) {
  return bits ^ (static_cast<u32>(static_cast<int>(bits) >> 31) | 0x80000000u);
}
// Maps zeros and subnormals of either sign to one key. This keeps the order, so a largest value may be flushed last.
__device__ __forceinline__ u32 flush_key(u32 order) { return order - 0x7f800000u < 0x01000000u ? 0x80000000u : order; }
__device__ __forceinline__ u32 key_of(u32 bits) { return flush_key(order_of(bits)); }
__device__ __forceinline__ float value_of(u32 key) {
  return __uint_as_float(key ^ ((key >> 31) == 1 ? 0x80000000u : 0xffffffffu));
}

// --- a row, four logits at a time ---

struct Source {
  const u32 *bits;
  u32 vocab;
  bool is_vector;  // aligned, and reading past the last logit is harmless
};

__device__ __forceinline__ u32 &part_of_four(uint4 &four, u32 i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}
__device__ __forceinline__ float &part_of_four(float4 &four, u32 i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// The four logits from index 4 · four on; −∞ past the end.
__device__ __forceinline__ uint4 load_four(const Source &source, u32 four, u32 end) {
  uint4 v = make_uint4(MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY);
  if (four < end) {
    if (source.is_vector) {
      v = reinterpret_cast<const uint4 *>(source.bits)[four];
    } else {
      const u32 *from = source.bits + four * 4;
      const u32 left = source.vocab - four * 4;
      v.x = from[0];
      if (left > 1) v.y = from[1];
      if (left > 2) v.z = from[2];
      if (left > 3) v.w = from[3];
    }
  }
  return v;
}

// Calls use(logits, four) for each group of four in [begin, end), equally often in every thread of the block; past the
// end the logits are −∞. LOADS groups are loaded at once.
template <u32 THREADS, u32 LOADS, typename Use>
__device__ __forceinline__ void each_four(const Source &source, u32 begin, u32 end, Use use) {
  for (u32 base = begin; base < end; base += THREADS * LOADS) {
    uint4 v[LOADS];
#pragma unroll
    for (u32 i = 0; i < LOADS; i++) v[i] = load_four(source, base + i * THREADS + threadIdx.x, end);
#pragma unroll
    for (u32 i = 0; i < LOADS; i++) use(v[i], base + i * THREADS + threadIdx.x);
  }
}

// What a thread has seen of a row so far.
struct Survey {
  u32 key = 0;          // the largest key
  u32 four = 0;         // index of the first group with that key
  u32 lowest = NONE;    // lowest order: a NaN with its sign set is below −∞

  __device__ __forceinline__ void take(uint4 v, u32 at) {
    const u32 a = order_of(v.x), b = order_of(v.y), c = order_of(v.z), d = order_of(v.w);
    lowest = min(lowest, min(min(a, b), min(c, d)));
    const u32 largest = flush_key(max(max(a, b), max(c, d)));
    if (largest > key) {
      key = largest;
      four = at;
    }
  }
  __device__ __forceinline__ bool is_bad() const { return key >= KEY_INFINITE || lowest < KEY_LOWEST; }
};

// --- the maximum over all threads, with its lowest id: (key, not id) in a 64-bit word ---

__device__ __forceinline__ u64 packed(u32 key, u32 id) { return static_cast<u64>(key) << 32 | (~id & 0xffffffffu); }
__device__ __forceinline__ u32 packed_key(u64 best) { return static_cast<u32>(best >> 32); }
__device__ __forceinline__ u32 packed_id(u64 best) { return ~static_cast<u32>(best); }

__device__ __forceinline__ u64 shuffle(u64 value, u32 lane) {
  const u32 low = __shfl_sync(ALL_LANES, static_cast<u32>(value), lane);
  return static_cast<u64>(__shfl_sync(ALL_LANES, static_cast<u32>(value >> 32), lane)) << 32 | low;
}
__device__ __forceinline__ u64 warp_max(u64 value) {
  for (u32 lanes = 16; lanes > 0; lanes >>= 1) {
    const u64 other = shuffle(value, (threadIdx.x % 32) ^ lanes);
    value = other > value ? other : value;
  }
  return value;
}
__device__ __forceinline__ u64 warp_sum(u64 value) {
  for (u32 lanes = 16; lanes > 0; lanes >>= 1) value += shuffle(value, (threadIdx.x % 32) ^ lanes);
  return value;
}

// `warps` holds one word per warp.
template <u32 THREADS> __device__ __forceinline__ u64 block_max(u64 value, u64 *warps) {
  value = warp_max(value);
  const u32 lane = threadIdx.x % 32;
  if (lane == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_max(lane < THREADS / 32 ? warps[lane] : 0ull);
  __syncthreads();
  return value;
}

// The largest key and its lowest id, from all threads' surveys of `source`; KEY_BAD if any thread has seen a bad logit.
template <u32 THREADS>
__device__ __forceinline__ u64 best_of(const Survey &own, bool is_bad, const Source &source, u32 end, u64 *warps) {
  uint4 v = load_four(source, own.four, end);
  u32 at = 3;
#pragma unroll
  for (u32 i = 3; i-- > 0;)
    if (key_of(part_of_four(v, i)) == own.key) at = i;
  return block_max<THREADS>(is_bad ? packed(KEY_BAD, 0) : packed(own.key, own.four * 4 + at), warps);
}
