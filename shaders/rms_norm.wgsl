// x += delta (DELTA); out (=, +=) x / sqrt(mean(x^2) + epsilon) * w, or * (1 + w).
// OPTIONS, not with DELTA: x minus its mean if params.center; + bias; then out *= scale, each if the params say so.
// x, delta, out: [rows, columns] f32; w, bias: [columns] f32. Workgroup: one row, which is a run of the step.
// TEXELS: a workgroup of 8 lanes reads images, and writes x only after its last read of it (4 us instead of 24 us per
// row of 1024 on llvmpipe).
// Variants: DELTA, OPTIONS, SUBGROUPS, TEXELS. Twin: backend/reference/rms_norm.rs
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
    center: u32,
    has_bias: u32,
    has_scale: u32,
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

fn weight_vector(index: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(weight, texel(index)));
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

fn x_vector(index: u32) -> vec4<f32> {
    return x[index];
}

fn weight_vector(index: u32) -> vec4<f32> {
    return weight[index];
}
#endif
#ifdef OPTIONS
@group(0) @binding(4) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> scale: array<f32>;
#endif

// A row's factor and what is subtracted first, from the sums of its elements and of their squares.
struct Scaling {
    shift: f32,
    factor: f32,
}

// `start` was subtracted from the elements before they were summed: a row's mean may be large against its spread.
fn scaling(start: f32, sum: f32, squares: f32) -> Scaling {
    var mean = 0.0;
#ifdef OPTIONS
    mean = sum / params.columns;
#endif
    let variance = squares / params.columns - mean * mean;
    return Scaling(start + mean, 1.0 / sqrt(variance + params.epsilon));
}

// Writes a normalized vector.
fn finish(index: u32, column: u32, value: vec4<f32>, by: Scaling) {
#ifdef OPTIONS
    var normed = (value - by.shift) * by.factor * (weight_vector(column) + params.weight_offset);
    if params.has_bias != 0u {
        normed += bias[column];
    }
    if params.accumulate != 0u {
        normed += out[index];
    }
    if params.has_scale != 0u {
        normed *= scale[0];
    }
#else
    var normed = value * by.factor * (weight_vector(column) + params.weight_offset);
    if params.accumulate != 0u {
        normed += out[index];
    }
#endif
    out[index] = normed;
}

// The element that is subtracted before sums.
fn start_of(base: u32) -> f32 {
#ifdef OPTIONS
    return select(0.0, x_vector(base).x, params.center != 0u);
#else
    return 0.0;
#endif
}

#ifdef TEXELS
@compute @workgroup_size(8)
fn main(at: Invocation) {
    let row = flat_workgroup(at);
    let base = min(row, params.rows - 1u) * params.vectors;
    let end = select(0u, params.vectors, row < params.rows);
    let start = start_of(base);
    var sum = 0.0;
    var squares = 0.0;
    for (var index = at.local; index < end; index += 8u) {
        let value = x_vector(base + index) - start;
        squares += dot(value, value);
#ifdef OPTIONS
        sum += dot(value, vec4<f32>(1.0));
#endif
    }
#ifdef OPTIONS
    sum = select(0.0, lanes_sum(sum), params.center != 0u);
#endif
    let by = scaling(start, sum, lanes_sum(squares));
    for (var index = at.local; index < end; index += 8u) {
        let value = x_vector(base + index);
#ifdef DELTA
        x[base + index] = value;
#endif
        finish(base + index, index, value, by);
    }
}
#else
@compute @workgroup_size(WORKGROUP)
fn main(at: Invocation) {
    let row = flat_workgroup(at);
    let base = min(row, params.rows - 1u) * params.vectors;
    // Excess workgroups of a grid spread over x and y have no row, but reach every barrier.
    let end = select(0u, params.vectors, row < params.rows);
    let start = start_of(base);
    var squares = vec4<f32>(0.0);
    var sums = vec4<f32>(0.0);
    for (var index = at.local; index < end; index += WORKGROUP) {
#ifdef DELTA
        let value = x[base + index] + delta[base + index];
        x[base + index] = value;
#else
        let value = x[base + index] - start;
#endif
        squares += value * value;
        sums += value;
    }
#ifdef OPTIONS
    let ones = vec4<f32>(1.0);
    let both = reduce_sum(at, vec4<f32>(dot(sums, ones), dot(squares, ones), 0.0, 0.0));
    let by = scaling(start, select(0.0, both.x, params.center != 0u), both.y);
#else
    let total = reduce_sum(at, squares);
    let by = scaling(0.0, 0.0, total.x + total.y + total.z + total.w);
#endif
    for (var index = at.local; index < end; index += WORKGROUP) {
        finish(base + index, index, x[base + index], by);
    }
}
#endif
