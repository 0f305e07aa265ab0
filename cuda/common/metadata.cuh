// A batch as the kernels read it: one buffer of words, written once per batch. What lies where is said by the table in
// src/backend/metadata.rs, whose numbers prelude.cuh includes as constants.
//
// A program is recorded for a number of rows and replayed for any batch that has no more: counts are read from here,
// never from a kernel's params.

#pragma once
#include "common/prelude.cuh"

__device__ __forceinline__ u32 metadata_at(const u32 *metadata, u32 header, u32 index) {
  return metadata[metadata[header] + index];
}
