// out = act(gate) * up. gate_up: [rows, gate | up] f32, out: [rows, columns] f32. Invocation: 4 elements.
// Variants: SILU, GELU_TANH, CLAMPED_SWIGLU. Twin: backend/cpu/gated_activation.rs
#import invocation

struct Params {
    rows: u32,
    vectors: u32, // columns of out / 4
    alpha: f32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate_up: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

// The bound keeps exp finite: shaders may assume that there are no infinities.
fn sigmoid(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(min(-x, vec4<f32>(87.0))));
}

fn activate(gate: vec4<f32>, up: vec4<f32>) -> vec4<f32> {
#ifdef SILU
    return gate * sigmoid(gate) * up;
#endif
#ifdef GELU_TANH
    // 0.5 (1 + tanh(u)) = sigmoid(2u), without the cancellation for u < 0.
    let u = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate);
    return gate * sigmoid(2.0 * u) * up;
#endif
#ifdef CLAMPED_SWIGLU
    let bounded = min(gate, vec4<f32>(params.limit));
    let linear = clamp(up, vec4<f32>(-params.limit), vec4<f32>(params.limit));
    return bounded * sigmoid(params.alpha * bounded) * (linear + 1.0);
#endif
}

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
