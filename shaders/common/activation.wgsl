// act(gate) * up; params.alpha and params.limit belong to CLAMPED_SWIGLU, and the latter to CLAMPED_SILU.
// Variants: SILU, GELU_TANH, GELU, RELU, CLAMPED_SWIGLU, CLAMPED_SILU, RELU2, SIGMOID, SOFTPLUS, XIELU.

// The bound keeps exp finite: shader compilers may assume that there are no infinities.
fn sigmoid(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(min(-x, vec4<f32>(87.0))));
}

#ifdef XIELU
// e^x - 1 for x <= 0. Near 0, where the difference would lose most digits, it is Taylor's polynomial, whose first
// missing term is 5e-8 of it at -1/4.
fn exp_m1(x: vec4<f32>) -> vec4<f32> {
    let sum = ((x / 720.0 + 1.0 / 120.0) * x + 1.0 / 24.0) * x + 1.0 / 6.0;
    return select(exp(x) - 1.0, (sum * x + 0.5) * x * x + x, x > vec4<f32>(-0.25));
}

// xIELU with numbers (a for positive, a for negative, beta, epsilon).
fn xielu(gate: vec4<f32>, numbers: vec4<f32>) -> vec4<f32> {
    let fall = exp_m1(min(gate, vec4<f32>(numbers.w))) - gate;
    let curved = select(numbers.y * fall, numbers.x * gate * gate, gate > vec4<f32>(0.0));
    return curved + numbers.z * gate;
}
#else
fn activate(gate: vec4<f32>, up: vec4<f32>) -> vec4<f32> {
#ifdef SILU
    return gate * sigmoid(gate) * up;
#endif
#ifdef GELU_TANH
    // 0.5 (1 + tanh(u)) = sigmoid(2u), without the cancellation for u < 0.
    let u = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate);
    return gate * sigmoid(2.0 * u) * up;
#endif
#ifdef GELU
    // erfc(z) = t * exp(polynomial(t) - z^2), t = 1 / (1 + z / 2), within 1.2e-7 of it (Numerical Recipes, erfcc).
    let z = abs(gate) * 0.7071067811865476;
    let t = 1.0 / (1.0 + 0.5 * z);
    let high = (((0.17087277 * t - 0.82215223) * t + 1.48851587) * t - 1.13520398) * t + 0.27886807;
    let polynomial = ((((high * t - 0.18628806) * t + 0.09678418) * t + 0.37409196) * t + 1.00002368) * t - 1.26551223;
    let tail = 0.5 * gate * t * exp(max(polynomial - z * z, vec4<f32>(-87.0)));
    return select(gate - tail, tail, gate < vec4<f32>(0.0)) * up;
#endif
#ifdef RELU
    return max(gate, vec4<f32>(0.0)) * up;
#endif
#ifdef CLAMPED_SWIGLU
    let bounded = min(gate, vec4<f32>(params.limit));
    let linear = clamp(up, vec4<f32>(-params.limit), vec4<f32>(params.limit));
    return bounded * sigmoid(params.alpha * bounded) * (linear + 1.0);
#endif
#ifdef CLAMPED_SILU
    let bounded = min(gate * sigmoid(gate), vec4<f32>(params.limit));
    return bounded * clamp(up, vec4<f32>(-params.limit), vec4<f32>(params.limit));
#endif
#ifdef RELU2
    let positive = max(gate, vec4<f32>(0.0));
    return positive * positive * up;
#endif
#ifdef SIGMOID
    return sigmoid(gate) * up;
#endif
#ifdef SOFTPLUS
    // max(x, 0) + log(1 + t) with t = exp(-|x|). The logarithm is twice the area tangent of z = t / (2 + t), whose
    // series keeps its digits where t is small; its first missing term is 1.4e-8 of it at z = 1/3.
    let t = exp(max(-abs(gate), vec4<f32>(-87.0)));
    let z = t / (2.0 + t);
    let z2 = z * z;
    let high = ((z2 / 13.0 + 1.0 / 11.0) * z2 + 1.0 / 9.0) * z2 + 1.0 / 7.0;
    let series = ((high * z2 + 1.0 / 5.0) * z2 + 1.0 / 3.0) * z2 + 1.0;
    return (max(gate, vec4<f32>(0.0)) + 2.0 * z * series) * up;
#endif
}
#endif
