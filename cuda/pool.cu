// pooled[p][c] = sum of x[r][c] over the rows r of pooled row p.
//
// x [tokens][columns] of -DX_TYPE, pooled [pooled rows][columns] f32. A thread: 8 columns of one pooled row. Partial
// sums of 16 rows are added up, which rounds less than one long sum.
// Twin: backend/reference/pool.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct Params {
  const X_TYPE *x;
  float *pooled;
  const u32 *metadata;
  u32 rows;  // maximum rows of the bucket
  u32 eights;
};

constexpr u32 RUN = 16;

KERNEL(pool, 128, 1) {
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 row = at / params.eights, eight = at % params.eights;
  if (row >= min(params.rows, params.metadata[META_POOL_COUNT])) return;
  const u32 start = metadata_at(params.metadata, META_POOLS, POOL_WORDS * row + POOL_ROW_START);
  const u32 end = start + metadata_at(params.metadata, META_POOLS, POOL_WORDS * row + POOL_ROW_COUNT);
  Eight total = {};
  for (u32 first = start; first < end; first += RUN) {
    Eight sum = {};
    for (u32 r = first; r < min(first + RUN, end); r++) {
      const Eight values = load_eight(params.x + (static_cast<u64>(r) * params.eights + eight) * 8);
      for (u32 i = 0; i < 8; i++) sum.v[i] += values.v[i];
    }
    for (u32 i = 0; i < 8; i++) total.v[i] += sum.v[i];
  }
  store_eight(params.pooled + static_cast<u64>(at) * 8, total);
}
