// out (=, +=) sum of partial products + bias: the parts of the columns that a product was split into.
// partials: [splits, rows, outputs]; out: [rows, output_stride], from column output_start.
// Variants: BIAS. Twin: backend/reference/matmul.rs
#import invocation

struct Params {
    rows: u32,
    outputs: u32,
    output_start: u32,
    output_stride: u32,
    accumulate: u32,
    splits: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
#ifdef BIAS
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
#else
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#endif

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let count = params.rows * params.outputs;
    if item >= count {
        return;
    }
    var sum = 0.0;
    for (var split = 0u; split < params.splits; split++) {
        sum += partials[split * count + item];
    }
    let column = params.output_start + item % params.outputs;
    let index = item / params.outputs * params.output_stride + column;
#ifdef BIAS
    sum += bias[column];
#endif
    if params.accumulate != 0u {
        sum += out[index];
    }
    out[index] = sum;
}
