// out[t] = [norm(x[t]) * w_x, norm(carried[rows[t]]) * w_carried], or 1 + w; norm(r) = r / sqrt(mean(r^2) + epsilon).
// x, carried: [rows, columns] f32; w: [columns] f32; out: [tokens, 2 * columns] f32. Workgroup: one half of a row.
// Variants: SUBGROUPS. Twin: backend/reference/join_rows.rs
#import metadata
#import reduce

struct Params {
    halves: u32,        // 2 * tokens
    vectors: u32,       // columns / 4
    columns: f32,
    epsilon: f32,
    weight_offset: f32, // 1 for * (1 + w)
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> carried: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> x_norm: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> carried_norm: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;

fn vector_at(is_carried: bool, index: u32) -> vec4<f32> {
    if is_carried {
        return carried[index];
    }
    return x[index];
}

fn weight_at(is_carried: bool, index: u32) -> vec4<f32> {
    if is_carried {
        return carried_norm[index];
    }
    return x_norm[index];
}

@compute @workgroup_size(WORKGROUP)
fn main(at: Invocation) {
    // Excess workgroups of a grid spread over x and y have no half, but reach every barrier.
    let half = min(flat_workgroup(at), params.halves - 1u);
    let end = select(0u, params.vectors, flat_workgroup(at) < params.halves);
    let is_carried = (half & 1u) != 0u;
    var row = half >> 1u;
    if is_carried {
        // In a batch of the predictor, these are the carried rows.
        row = metadata_at(META_ADAPTERS, row);
    }
    let base = row * params.vectors;
    var squares = vec4<f32>(0.0);
    for (var index = at.local; index < end; index += WORKGROUP) {
        let value = vector_at(is_carried, base + index);
        squares += value * value;
    }
    let total = reduce_sum(at, squares);
    let factor = 1.0 / sqrt((total.x + total.y + total.z + total.w) / params.columns + params.epsilon);
    for (var index = at.local; index < end; index += WORKGROUP) {
        let weight = weight_at(is_carried, index) + params.weight_offset;
        out[half * params.vectors + index] = vector_at(is_carried, base + index) * factor * weight;
    }
}
