// out = act(gate) * up. gate_up: [rows, gate_stride] f32 from gate_start on, out: [rows, columns] f32; up: [rows,
// up_stride] from up_start on, the same buffer if it holds gate and up. Invocation: 4 elements.
// COLUMNS: the gates begin at any column, and each is that of `run` columns.
// ALONE: there is no up. XIELU: `numbers` are [p, n, beta, epsilon]. ROUTED: gates are multiplied by the weight of
// their row's route, routes: [rows] of (expert, weight).
// TEXELS: 8 lanes process a run of 64 vectors of a row, so that the division by the row's length is done once.
// Variants: SILU, GELU_TANH, GELU, RELU, CLAMPED_SWIGLU, CLAMPED_SILU, RELU2, SIGMOID, SOFTPLUS, XIELU, ALONE, COLUMNS,
// ROUTED, TEXELS.
// Twin: backend/reference/gated_activation.rs
#import invocation
#import activation

struct Params {
    rows: u32,
    vectors: u32, // columns of out / 4, as are strides and starts
    gate_stride: u32, // with COLUMNS, columns, as is gate_start
    gate_start: u32,
    run: u32,
    up_stride: u32,
    up_start: u32,
    alpha: f32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
#ifdef TEXELS
#import texel
@group(0) @binding(2) var gate_up: texture_storage_2d<rgba32uint, read>;
#else
#ifdef COLUMNS
@group(0) @binding(2) var<storage, read> gate_up: array<f32>;
#else
@group(0) @binding(2) var<storage, read> gate_up: array<vec4<f32>>;
#endif
#endif
#ifdef ALONE
#ifdef XIELU
@group(0) @binding(3) var<storage, read> numbers: array<f32>;
#endif
#else
#ifdef TEXELS
@group(0) @binding(3) var up: texture_storage_2d<rgba32uint, read>;
#else
@group(0) @binding(3) var<storage, read> up: array<vec4<f32>>;
#endif
#ifdef XIELU
@group(0) @binding(4) var<storage, read> numbers: array<f32>;
#endif
#endif
#ifdef ROUTED
@group(0) @binding(4) var<storage, read> routes: array<vec2<f32>>;
#endif

// log(1 + exp(x)), without overflow.
fn softplus(x: f32) -> f32 {
    return max(x, 0.0) + log(1.0 + exp(-abs(x)));
}

fn gate_vector(row: u32, vector: u32) -> vec4<f32> {
    let start = row * params.gate_stride + params.gate_start;
#ifdef COLUMNS
    let at = start + (4u * vector + vec4<u32>(0u, 1u, 2u, 3u)) / params.run;
    return vec4<f32>(gate_up[at.x], gate_up[at.y], gate_up[at.z], gate_up[at.w]);
#else
#ifdef TEXELS
    return bitcast<vec4<f32>>(textureLoad(gate_up, texel(start + vector)));
#else
    return gate_up[start + vector];
#endif
#endif
}

fn up_vector(index: u32) -> vec4<f32> {
#ifdef ALONE
    return vec4<f32>(1.0);
#else
#ifdef TEXELS
    return bitcast<vec4<f32>>(textureLoad(up, texel(index)));
#else
    return up[index];
#endif
#endif
}

fn activated(row: u32, vector: u32) -> vec4<f32> {
#ifdef ROUTED
    let gate = gate_vector(row, vector) * routes[row].y;
#else
    let gate = gate_vector(row, vector);
#endif
#ifdef XIELU
    let negative = numbers[2] + softplus(numbers[1]);
    return xielu(gate, vec4<f32>(softplus(numbers[0]), negative, numbers[2], numbers[3]))
        * up_vector(row * params.up_stride + params.up_start + vector);
#else
    return activate(gate, up_vector(row * params.up_stride + params.up_start + vector));
#endif
}

#ifdef TEXELS
@compute @workgroup_size(32)
fn main(at: Invocation) {
    let runs = (params.vectors + 63u) / 64u;
    let flat = flat_workgroup(at) * 4u + (at.local >> 3u);
    let row = flat / runs;
    let start = (flat % runs) * 64u;
    let end = select(0u, min(start + 64u, params.vectors), row < params.rows);
    for (var vector = start + (at.local & 7u); vector < end; vector += 8u) {
        out[row * params.vectors + vector] = activated(row, vector);
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
    out[item] = activated(row, item % params.vectors);
}
#endif
