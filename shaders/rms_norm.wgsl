// x += delta (DELTA); out (=, +=) x / sqrt(mean(x^2) + epsilon) * w, or * (1 + w).
// x, delta, out: [rows, columns] f32; w: [columns] f32. Workgroup: one row.
// TEXELS: a workgroup of 8 lanes reads images, and writes x only after its last read of it (4 us instead of 24 us per
// row of 1024 on llvmpipe).
// Variants: DELTA, SUBGROUPS, TEXELS. Twin: backend/reference/rms_norm.rs
#ifdef TEXELS
#import invocation
#import lanes
#import texel
#else
#import reduce
#endif

struct Params {
    rows: u32,
    vectors: u32,     // columns / 4
    columns: f32,
    epsilon: f32,
    weight_offset: f32, // 1 for * (1 + w)
    accumulate: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
#ifdef TEXELS
@group(0) @binding(1) var x_image: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(2) var weight: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
#ifdef DELTA
@group(0) @binding(4) var delta: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(5) var<storage, read_write> x: array<vec4<f32>>;
#endif

fn x_vector(index: u32) -> vec4<f32> {
    let value = bitcast<vec4<f32>>(textureLoad(x_image, texel(index)));
#ifdef DELTA
    return value + bitcast<vec4<f32>>(textureLoad(delta, texel(index)));
#else
    return value;
#endif
}

@compute @workgroup_size(8)
fn main(at: Invocation) {
    let row = flat_workgroup(at);
    let base = row * params.vectors;
    let end = select(0u, params.vectors, row < params.rows);
    var squares = 0.0;
    for (var index = at.local; index < end; index += 8u) {
        let value = x_vector(base + index);
        squares += dot(value, value);
    }
    let factor = 1.0 / sqrt(lanes_sum(squares) / params.columns + params.epsilon);
    for (var index = at.local; index < end; index += 8u) {
        let value = x_vector(base + index);
        let w = bitcast<vec4<f32>>(textureLoad(weight, texel(index)));
#ifdef DELTA
        x[base + index] = value;
#endif
        var normed = value * factor * (w + params.weight_offset);
        if params.accumulate != 0u {
            normed += out[base + index];
        }
        out[base + index] = normed;
    }
}
#else
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
    // Excess workgroups of a grid spread over x and y have no row, but reach every barrier.
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
        var normed = x[base + index] * factor * (weight[index] + params.weight_offset);
        if params.accumulate != 0u {
            normed += out[base + index];
        }
        out[base + index] = normed;
    }
}
#endif
