// out[s] = x[r], x[r + 1], … side by side, r = logits_rows[logits_start + s]. x: [tokens, columns / n] f32, out:
// [rows, columns] f32. Invocation: 4 elements.
// Twin: backend/reference/gather_rows.rs
#import invocation
#import metadata

struct Params {
    rows: u32,
    vectors: u32,   // columns / 4
    x_vectors: u32, // the same of x
    logits_start: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let row = item / params.vectors;
    if row >= params.rows {
        return;
    }
    let source = metadata_at(META_LOGITS_ROWS, params.logits_start + row);
    out[item] = x[source * params.x_vectors + item - row * params.vectors];
}
