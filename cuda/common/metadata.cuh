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
