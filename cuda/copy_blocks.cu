// Copies KV blocks source → target, K and V, in layers of one KV group whose blocks have the same size.
//
// table [layer of the plan] has the addresses of each layer's K and V. No block is both source and target, and targets
// are distinct, so the order does not matter. A thread copies 16 bytes of each per iteration; blocks stride over all
// copies.
// Grid: x enough to fill the device, y the layers from layer_first on; the mask `layers` selects the layers to copy.
// Twin: backend/reference/copy_blocks.rs
// Compiled for sm_80 to sm_120 and run on the host; not yet run on a GPU.

#include "common/metadata.cuh"

struct LayerKv {
  uint4 *keys;
  uint4 *values;
};

struct Params {
  const u32 *metadata;
  const LayerKv *table;
  u64 layers;  // bit i: layer layer_first + i
  u32 layer_first;
  u32 group_header;  // header word of the KV group
  u32 vectors;       // 16-byte vectors per block
  u32 unused;
};

KERNEL(copy_blocks, 256, 4) {
  const u32 count = params.metadata[params.group_header + GROUP_COPY_COUNT];
  if (count == 0 || ((params.layers >> blockIdx.y) & 1) == 0) return;
  const LayerKv layer = params.table[params.layer_first + blockIdx.y];
  const u32 *copies = params.metadata + params.metadata[params.group_header + GROUP_COPIES];
  const u32 first = blockIdx.x * 256 + threadIdx.x, stride = gridDim.x * 256;
  for (u32 item = first; item < count * params.vectors; item += stride) {
    const u32 copy = item / params.vectors, offset = item - copy * params.vectors;
    const u64 source = static_cast<u64>(copies[COPY_WORDS * copy + COPY_SOURCE]) * params.vectors + offset;
    const u64 target = static_cast<u64>(copies[COPY_WORDS * copy + COPY_TARGET]) * params.vectors + offset;
    const uint4 key = layer.keys[source], value = layer.values[source];
    layer.keys[target] = key;
    layer.values[target] = value;
  }
}
