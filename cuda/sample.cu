// Draws one token per sample row, following the steps of its twin. Rows that are greedy without any other option are
// left to sample_argmax.
//
// logits [logits rows][vocab] f32; scratch [rows of this launch][vocab, rounded up to a multiple of 4], used only for
// rows with bias, penalties or mask; results [sample row][record], to which sample_logprobs adds the logprobs;
// feed[slot] = id.
// One block: one sample row. A first pass finds the largest logit of the row and of each thread. The k-th largest of
// the threads' maxima is a lower bound for all top-k tokens, so a second pass lists a few hundred candidates in shared
// memory, where the rest happens; top-p uses the same list if it holds enough weight. Only what does not fit (flat
// rows, hundreds of ties, a large k) is searched in the whole row with histograms. Without top-k and top-p, noise is
// computed only for the few tokens that can still win.
// Grid: rows of this launch. Twin: backend/reference/sample.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/philox.cuh"
#include "common/sample_adjust.cuh"
#include "common/sample_threshold.cuh"

// The largest noise is 17.33: a token this far below the best score cannot win. Includes a margin for rounding.
constexpr float NOISE_MAX = 17.4f;
// Weights are zero below d = −17.33.
constexpr float WEIGHT_RANGE = 17.5f;
// For k above this, the whole row is searched; also the rank of the bound for top-p.
constexpr u32 RANK_MAX = 768;
constexpr u32 SHARE_ONE = 1u << 20;

// Compares probabilities: d = (value − largest) / temperature; tokens with d below `lowest` are out.
struct Scale {
  float largest;
  float inverse;
  float lowest;

  __device__ __forceinline__ float distance(u32 key) const {
    return __fmul_rn(__fsub_rn(value_of(key), largest), inverse);
  }
  __device__ __forceinline__ u32 weight(u32 key) const { return weight_at(distance(key)); }
  __device__ __forceinline__ u32 weight_at(float d) const {
    return static_cast<u32>(rintf(expf(fminf(d, 0.0f)) * 16777216.0f));
  }
};

// The words that all draws of a row share.
struct Noise {
  uint2 seed;
  u32 position;
  u32 seed_high;

  __device__ __forceinline__ uint4 words(u32 four) const {
    return philox(make_uint4(position, four, seed_high, 0), seed);
  }
};

__device__ __forceinline__ float score_of(const Noise &noise, u32 id, float d) {
  uint4 words = noise.words(id / 4);
  return d + gumbel(part_of_four(words, id % 4));
}

// Gumbel-max over the whole row. Every thread starts with the score of the most likely token, which is always kept.
__device__ __forceinline__ u64 draw_from_row(Shared &shared, const Source &source, const Noise &noise,
                                             const Scale &scale, u32 floor, u32 likely) {
  u64 winner = packed(key_of(__float_as_uint(score_of(noise, likely, 0.0f))), likely);
  each_four<THREADS, 1>(source, 0, ceil_div(source.vocab, 4), [&](uint4 v, u32 four) {
    // Distances of the tokens that can still win; LOWEST for the others.
    float best = value_of(packed_key(winner));
    float4 d = make_float4(LOWEST, LOWEST, LOWEST, LOWEST);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 key = key_of(part_of_four(v, i));
      const float own = scale.distance(key);
      if (key >= floor && own >= scale.lowest && own + NOISE_MAX >= best) part_of_four(d, i) = own;
    }
    if (fmaxf(fmaxf(d.x, d.y), fmaxf(d.z, d.w)) == LOWEST) return;
    uint4 words = noise.words(four);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 word = part_of_four(words, i);
      const float own = part_of_four(d, i);
      // A token wins only if −ln u ≤ exp(d − best), and −ln u is above 1 − u.
      if (one_minus_uniform(word) > 1.001f * expf(own - best)) continue;
      const float score = own + gumbel(word);
      const u64 other = packed(key_of(__float_as_uint(score)), four * 4 + i);
      winner = other > winner ? other : winner;
      best = fmaxf(best, score);
    }
  });
  return block_max<THREADS>(winner, shared.warps);
}

__device__ __forceinline__ u64 draw_from_list(Shared &shared, const Noise &noise, const Scale &scale, u32 floor) {
  u64 winner = 0;
  for (u32 i = threadIdx.x; i < shared.count; i += THREADS) {
    const u32 key = shared.keys[i], id = shared.ids[i];
    if (key < floor) continue;
    const u64 other = packed(key_of(__float_as_uint(score_of(noise, id, scale.distance(key)))), id);
    winner = other > winner ? other : winner;
  }
  return block_max<THREADS>(winner, shared.warps);
}

// Lists what min-p keeps, from `least` on upwards. Returns the weight of everything that min-p keeps, if requested.
__device__ __forceinline__ u64 list_candidates(Shared &shared, const Source &source, const Scale &scale, u32 least,
                                               bool is_weighted) {
  clear_list(shared);
  u64 total = 0;
  each_four<THREADS, 4>(source, 0, ceil_div(source.vocab, 4), [&](uint4 v, u32 four) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 key = key_of(part_of_four(v, i));
      if (key <= KEY_LOWEST || (!is_weighted && key < least)) continue;
      const float d = scale.distance(key);
      if (!(d >= scale.lowest)) continue;
      if (is_weighted && d > -WEIGHT_RANGE) total += scale.weight_at(d);
      if (key >= least) keep_candidate(shared, key, four * 4 + i);
    }
  });
  return block_sum(total, shared.warps);
}

// Which of a row's largest values are kept.
struct Kept {
  u32 top_k;  // 0: all
  u32 share;  // in units of 2⁻²⁰; 0: all
};

// The rules in order; BOUND makes the list that the others search.
enum Rule : u32 { BOUND, TOP_K, TOP_P, RULES };

// The lowest key that top-k and top-p keep. `is_listed` returns whether the list holds all kept tokens. One loop for
// all rules, so that the search is compiled once.
__device__ __forceinline__ u32 kept_floor(Shared &shared, const Source &source, const Scale &scale, const Kept &kept,
                                          u32 own, u32 highest, bool &is_listed) {
  const u32 rank = kept.top_k ? kept.top_k : RANK_MAX;
  const bool is_small = source.vocab <= LIST;
  u32 floor = KEY_LOWEST + 1;
  u64 total = 0;
  is_listed = is_small || rank <= RANK_MAX;
  shared.keys[threadIdx.x] = own;
  __syncthreads();
#pragma unroll 1
  for (u32 rule = BOUND; rule < RULES;) {
    u32 key = floor;
    if (rule == BOUND ? is_listed && !is_small : rule == TOP_K ? kept.top_k != 0 : kept.share != 0) {
      const Walk walk = {source, rule == BOUND ? THREADS : is_listed ? shared.count : 0, false, 0};
      Target target = {floor, highest, 0, rank};
      if (rule == TOP_P) {
        const float weighty = scale.largest - WEIGHT_RANGE / scale.inverse;
        if (weighty > LOWEST) target.low = max(floor, key_of(__float_as_uint(weighty)));
        target.share = is_listed && !kept.top_k ? 0 : kept.share;
        target.sum = (total * kept.share + (SHARE_ONE - 1)) >> 20;
      }
      // The list may hold too little weight for top-p, and fewer than k tokens: then all of it is kept.
      const u32 none = rule == TOP_P && is_listed ? 0 : floor;
      key = threshold(shared, walk, target, none, [&](u32 key) {
        const float d = scale.distance(key);
        return !(d >= scale.lowest) ? 0 : rule == TOP_P ? scale.weight_at(d) : 1u;
      });
    }
    if (rule == BOUND && is_listed) {
      total = list_candidates(shared, source, scale, key, kept.top_k == 0);
      if (shared.count > LIST) key = 0;
    }
    if (key == 0) {
      is_listed = false;
      key = KEY_LOWEST + 1;
      rule = rule == TOP_P ? TOP_P : TOP_K;
    } else {
      rule++;
    }
    floor = key;
  }
  return floor;
}

// Draws the id of a row with temperature.
__device__ __forceinline__ u32 draw(Shared &shared, const u32 *row, const Source &source, u32 own, u64 best) {
  const u32 highest = packed_key(best);
  const float min_p = row_float(row, SAMPLE_MIN_P);
  const Scale scale = {value_of(highest), fminf(1.0f / row_float(row, SAMPLE_TEMPERATURE), -LOWEST),
                       min_p > 0.0f ? logf(min_p) : LOWEST};
  const u32 top_k = row[SAMPLE_TOP_K];
  const u32 share = static_cast<u32>(fminf(row_float(row, SAMPLE_TOP_P), 1.0f) * 1048576.0f + 0.5f);
  const Kept kept = {top_k < source.vocab ? top_k : 0, share < SHARE_ONE ? max(share, 1u) : 0};
  u32 floor = KEY_LOWEST + 1;
  bool is_listed = false;
  if (kept.top_k || kept.share) floor = kept_floor(shared, source, scale, kept, own, highest, is_listed);
  // Loaded only now: the search leaves no registers to spare.
  const Noise noise = {make_uint2(row[SAMPLE_SEED_LOW], row[SAMPLE_CHOICE]), row[SAMPLE_POSITION],
                       row[SAMPLE_SEED_HIGH]};
  if (is_listed) return packed_id(draw_from_list(shared, noise, scale, floor));
  return packed_id(draw_from_row(shared, source, noise, scale, floor, packed_id(best)));
}

KERNEL(sample, 1024, 1) {
  __shared__ Shared shared;
  const u32 index = params.row_first + blockIdx.x;
  if (index >= params.metadata[META_SAMPLE_COUNT]) return;
  const u32 *row = sample_row(params.metadata, index);
  if (is_plain(row)) return;

  const u32 vocab = params.vocab, fours = ceil_div(vocab, 4);
  const Source raw = {params.logits + static_cast<u64>(row[SAMPLE_LOGITS_ROW]) * vocab, vocab, vocab % 4 == 0};
  Source source = raw;
  Survey own;
  bool is_bad;
  // A scored token is known, not drawn.
  const u32 scored_token = row[SAMPLE_SCORED_TOKEN];
  if (is_adjusted(row) && scored_token == NONE) {
    u32 *adjusted = params.scratch + static_cast<u64>(blockIdx.x) * fours * 4;
    is_bad = adjust(params, shared, row, raw, adjusted, own);
    source = Source{adjusted, vocab, true};
  } else {
    each_four<THREADS, 4>(raw, 0, fours, [&](uint4 v, u32 four) { own.take(v, four); });
    is_bad = own.is_bad();
  }
  const u64 best = best_of<THREADS>(own, is_bad, source, fours, shared.warps);
  const bool is_error = packed_key(best) == KEY_BAD || packed_key(best) <= KEY_LOWEST;
  u32 chosen = is_error ? NUMERICAL_ERROR : packed_id(best);
  if (!is_error && scored_token != NONE) chosen = scored_token;
  else if (!is_error && row_float(row, SAMPLE_TEMPERATURE) != 0.0f) chosen = draw(shared, row, source, own.key, best);

  if (threadIdx.x != 0) return;
  u32 *result = params.results + index * params.metadata[META_RESULT_STRIDE];
  result[RESULT_TOKEN_ID] = chosen;
  result[RESULT_LOGPROB] = 0;
  result[RESULT_RANK] = 0;
  const u32 slot = row[SAMPLE_FEED_SLOT];
  if (slot != NONE) params.feed[slot] = is_error ? 0 : chosen;
}
