// out[t][c] (=, +=) table[id(t)][c] · scale; id(t) is the batch's token id, or the id that the sampler wrote to a feed
// slot; or by params the position, which text of a pair the token belongs to, or the row of an image that it stands
// for. Rows without such an id are left as they are.
//
// table [rows][columns] in -DWEIGHT, out [tokens][columns] of -DOUT_TYPE. A block: one token; a thread: 8 columns. For
// a table in several formats there is one launch per section, which writes the tokens whose rows it has.
// Twin: backend/reference/embed.rs. Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"
#include "common/weight_group.cuh"

struct Params {
  const u8 *table;
  OUT_TYPE *out;
  const u32 *metadata;
  const u32 *feed;
  u32 columns;
  u32 row_first;
  u32 rows;
  float scale;
  u32 id;        // ID_POSITION, ID_TEXT, ID_IMAGE, or 0 for the token
  u32 id_first;  // table row of position 0
  u32 accumulate;
  u32 unused;
};

constexpr u32 ID_POSITION = 1;
constexpr u32 ID_TEXT = 2;
constexpr u32 ID_IMAGE = 3;

constexpr Weight W = Weight::WEIGHT;

// Eight weights from index 8 · eight on of a row, widened.
template <u32 E> __device__ __forceinline__ Eight scaled_levels(const PackedGroup<W> &packed, const GroupScale &scale) {
  Eight values = eight_levels<W, E>(packed);
  for (u32 i = 0; i < 8; i++) values.v[i] = fmaf(scale.a[E / 2], values.v[i], scale.b[E / 2]);
  return values;
}

__device__ __forceinline__ Eight weights_at(const u8 *row, const WeightLayout &layout, u32 eight) {
  if constexpr (is_dense(W)) {
    return dense_eight<W>(row, eight);
  } else {
    const PackedGroup<W> packed = load_group<W>(row, layout, eight / 4);
    const GroupScale scale = group_scale<W>(packed);
    switch (eight % 4) {
      case 0: return scaled_levels<0>(packed, scale);
      case 1: return scaled_levels<1>(packed, scale);
      case 2: return scaled_levels<2>(packed, scale);
      default: return scaled_levels<3>(packed, scale);
    }
  }
}

KERNEL(embed, 256, 1) {
  const u32 token = blockIdx.x;
  if (token >= params.metadata[META_TOKEN_COUNT]) return;
  u32 id = metadata_at(params.metadata, META_TOKEN_IDS, token);
  const bool is_fed = id & FEED;
  const bool is_image = (id & (FEED | IMAGE_ROW)) == IMAGE_ROW;
  if ((is_image && params.id == 0) || (!is_image && params.id == ID_IMAGE)) return;
  if (params.id == ID_IMAGE) id &= ~IMAGE_ROW;
  else if (params.id == ID_POSITION) id = metadata_at(params.metadata, META_POSITIONS, token) + params.id_first;
  else if (params.id == ID_TEXT) id = !is_fed && id & SECOND_TEXT ? 1 : 0;
  else if (is_fed) id = params.feed[id & ~FEED];
  else id &= ~SECOND_TEXT;
  if (id < params.row_first || id - params.row_first >= params.rows) return;
  const WeightLayout layout = weight_layout<W>(params.columns);
  const u8 *row = params.table + static_cast<u64>(id - params.row_first) * layout.row_bytes;
  OUT_TYPE *out = params.out + static_cast<u64>(token) * params.columns;
  for (u32 eight = threadIdx.x; eight < params.columns / 8; eight += blockDim.x) {
    Eight values = weights_at(row, layout, eight);
    for (u32 i = 0; i < 8; i++) values.v[i] *= params.scale;
    if (params.accumulate) {
      const Eight old = load_eight(out + 8 * eight);
      for (u32 i = 0; i < 8; i++) values.v[i] += old.v[i];
    }
    store_eight(out + 8 * eight, values);
  }
}
