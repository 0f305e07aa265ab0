// Bindings of the recurrence over the tokens of a sequence, and the factors of a token. Variants: DELTA, SKIP.

struct Params {
    workgroups: u32,
    heads: u32,
    tiles: u32, // of the columns of the values, one per workgroup
    shared_by: u32, // head h uses key head h / shared_by % key_heads
    key_heads: u32,
    key_dim: u32,
    value_dim: u32,
    channels: u32,
    query_start: u32, // channels, as are the other two
    key_start: u32,
    value_start: u32,
    mixed_columns: u32,
    gates: u32,
    beta_scale: f32,
    query_scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> convolved: array<f32>;
@group(0) @binding(3) var<storage, read> mixed: array<f32>;
@group(0) @binding(4) var<storage, read> decay: array<f32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read_write> state: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
#ifdef SKIP
@group(0) @binding(8) var<storage, read> skip: array<f32>;
#endif

// log(1 + exp(x)), for small results as accurate as for large ones: log(1 + e) = 2 atanh(e / (2 + e)), whose series in
// the square of an argument of at most 1/3 is cut at 2e-9 of it.
fn softplus(x: f32) -> f32 {
    let e = exp(max(-abs(x), -87.0));
    let z = e / (2.0 + e);
    let s = z * z;
    let tail = 1.0 / 9.0 + s * (1.0 / 11.0 + s * (1.0 / 13.0 + s * (1.0 / 15.0)));
    return max(x, 0.0) + 2.0 * z * (1.0 + s * (1.0 / 3.0 + s * (1.0 / 5.0 + s * (1.0 / 7.0 + s * tail))));
}

// keep, rate, scale of k and scale of q of a token, from its sums of k * k, q * q and q * k.
fn factors_of(row: u32, head: u32, sums: vec4<f32>) -> vec4<f32> {
    let gate = mixed[row * params.mixed_columns + params.gates + head];
#ifdef DELTA
    let decays = mixed[row * params.mixed_columns + params.gates + params.heads + head];
    let keep = exp(max(decay[head] * softplus(decays + bias[head]), -87.0));
    let rate = params.beta_scale / (1.0 + exp(min(-gate, 87.0)));
    let k_scale = 1.0 / sqrt(sums.x + 1e-6);
    let q_scale = params.query_scale / sqrt(sums.y + 1e-6);
#else
    let rate = softplus(gate + bias[head]);
    let keep = exp(max(decay[head] * rate, -87.0));
    let k_scale = 1.0;
    let q_scale = 1.0;
#endif
    return vec4<f32>(keep, rate, k_scale, q_scale);
}
