// out[t] = [norm(x[t]) · w_x, norm(carried[rows[t]]) · w_carried] with norm(r) = r / sqrt(mean(r²) + ε), or · (1 + w);
// rows are the batch's carried rows.
//
// x, carried [rows][columns] of -DX_TYPE and -DCARRIED_TYPE, out [tokens][2 · columns] of -DOUT_TYPE; w f32. A block:
// one half of a row; a thread: every 256th run of 8 columns, read twice, the second time from the cache.
// Twin: backend/reference/join_rows.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/block.cuh"
#include "common/metadata.cuh"

struct Params {
  const u32 *metadata;
  const X_TYPE *x;
  const CARRIED_TYPE *carried;
  const float *x_norm;
  const float *carried_norm;
  OUT_TYPE *out;
  u32 eights;
  float epsilon;
  float offset;  // 1 if the weight is 1 + w
  u32 unused;
};

constexpr u32 THREADS = 256;

template <class T>
__device__ __forceinline__ void normalize(const T *from, const float *weight, OUT_TYPE *out, u32 eights, float epsilon,
                                          float offset) {
  float sum = 0.0f;
  for (u32 eight = threadIdx.x; eight < eights; eight += THREADS) {
    const Eight values = load_eight(from + 8 * eight);
    for (u32 i = 0; i < 8; i++) sum = fmaf(values.v[i], values.v[i], sum);
  }
  const float inverse = rsqrtf(block_sum<THREADS>(sum) / static_cast<float>(eights * 8) + epsilon);
  for (u32 eight = threadIdx.x; eight < eights; eight += THREADS) {
    Eight values = load_eight(from + 8 * eight);
    const Eight factor = load_eight(weight + 8 * eight);
    for (u32 i = 0; i < 8; i++) values.v[i] *= inverse * (factor.v[i] + offset);
    store_eight(out + 8 * eight, values);
  }
}

KERNEL(join_rows, THREADS, 1) {
  const u32 token = blockIdx.x / 2;
  if (token >= params.metadata[META_TOKEN_COUNT]) return;
  const u64 columns = params.eights * 8;
  OUT_TYPE *out = params.out + blockIdx.x * columns;
  if (blockIdx.x % 2 == 0) {
    normalize(params.x + token * columns, params.x_norm, out, params.eights, params.epsilon, params.offset);
  } else {
    // In a batch of the predictor, these are the carried rows.
    const u64 row = metadata_at(params.metadata, META_ADAPTERS, token);
    normalize(params.carried + row * columns, params.carried_norm, out, params.eights, params.epsilon, params.offset);
  }
}
