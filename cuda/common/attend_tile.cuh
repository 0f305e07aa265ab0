// A warp's part of attention on tensor cores: strips of 16 packed rows against a tile of KEYS keys in shared memory.
//
// Queries, keys, values and weights are f16, sums f32. Of q8 and fp8 the codes themselves are multiplied: a key's scale
// multiplies its scores; a value's scale multiplies its weight, as a fraction of the largest scale so far, which stays
// within the range of f16. Exponents are base 2. Rows of a tile are an odd number of 16-byte pieces apart, so that the
// eight rows of a matrix lie in different banks for every head size.
// With codes, a 16-element step of a head is permuted so that four codes of a key form a word: elements 4t, 4t + 1 are
// at 2t, 2t + 1, and elements 4t + 2, 4t + 3 at 8 + 2t, 8 + 2t + 1. The query has the same order.
// -D: HEAD_DIM (multiple of 16), KV_Q8, KV_FP8, SOFTCAP, ALIBI.

#pragma once
#include "common/attend.cuh"

#if defined(KV_Q8) || defined(KV_FP8)
constexpr bool IS_CODED = true;
#else
constexpr bool IS_CODED = false;
#endif
#ifdef SOFTCAP
constexpr bool HAS_SOFTCAP = true;
#else
constexpr bool HAS_SOFTCAP = false;
#endif
#ifdef ALIBI
constexpr bool HAS_ALIBI = true;
#else
constexpr bool HAS_ALIBI = false;
#endif
// If so, scores stay plain products until the exponential is taken.
constexpr bool IS_PLAIN = !IS_CODED && !HAS_SOFTCAP && !HAS_ALIBI;

constexpr u32 STEPS = HEAD_DIM / 16;
constexpr u32 PIECES = IS_CODED ? HEAD_DIM / 16 : HEAD_DIM / 8;  // 16-byte pieces of a row
constexpr u32 ROW_BYTES = PIECES * 16;
constexpr u32 STRIDE = (PIECES | 1) * 16;
constexpr u32 SLOT_BYTES = IS_CODED ? HEAD_DIM + 4 : 2 * HEAD_DIM;
constexpr u32 SCALE_BYTES = IS_CODED ? 4 : 0;
// Keys and values of a tile, followed by their scales.
constexpr u32 tile_bytes(u32 keys) { return 2 * keys * (STRIDE + SCALE_BYTES); }
constexpr u32 PART = 16;  // keys that are consecutive in every block

// Which keys of a tile are valid: those of the item, in blocks that exist.
struct Span {
  u32 first, begin, end;
  u32 hidden;  // one bit per part
};

__device__ __forceinline__ bool is_there(const Span &span, u32 key) {
  return key - span.begin < span.end - span.begin && !(span.hidden >> (key - span.first) / PART & 1);
}

// The block of each part of the tile at `first`, one per lane; NONE if the part has no key of the item.
template <u32 KEYS>
__device__ __forceinline__ u32 load_entry(const Params &params, u32 table, const Item &item, u32 first, u32 lane) {
  const u32 key = first + lane * PART;
  const bool has_keys = lane < KEYS / PART && key < item.key_end && key + PART > item.key_begin;
  return has_keys ? params.metadata[table + (key >> params.block_shift)] : NONE;
}

// The range of keys that all rows of an item see, apart from hidden ones.
__device__ __forceinline__ void common_keys(const Params &params, const Item &item, u32 &begin, u32 &end) {
  const u32 last = item.position + (item.first + item.count - 1) / params.group;
  begin = max(item.key_begin, last - min(last, visible_keys(params, last) - 1));
  end = min(item.key_end, item.position + item.first / params.group + 1);
}

// Starts copying a part of a tile, 16 rows of K or of V, with THREADS threads. Where sums take most of the registers,
// addresses are not computed ahead, and UNROLL is small.
template <u32 THREADS, u32 UNROLL>
__device__ __forceinline__ void copy_part(u8 *rows, u8 *scales, const u8 *pool, const Params &params, u32 block,
                                          u32 kv_head, u32 first, const Item &item, u32 thread) {
  const u32 slots = 1u << params.block_shift, slot = first & (slots - 1);
  const bool block_is_there = block != NONE;
  const u64 tile = block_is_there ? static_cast<u64>(block) * params.kv_heads + kv_head : 0;
  const u8 *from = pool + tile * (slots * SLOT_BYTES);
#pragma unroll UNROLL
  for (u32 i = 0; i < (PART * PIECES + THREADS - 1) / THREADS; i++) {
    const u32 at = thread + i * THREADS, row = at / PIECES;
    if (PART * PIECES % THREADS != 0 && at >= PART * PIECES) break;
    const bool key_is_there = first + row - item.key_begin < item.key_end - item.key_begin;
    copy_async_16_or_zero(rows + row * STRIDE + at % PIECES * 16, from + slot * ROW_BYTES + at * 16,
                          block_is_there && key_is_there);
  }
  if (IS_CODED && thread < PART / 4)
    copy_async_16_or_zero(scales + thread * 16, from + slots * ROW_BYTES + slot * 4 + thread * 16, block_is_there);
}

// Widens two codes of each word to f16: the bytes that `SELECTOR` names (0x4b4a for bytes a and b).
template <u32 SELECTOR> __device__ __forceinline__ u32 widen_codes(u32 codes) {
#ifdef KV_FP8
  return e4m3_halves(__byte_perm(codes, 0, (SELECTOR & 0x0f0f) << 4 | 0x0404));
#else
  return add_f16x2(__byte_perm(codes ^ 0x80808080u, 0x64646464u, SELECTOR), 0xe480e480u);
#endif
}

// scores = query · keysᵀ; `query(strip, step)` returns an operand. A small UNROLL keeps few operands in registers.
template <u32 STRIPS, u32 KEYS, u32 UNROLL, typename Query>
__device__ __forceinline__ void multiply_keys(float4 (&scores)[STRIPS][KEYS / 8], const u8 *keys, u32 lane,
                                              Query query) {
#pragma unroll
  for (u32 strip = 0; strip < STRIPS; strip++)
#pragma unroll
    for (u32 i = 0; i < KEYS / 8; i++) scores[strip][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const u8 *row = keys + (IS_CODED ? lane * STRIDE : (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 16);
#pragma unroll UNROLL
  for (u32 step = 0; step < STEPS; step++) {
    uint4 a[STRIPS];
#pragma unroll
    for (u32 strip = 0; strip < STRIPS; strip++) a[strip] = query(strip, step);
#pragma unroll
    for (u32 i = 0; i < KEYS / (IS_CODED ? 32 : 16); i++) {
      const uint4 b = load_matrices(row + i * (IS_CODED ? 32 : 16) * STRIDE + step * (IS_CODED ? 16 : 32));
#pragma unroll
      for (u32 strip = 0; strip < STRIPS; strip++) {
        if constexpr (IS_CODED) {
          const u32 words[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
          for (u32 n = 0; n < 4; n++)
            multiply_f16(scores[strip][4 * i + n], a[strip],
                         make_uint2(widen_codes<0x4140>(words[n]), widen_codes<0x4342>(words[n])));
        } else {
          multiply_f16(scores[strip][2 * i], a[strip], make_uint2(b.x, b.y));
          multiply_f16(scores[strip][2 * i + 1], a[strip], make_uint2(b.z, b.w));
        }
      }
    }
  }
}

// out += weights · values. With codes, tiles 2d and 2d + 1 are the even and the odd elements of step d.
template <u32 STRIPS, u32 KEYS>
__device__ __forceinline__ void multiply_values(float4 (&out)[STRIPS][2 * STEPS],
                                                const uint4 (&weights)[STRIPS][KEYS / 16], const u8 *values, u32 lane) {
  const u8 *row = values + (IS_CODED ? lane * STRIDE : lane % 16 * STRIDE + lane / 16 * 16);
#pragma unroll
  for (u32 i = 0; i < KEYS / (IS_CODED ? 32 : 16); i++)
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
      const uint4 b = load_matrices_transposed(row + i * (IS_CODED ? 32 : 16) * STRIDE + step * (IS_CODED ? 16 : 32));
      if constexpr (IS_CODED) {
        const uint2 even[2] = {make_uint2(widen_codes<0x4240>(b.x), widen_codes<0x4240>(b.y)),
                               make_uint2(widen_codes<0x4240>(b.z), widen_codes<0x4240>(b.w))};
        const uint2 odd[2] = {make_uint2(widen_codes<0x4341>(b.x), widen_codes<0x4341>(b.y)),
                              make_uint2(widen_codes<0x4341>(b.z), widen_codes<0x4341>(b.w))};
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++)
#pragma unroll
          for (u32 half = 0; half < 2; half++) {
            multiply_f16(out[strip][2 * step], weights[strip][2 * i + half], even[half]);
            multiply_f16(out[strip][2 * step + 1], weights[strip][2 * i + half], odd[half]);
          }
      } else {
#pragma unroll
        for (u32 strip = 0; strip < STRIPS; strip++) {
          multiply_f16(out[strip][2 * step], weights[strip][i], make_uint2(b.x, b.y));
          multiply_f16(out[strip][2 * step + 1], weights[strip][i], make_uint2(b.z, b.w));
        }
      }
    }
}

// The rows of a lane, 8 apart, with their results so far. With codes, weights are parts of the tile's largest scale,
// which may belong to a key that a row does not see. They are scaled close to the maximum of f16, so that small weights
// are still normal numbers.
constexpr float WEIGHTS_SPREAD = 32768.0f;

template <u32 STRIPS> struct Rows {
  u32 position[2];
  u32 *positions;  // with two strips: in shared memory, to save registers
  float slope[2 * STRIPS];
  float largest[2 * STRIPS];     // exponent, before `factor` where IS_PLAIN
  float4 sum;                    // of weights: x, z for strip 0, y, w for strip 1; with codes only the lane's part
  float4 out[STRIPS][2 * STEPS];
  float unit;  // with codes: the largest scale of a value; out is in multiples of it
};

__device__ __forceinline__ float &sum_of(float4 &sum, u32 i) {
  return i < 2 ? (i % 2 ? sum.z : sum.x) : (i % 2 ? sum.w : sum.y);
}
template <u32 STRIPS> __device__ __forceinline__ u32 position_of(const Rows<STRIPS> &rows, u32 i) {
  if constexpr (STRIPS == 1) return rows.position[i];
  else return rows.positions[i * 8];
}

template <u32 STRIPS>
__device__ __forceinline__ void begin_rows(Rows<STRIPS> &rows, const Params &params, const Item &item, u32 first,
                                           u32 kv_head, u32 lane) {
  rows.unit = 0.0f;
  rows.sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (u32 strip = 0; strip < STRIPS; strip++)
#pragma unroll
    for (u32 i = 0; i < 2 * STEPS; i++) rows.out[strip][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (u32 i = 0; i < 2 * STRIPS; i++) {
    const u32 packed = item.first + min(first + i * 8 + lane / 4, item.count - 1);
    const u32 position = item.position + packed / params.group;
    if constexpr (STRIPS == 1) rows.position[i] = position;
    else if (lane % 4 == 0) rows.positions[i * 8] = position;
    rows.slope[i] = HAS_ALIBI ? params.alibi[kv_head * params.group + packed % params.group] * LOG2_E : 0.0f;
    rows.largest[i] = LOWEST;
  }
  if constexpr (STRIPS > 1) __syncwarp();
}

// The factor from a product to an exponent; with a softcap c, to twice the argument of c · tanh.
__device__ __forceinline__ float score_factor(const Params &params) {
  return HAS_SOFTCAP ? 2.0f * LOG2_E * params.scale / params.softcap : LOG2_E * params.scale;
}

__device__ __forceinline__ float to_exponent(const Params &params, float product, float factor, float slope,
                                             u32 key, u32 position) {
  float value = product * factor;
  if (HAS_SOFTCAP) {
    const float cap = params.softcap * LOG2_E;
    value = cap - 2.0f * cap * reciprocal_near(1.0f + exp2_near(value));
  }
  if (HAS_ALIBI) value += slope * static_cast<float>(static_cast<int>(key - position));
  return value;
}

// Turns products into exponents: LOWEST if a row does not see a key.
template <u32 STRIPS, u32 KEYS>
__device__ __forceinline__ void make_exponents(float4 (&scores)[STRIPS][KEYS / 8], const Rows<STRIPS> &rows,
                                               const Params &params, const Span &span, const float *scales,
                                               bool is_masked, u32 lane) {
#pragma unroll
  for (u32 n = 0; n < KEYS / 8; n++) {
    const u32 column = n * 8 + lane % 4 * 2;
    const float factor = score_factor(params);
    float2 factors = make_float2(factor, factor);
    if (IS_CODED) {
      const float2 pair = *reinterpret_cast<const float2 *>(scales + column);
      factors = make_float2(factor * pair.x, factor * pair.y);
    }
#pragma unroll
    for (u32 i = 0; i < 2 * STRIPS; i++) {
      float4 &four = scores[i / 2][n];
      float &low = i % 2 ? four.z : four.x, &high = i % 2 ? four.w : four.y;
      const u32 key = span.first + column;
      if (!IS_PLAIN) {
        const u32 position = HAS_ALIBI ? position_of(rows, i) : 0;
        low = to_exponent(params, low, factors.x, rows.slope[i], key, position);
        high = to_exponent(params, high, factors.y, rows.slope[i], key + 1, position);
      }
      if (is_masked) {
        const u32 position = position_of(rows, i), seen = visible_keys(params, position);
        // If the key comes after the position, the difference wraps around.
        if (key > position || position - key >= seen || !is_there(span, key)) low = LOWEST;
        if (key + 1 > position || position - key - 1 >= seen || !is_there(span, key + 1)) high = LOWEST;
      }
    }
  }
}

// Raises `unit` to the largest scale of the tile's values; returns the factor for the sums so far.
template <u32 KEYS, u32 STRIPS>
__device__ __forceinline__ float raise_unit(Rows<STRIPS> &rows, const Span &span, const float *scales, u32 lane) {
  float largest = 0.0f;
#pragma unroll
  for (u32 i = 0; i < KEYS; i += 32)
    if (is_there(span, span.first + i + lane)) largest = fmaxf(largest, scales[i + lane]);
  const float old = rows.unit;
  rows.unit = fmaxf(old, warp_max(largest));
  return rows.unit > old ? old / rows.unit : 1.0f;
}

// Raises the rows' largest exponents and rescales the sums so far.
template <u32 STRIPS, u32 KEYS>
__device__ __forceinline__ void raise_largest(Rows<STRIPS> &rows, const float4 (&scores)[STRIPS][KEYS / 8],
                                              float factor, float unit_factor) {
  float rescale[2 * STRIPS];
  bool changes = unit_factor != 1.0f;
#pragma unroll
  for (u32 i = 0; i < 2 * STRIPS; i++) {
    float largest = rows.largest[i];
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; n++) {
      const float4 &four = scores[i / 2][n];
      largest = fmaxf(largest, i % 2 ? fmaxf(four.z, four.w) : fmaxf(four.x, four.y));
    }
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
    rescale[i] = exp2_near((rows.largest[i] - largest) * (IS_PLAIN ? factor : 1.0f));
    changes |= largest > rows.largest[i];
    rows.largest[i] = largest;
  }
  if (!__any_sync(ALL_LANES, changes)) return;
#pragma unroll
  for (u32 strip = 0; strip < STRIPS; strip++) {
    const float low = rescale[2 * strip], high = rescale[2 * strip + 1];
    sum_of(rows.sum, 2 * strip) *= low;
    sum_of(rows.sum, 2 * strip + 1) *= high;
#pragma unroll
    for (u32 i = 0; i < 2 * STEPS; i++) {
      float4 &four = rows.out[strip][i];
      four.x *= low * unit_factor;
      four.y *= low * unit_factor;
      four.z *= high * unit_factor;
      four.w *= high * unit_factor;
    }
  }
}

// With codes, the value of one unit of `out`.
template <u32 STRIPS> __device__ __forceinline__ float unit_of(const Rows<STRIPS> &rows) {
  return IS_CODED ? rows.unit * (1.0f / WEIGHTS_SPREAD) : 1.0f;
}

// Weights of the values as f16, and their sums. With f16, the sums are of the rounded weights, by a product with ones.
template <u32 STRIPS, u32 KEYS>
__device__ __forceinline__ void make_weights(uint4 (&weights)[STRIPS][KEYS / 16], float4 (&scores)[STRIPS][KEYS / 8],
                                             Rows<STRIPS> &rows, const Span &span, const float *scales, float factor,
                                             bool is_masked, u32 lane) {
  const float inverse = IS_CODED && rows.unit > 0.0f ? WEIGHTS_SPREAD / rows.unit : 0.0f;
#pragma unroll
  for (u32 n = 0; n < KEYS / 8; n++) {
    const u32 column = n * 8 + lane % 4 * 2;
    float2 shares = make_float2(1.0f, 1.0f);
    if (IS_CODED) {
      shares = *reinterpret_cast<const float2 *>(scales + column);
      if (is_masked && !is_there(span, span.first + column)) shares.x = 0.0f;
      if (is_masked && !is_there(span, span.first + column + 1)) shares.y = 0.0f;
      shares.x *= inverse;
      shares.y *= inverse;
    }
#pragma unroll
    for (u32 i = 0; i < 2 * STRIPS; i++) {
      const float4 &four = scores[i / 2][n];
      const float by = IS_PLAIN ? factor : 1.0f;
      const float base = rows.largest[i] == LOWEST ? 0.0f : rows.largest[i] * by;
      const float low = exp2_near((i % 2 ? four.z : four.x) * by - base);
      const float high = exp2_near((i % 2 ? four.w : four.y) * by - base);
      if (IS_CODED) sum_of(rows.sum, i) += low + high;
      const u32 pair = IS_CODED ? pack_f16(low * shares.x, high * shares.y) : pack_f16(low, high);
      uint4 &a = weights[i / 2][n / 2];
      (n % 2 ? (i % 2 ? a.w : a.z) : (i % 2 ? a.y : a.x)) = pair;
    }
  }
  if constexpr (!IS_CODED) {
    // Ones in every other column, so that each strip's sums are in separate columns.
#pragma unroll
    for (u32 strip = 0; strip < STRIPS; strip++) {
      const u32 ones = STRIPS == 1 || lane / 4 % 2 == strip ? 0x3c003c00u : 0;
#pragma unroll
      for (u32 i = 0; i < KEYS / 16; i++) multiply_f16(rows.sum, weights[strip][i], make_uint2(ones, ones));
    }
  }
}

// After the last key: sums over whole rows, and largest as exponents.
template <u32 STRIPS> __device__ __forceinline__ void end_rows(Rows<STRIPS> &rows, const Params &params) {
  if constexpr (IS_CODED) {
#pragma unroll
    for (u32 i = 0; i < 2 * STRIPS; i++) {
      float &sum = sum_of(rows.sum, i);
      sum += __shfl_xor_sync(ALL_LANES, sum, 1);
      sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    }
  }
  if constexpr (IS_PLAIN) {
#pragma unroll
    for (u32 i = 0; i < 2 * STRIPS; i++)
      if (rows.largest[i] != LOWEST) rows.largest[i] *= score_factor(params);
  }
}
