// A batch as the kernels read it: one buffer of words, written once per batch. The first four words are counts, then
// offsets of the arrays in words; src/backend/words.rs writes them.
//
// A program is recorded for a number of rows and replayed for any batch that has no more: counts are read from here,
// never from a kernel's params.

#pragma once
#include "common/prelude.cuh"

constexpr u32 META_TOKENS = 0;
constexpr u32 META_SEQUENCES = 1;
constexpr u32 META_LOGITS = 2;
constexpr u32 META_SAMPLES = 3;

constexpr u32 META_TOKEN_IDS = 4;
constexpr u32 META_POSITIONS = 5;
constexpr u32 META_SEQUENCE_ROWS = 6;  // row_start, row_count, context_len, 0
constexpr u32 META_LOGITS_ROWS = 7;
constexpr u32 META_SAMPLE_ROWS = 8;
constexpr u32 META_HISTORY = 9;  // token id, times generated
constexpr u32 META_BIAS = 10;    // token id, bias
constexpr u32 META_MASKS = 11;
constexpr u32 META_POOLS = 12;      // row_start, row_count
constexpr u32 META_POOL_ROWS = 13;  // a count

// From the first header word of a KV group.
constexpr u32 GROUP_TABLES = 0;
constexpr u32 GROUP_STARTS = 1;  // of each sequence's table
constexpr u32 GROUP_SLOTS = 2;
constexpr u32 GROUP_COPIES = 3;  // source, target
constexpr u32 GROUP_COPY_COUNT = 4;
constexpr u32 GROUP_WORK = 5;  // of attention

__device__ __forceinline__ u32 metadata_at(const u32 *metadata, u32 header, u32 index) {
  return metadata[metadata[header] + index];
}
