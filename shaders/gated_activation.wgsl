// out = act(gate) * up. gate_up: [rows, gate | up] f32, out: [rows, columns] f32. Invocation: 4 elements.
// TEXELS: 8 lanes process a run of 64 vectors of a row, so that the division by the row's length is done once.
// Variants: SILU, GELU_TANH, CLAMPED_SWIGLU, TEXELS. Twin: backend/reference/gated_activation.rs
#import invocation
#import activation

struct Params {
    rows: u32,
    vectors: u32, // columns of out / 4
    alpha: f32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
#ifdef TEXELS
#import texel
@group(0) @binding(1) var gate_up: texture_storage_2d<rgba32uint, read>;
#else
@group(0) @binding(1) var<storage, read> gate_up: array<vec4<f32>>;
#endif
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

#ifdef TEXELS
fn gate_up_vector(index: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(gate_up, texel(index)));
}

@compute @workgroup_size(32)
fn main(at: Invocation) {
    let runs = (params.vectors + 63u) / 64u;
    let flat = flat_workgroup(at) * 4u + (at.local >> 3u);
    let row = flat / runs;
    let start = (flat % runs) * 64u;
    let end = select(0u, min(start + 64u, params.vectors), row < params.rows);
    let base = row * params.vectors;
    for (var index = start + (at.local & 7u); index < end; index += 8u) {
        let gate = 2u * base + index;
        out[base + index] = activate(gate_up_vector(gate), gate_up_vector(gate + params.vectors));
    }
}
#else
@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let row = item / params.vectors;
    if row >= params.rows {
        return;
    }
    let gate = row * params.vectors + item;
    out[item] = activate(gate_up[gate], gate_up[gate + params.vectors]);
}
#endif
