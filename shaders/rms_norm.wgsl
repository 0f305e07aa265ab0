// x += delta (DELTA); out = x / sqrt(mean(x^2) + epsilon) * w, or * (1 + w).
// x, delta, out: [rows, columns] f32; w: [columns] f32. Workgroup: one row.
// Variants: DELTA, SUBGROUPS. Twin: backend/cpu/rms_norm.rs
#import reduce

struct Params {
    rows: u32,
    vectors: u32,     // columns / 4
    columns: f32,
    epsilon: f32,
    weight_offset: f32, // 1 for * (1 + w)
}

@group(0) @binding(0) var<uniform> params: Params;
#ifdef DELTA
@group(0) @binding(1) var<storage, read> delta: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
#endif

@compute @workgroup_size(WORKGROUP)
fn main(at: Invocation) {
    let row = flat_workgroup(at);
    let base = row * params.vectors;
    // The last workgroups of a grid spread over x and y have no row, but meet every barrier.
    let end = select(0u, params.vectors, row < params.rows);
    var squares = vec4<f32>(0.0);
    for (var index = at.local; index < end; index += WORKGROUP) {
#ifdef DELTA
        let value = x[base + index] + delta[base + index];
        x[base + index] = value;
#else
        let value = x[base + index];
#endif
        squares += value * value;
    }
    let sums = reduce_sum(at, squares);
    let mean = (sums.x + sums.y + sums.z + sums.w) / params.columns;
    let factor = 1.0 / sqrt(mean + params.epsilon);
    for (var index = at.local; index < end; index += WORKGROUP) {
        out[base + index] = x[base + index] * factor * (weight[index] + params.weight_offset);
    }
}
