// out[s] = x[r], x[r + 1], … side by side, r = logits_rows[s], rounded to out's type. x [tokens][x_columns], out
// [logits rows][columns], a multiple of x_columns.
//
// One block: one row, eight elements per thread and iteration; columns are a multiple of 8. Grid: logits rows of the
// bucket. Types by -D: X_TYPE and OUT_TYPE, float or u16 (bfloat16).
// Twin: backend/reference/gather_rows.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct Params {
  const u32 *metadata;
  const X_TYPE *x;
  OUT_TYPE *out;
  u32 columns;
  u32 x_columns;
};

KERNEL(gather_rows, 256, 4) {
  const u32 row = blockIdx.x;
  if (row >= params.metadata[META_LOGITS_COUNT]) return;
  const u64 source = metadata_at(params.metadata, META_LOGITS_ROWS, row);
  const X_TYPE *from = params.x + source * params.x_columns;
  OUT_TYPE *to = params.out + static_cast<u64>(row) * params.columns;
  for (u32 i = threadIdx.x * 8; i < params.columns; i += 256 * 8) store_eight(to + i, load_eight(from + i));
}
