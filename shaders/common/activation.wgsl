// act(gate) * up; params.alpha and params.limit belong to CLAMPED_SWIGLU.
// Variants: SILU, GELU_TANH, CLAMPED_SWIGLU.

// The bound keeps exp finite: shader compilers may assume that there are no infinities.
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
