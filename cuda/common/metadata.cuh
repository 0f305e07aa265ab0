// The layout of a batch for the kernels: one buffer of words, written once per batch. The table in
// src/backend/metadata.rs defines it; prelude.cuh includes its numbers as constants.
//
// A program is recorded for a number of rows and replayed for any batch with at most as many. So counts are read from
// here, never from a kernel's params.

#pragma once
#include "common/prelude.cuh"

__device__ __forceinline__ u32 metadata_at(const u32 *metadata, u32 header, u32 index) {
  return metadata[metadata[header] + index];
}

// The last sequence that starts at or before `row`: sequences cover the rows in order.
__device__ __forceinline__ u32 sequence_of(const u32 *metadata, u32 row) {
  u32 low = 0, high = metadata[META_SEQUENCE_COUNT];
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (metadata_at(metadata, META_SEQUENCES, middle * SEQUENCE_WORDS + SEQUENCE_ROW_START) <= row) low = middle;
    else high = middle;
  }
  return low;
}
