// y = x, or x * silu(z) if params.gate_first; out = y / sqrt(mean(y^2) + epsilon) * w, times silu(z) otherwise; over
// each group of columns. x, out: [rows, groups, group] f32; mixed: [rows, mixed_columns] with z from params.gates on;
// w: [weight_vectors * 4] f32, for one group or for all. Workgroup: one group of a row.
// Variants: SILU (always), SUBGROUPS; WORKGROUP. Twin: backend/reference/gated_norm.rs
#import activation
#import reduce

struct Params {
    units: u32,   // rows * groups
    groups: u32,  // of a row
    vectors: u32, // of a group, 4 columns each
    weight_vectors: u32,
    mixed_columns: u32,
    gates: u32,
    gate_first: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> mixed: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

// Vector `index` of a group that begins at vector `base`, times its gate.
fn gated(base: u32, gates: u32, index: u32) -> vec4<f32> {
    let at = gates + 4u * index;
    return activate(vec4<f32>(mixed[at], mixed[at + 1u], mixed[at + 2u], mixed[at + 3u]), x[base + index]);
}

@compute @workgroup_size(WORKGROUP)
fn main(at: Invocation) {
    let flat = flat_workgroup(at);
    let unit = min(flat, params.units - 1u);
    let group = unit % params.groups;
    let base = unit * params.vectors;
    let gates = unit / params.groups * params.mixed_columns + params.gates + 4u * group * params.vectors;
    // Excess workgroups of a grid spread over x and y have no group, but reach every barrier.
    let end = select(0u, params.vectors, flat < params.units);
    var squares = vec4<f32>();
    for (var index = at.local; index < end; index += WORKGROUP) {
        var value = x[base + index];
        if params.gate_first != 0u {
            value = gated(base, gates, index);
        }
        squares += value * value;
    }
    let mean = dot(reduce_sum(at, squares), vec4<f32>(1.0)) / f32(4u * params.vectors);
    let factor = 1.0 / sqrt(mean + params.epsilon);
    let first = group * params.vectors % params.weight_vectors;
    for (var index = at.local; index < end; index += WORKGROUP) {
        out[base + index] = gated(base, gates, index) * factor * weight[first + index];
    }
}
