// Copies paged K or V into one contiguous run per sequence: the first half of the gather-then-attend baseline.
// result[sequence][block][kv_head][slot][head_dim] = pool[table[sequence][block]][kv_head][slot][head_dim]
// Whole blocks are copied, which is fastest. One workgroup copies the tokens of one block for one KV head.
// No twin: used only by `folio bench`, to show what reading through the block table saves.

struct Params {
    kv_heads: u32,
    // 16-byte elements per tile.
    tile: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> block_tables: array<u32>;
@group(0) @binding(2) var<storage, read> pool: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head = workgroup.y;
    let source = (block_tables[workgroup.x] * params.kv_heads + head) * params.tile;
    let result_start = (workgroup.x * params.kv_heads + head) * params.tile;
    for (var i = thread; i < params.tile; i += 64u) {
        result[result_start + i] = pool[source + i];
    }
}
