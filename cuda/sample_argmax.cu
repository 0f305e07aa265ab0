// Handles plain greedy rows: the lowest id with the largest logit, or NUMERICAL_ERROR.
//
// logits [logits rows][vocab] f32; results [sample row][record]; feed[slot] = id.
// One block: one part of one sample row. The parts of a row are combined in states[row]; the last block to finish
// writes the row and resets the state to zero. Rows that are not plain are drawn by `sample`.
// Grid: parts, rows of the bucket. Twin: backend/reference/sample.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/sample.cuh"

// The combined result of a row's parts.
struct State {
  u64 best;  // packed key and id
  u32 arrived;
  u32 unused;
};

struct Params {
  const u32 *metadata;
  const u32 *logits;
  State *states;
  u32 *feed;
  u32 *results;
  u32 vocab;
  u32 part_fours;  // groups of four logits per part
};

constexpr u32 THREADS = 256;

KERNEL(sample_argmax, 256, 4) {
  __shared__ u64 warps[THREADS / 32];
  const u32 index = blockIdx.y;
  if (index >= params.metadata[META_SAMPLE_COUNT]) return;
  const u32 *row = sample_row(params.metadata, index);
  if (!is_plain(row)) return;

  const u32 *bits = params.logits + static_cast<u64>(row[SAMPLE_LOGITS_ROW]) * params.vocab;
  const Source source = {bits, params.vocab, params.vocab % 4 == 0};
  const u32 begin = blockIdx.x * params.part_fours;
  const u32 end = min(begin + params.part_fours, ceil_div(params.vocab, 4));
  Survey own;
  each_four<THREADS, 4>(source, begin, end, [&](uint4 v, u32 four) { own.take(v, four); });
  const u64 part = best_of<THREADS>(own, own.is_bad(), source, end, warps);
  if (threadIdx.x != 0) return;

  State &state = params.states[index];
  atomicMax(&state.best, part);
  __threadfence();
  if (atomicAdd(&state.arrived, 1u) + 1 < gridDim.x) return;
  __threadfence();
  const u64 best = atomicExch(&state.best, 0ull);
  state.arrived = 0;
  const u32 key = packed_key(best);
  const bool is_error = key == KEY_BAD || key <= KEY_LOWEST;
  u32 *result = params.results + index * params.metadata[META_RESULT_STRIDE];
  result[RESULT_TOKEN_ID] = is_error ? NUMERICAL_ERROR : packed_id(best);
  result[RESULT_LOGPROB] = 0;
  result[RESULT_RANK] = 0;
  const u32 slot = row[SAMPLE_FEED_SLOT];
  if (slot != NONE) params.feed[slot] = is_error ? 0 : packed_id(best);
}
