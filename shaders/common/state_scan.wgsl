// Bindings of the recurrence over the tokens of a sequence, and the factors of a token. Variants: DELTA, SKIP; VECTORS
// binds channels, states and results in vectors of 4 columns.

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
    rows_min: u32, // sequences with fewer rows, or more than rows_max, are left alone
    rows_max: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
#ifdef VECTORS
alias Elements = vec4<f32>;
#else
alias Elements = f32;
#endif
@group(0) @binding(2) var<storage, read> convolved: array<Elements>;
@group(0) @binding(3) var<storage, read> mixed: array<f32>;
@group(0) @binding(4) var<storage, read> decay: array<f32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read_write> state: array<Elements>;
@group(0) @binding(7) var<storage, read_write> out: array<Elements>;
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

// keep and rate of a token.
fn gates_of(row: u32, head: u32) -> vec2<f32> {
    let gate = mixed[row * params.mixed_columns + params.gates + head];
#ifdef DELTA
    let decays = mixed[row * params.mixed_columns + params.gates + params.heads + head];
    let keep = exp(max(decay[head] * softplus(decays + bias[head]), -87.0));
    return vec2<f32>(keep, params.beta_scale / (1.0 + exp(min(-gate, 87.0))));
#else
    let rate = softplus(gate + bias[head]);
    return vec2<f32>(exp(max(decay[head] * rate, -87.0)), rate);
#endif
}

// Scales of k and q with these sums of k * k and q * q.
fn scales_of(squares: vec2<f32>) -> vec2<f32> {
#ifdef DELTA
    return vec2<f32>(1.0, params.query_scale) / sqrt(squares + 1e-6);
#else
    return vec2<f32>(1.0);
#endif
}
