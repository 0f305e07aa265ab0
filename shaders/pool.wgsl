// pooled[p][c] = sum of x[r][c] over the token rows r of pool row p. x: [tokens, columns] f32, pooled: [rows, columns]
// f32. Invocation: 4 columns of one pool row. It adds sums of 16 rows, which has less rounding error than one long sum.
// Twin: backend/reference/pool.rs
#import invocation
#import metadata

struct Params {
    rows: u32,
    vectors: u32, // columns / 4
}

const RUN: u32 = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> pooled: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let row = item / params.vectors;
    if row >= params.rows {
        return;
    }
    let column = item - row * params.vectors;
    let start = metadata_at(META_POOLS, row * POOL_WORDS + POOL_ROW_START);
    let end = start + metadata_at(META_POOLS, row * POOL_WORDS + POOL_ROW_COUNT);
    var total = vec4<f32>();
    for (var first = start; first < end; first += RUN) {
        var sum = vec4<f32>();
        for (var r = first; r < min(first + RUN, end); r++) {
            sum += x[r * params.vectors + column];
        }
        total += sum;
    }
    pooled[item] = total;
}
