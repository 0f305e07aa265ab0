// Logprobs of the raw logits for the rows that request them: of the token that `sample` has drawn, with its rank, and
// of the most likely tokens in order, or of those that the mask allows: `sample` has left these in the scratch row.
//
// logits [logits rows][vocab] f32; scratch as in `sample`; results [sample row][record], whose id is read and whose
// logprobs are written.
// logprob(id) = l[id] − l_max − ln Σ exp(l − l_max). One block: one sample row. The n-th largest of the threads' maxima
// is a lower bound for the top list; only rows with hundreds of ties need histograms.
// Grid: rows of this launch. Twin: backend/reference/sample.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/sample_threshold.cuh"

// max + ln Σ exp(l − max), in two parts; and the number of logits above that of a token, which is below 2²⁴.
struct LogTotal {
  float largest;
  float log_sum;
  float above;

  __device__ __forceinline__ float logprob(u32 bits) const { return value_of(key_of(bits)) - largest - log_sum; }
};

// Four partial sums per thread keep the rounding of 2¹⁷ terms near 1e-6.
__device__ __forceinline__ LogTotal log_total(Shared &shared, const Source &source, float largest, u32 token) {
  const u32 own = key_of(source.bits[token]);
  float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  u32 above = 0;
  each_four<THREADS, 4>(source, 0, ceil_div(source.vocab, 4), [&](uint4 v, u32) {
    above += (key_of(v.x) > own) + (key_of(v.y) > own) + (key_of(v.z) > own) + (key_of(v.w) > own);
    sums.x += expf(__uint_as_float(v.x) - largest);
    sums.y += expf(__uint_as_float(v.y) - largest);
    sums.z += expf(__uint_as_float(v.z) - largest);
    sums.w += expf(__uint_as_float(v.w) - largest);
  });
  const float sum = block_sum((sums.x + sums.y) + (sums.z + sums.w), shared.sums);
  return {largest, logf(sum), block_sum(static_cast<float>(above), shared.sums)};
}

// Lists the keys above `least`, and those equal to it with ids up to `last`. Ends with a barrier.
__device__ __forceinline__ void list_top(Shared &shared, const Source &source, u32 least, u32 last) {
  clear_list(shared);
  each_four<THREADS, 2>(source, 0, ceil_div(source.vocab, 4), [&](uint4 v, u32 four) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 key = key_of(part_of_four(v, i)), id = four * 4 + i;
      if (key > least || (key == least && id <= last)) keep_candidate(shared, key, id);
    }
  });
  __syncthreads();
}

// How the list is cut to size: by a bound; if too many keys are above it, by the count-th largest key, of whose ties
// the lowest ids are taken.
enum Cut : u32 { BOUND, BY_KEY, BY_ID, CUTS };
// Longer lists are cut. A bound for 20 keys leaves about 20.
constexpr u32 LISTED_MAX = 512;

// Lists the `count` largest keys above −∞, and perhaps some more. `own` is the largest key in this thread's part of the
// row, `highest` that of the whole row. The count-th largest of the threads' maxima is never above the row's count-th
// largest.
__device__ __forceinline__ void find_top(Shared &shared, const Source &source, u32 own, u32 highest, u32 count) {
  u32 least = KEY_LOWEST + 1;
  shared.keys[threadIdx.x] = own;
  __syncthreads();
#pragma unroll 1
  for (u32 cut = BOUND; cut < CUTS; cut++) {
    const Walk walk = {source, cut == BOUND ? THREADS : 0, cut == BY_ID, least};
    Target target = {KEY_LOWEST + 1, highest, 0, count};
    if (cut == BY_ID) target = {~source.vocab, NONE, 0, count - min(shared.count, count)};
    const u32 found = threshold(shared, walk, target, target.low, [](u32) { return 1u; });
    if (cut != BY_ID) least = found;
    // For BY_KEY, the keys above the threshold are listed and counted first.
    list_top(shared, source, cut == BY_KEY ? least + 1 : least, cut == BY_ID ? ~found : NONE);
    if (cut == BOUND && shared.count <= LISTED_MAX) return;
  }
}

// Writes the list in order; NONE past its end.
__device__ __forceinline__ void write_top(const Shared &shared, const Source &source, u32 count, const LogTotal &total,
                                          u32 *result) {
  const u32 listed = shared.count;
  for (u32 i = threadIdx.x; i < listed; i += THREADS) {
    const u32 key = shared.keys[i], id = shared.ids[i];
    u32 rank = 0;
    for (u32 j = 0; j < listed; j++) {
      const u32 other = shared.keys[j];
      rank += other > key || (other == key && shared.ids[j] < id) ? 1 : 0;
    }
    if (rank < count) {
      u32 *likely = result + RESULT_WORDS + rank * LIKELY_WORDS;
      likely[LIKELY_ID] = id;
      likely[LIKELY_LOGPROB] = __float_as_uint(total.logprob(source.bits[id]));
    }
  }
  for (u32 i = min(listed, count) + threadIdx.x; i < count; i += THREADS)
    result[RESULT_WORDS + i * LIKELY_WORDS + LIKELY_ID] = NONE;
}

KERNEL(sample_logprobs, 1024, 1) {
  __shared__ Shared shared;
  const u32 index = params.row_first + blockIdx.x;
  if (index >= params.metadata[META_SAMPLE_COUNT]) return;
  const u32 *row = sample_row(params.metadata, index);
  const u32 top = min(row[SAMPLE_TOP_LOGPROBS], TOP_LOGPROBS_MAX);
  if (row[SAMPLE_LOGPROB] == 0 && top == 0) return;
  u32 *result = params.results + index * params.metadata[META_RESULT_STRIDE];
  const u32 chosen = result[RESULT_TOKEN_ID];
  if (chosen == NUMERICAL_ERROR) {
    if (threadIdx.x < top) result[RESULT_WORDS + threadIdx.x * LIKELY_WORDS + LIKELY_ID] = NONE;
    return;
  }
  const u32 vocab = params.vocab, fours = ceil_div(vocab, 4);
  const Source source = {params.logits + static_cast<u64>(row[SAMPLE_LOGITS_ROW]) * vocab, vocab, vocab % 4 == 0};
  Survey own;
  each_four<THREADS, 4>(source, 0, fours, [&](uint4 v, u32 four) { own.take(v, four); });
  const u32 highest = packed_key(block_max<THREADS>(packed(own.key, 0), shared.warps));
  const LogTotal total = log_total(shared, source, value_of(highest), chosen);
  if (threadIdx.x == 0 && row[SAMPLE_LOGPROB] != 0) {
    result[RESULT_LOGPROB] = __float_as_uint(total.logprob(source.bits[chosen]));
    result[RESULT_RANK] = 1 + static_cast<u32>(total.above);
  }
  if (top == 0) return;
  const bool is_masked = row[SAMPLE_TOP_ALLOWED] != 0 && is_adjusted(row);
  Source listed = source;
  u32 largest = highest;
  if (is_masked) {
    listed = Source{params.scratch + static_cast<u64>(blockIdx.x) * fours * 4, vocab, true};
    own = Survey();
    each_four<THREADS, 4>(listed, 0, fours, [&](uint4 v, u32 four) { own.take(v, four); });
    largest = packed_key(block_max<THREADS>(packed(own.key, 0), shared.warps));
  }
  find_top(shared, listed, own.key, largest, top);
  write_top(shared, source, top, total, result);
}
