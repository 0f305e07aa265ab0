// Copies KV blocks source -> target in one layer (one shard of its heads), K and V. Invocation: 16 bytes of each.
// No block is both source and target, and targets are distinct, so the order does not matter.
// Variants: LATENT (there are only keys).
// Twin: backend/reference/copy_blocks.rs
#import invocation
#import metadata

struct Params {
    copies: u32,
    vectors: u32,      // 16-byte vectors per block
    group_header: u32, // header word where the record of the layer's KV group starts
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<vec4<u32>>;
#ifndef LATENT
@group(0) @binding(3) var<storage, read_write> values: array<vec4<u32>>;
#endif

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let copy = item / params.vectors;
    if copy >= params.copies {
        return;
    }
    let offset = item - copy * params.vectors;
    let entry = COPY_WORDS * copy;
    let source_block = metadata_at(params.group_header + GROUP_COPIES, entry + COPY_SOURCE);
    let target_block = metadata_at(params.group_header + GROUP_COPIES, entry + COPY_TARGET);
    let source = source_block * params.vectors + offset;
    let target_vector = target_block * params.vectors + offset;
    keys[target_vector] = keys[source];
#ifndef LATENT
    values[target_vector] = values[source];
#endif
}
