// out (=, +=) x * W^T + bias for 1 to 16 rows of x: every weight is read once, widened in registers and used for all
// rows. Bound by memory bandwidth.
// Workgroup of 64: slots of OUTPUTS outputs (see slots.wgsl), whose lanes run over the columns, each with 16 bytes of a
// dense row or with a whole group of 32 quantized weights. ROWS is the number of rows rounded up to a power of two.
// NORM: x is normalized first, as by rms_norm. Its factor is applied to the sums, so that only the weights of the norm
// are needed on the way. GATED: the outputs of a slot are gates and their up projections; out gets their activation.
// SPLITS: a workgroup takes one of params.splits parts of the columns and writes partial sums (see matmul.wgsl).
// INT8: one row, rounded to bytes (see int8.wgsl).
// Variants: weight format, BIAS, SPLITS, ROWS, ONE_ROW, OUTPUTS, LANES, PARTIAL (the last group is not whole),
// INT8, NORM, GATED with SILU, GELU_TANH or CLAMPED_SWIGLU.
// Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import weight
#import slots
#ifdef GATED
#import activation
#endif

#ifdef GROUPS
const UNIT: u32 = 32u;
#else
const UNIT: u32 = 8u;
#endif

#ifdef NORM
var<workgroup> norm_factors: array<f32, ROWS>;

fn x_vector(x_row: u32, vector: u32) -> vec4<f32> {
    return x[x_row + vector] * (norm[vector] + params.weight_offset);
}

// 1 / sqrt(mean(x²) + epsilon) of every row, in norm_factors.
fn find_norm_factors(local: u32) {
    for (var row = 0u; row < ROWS; row++) {
        let start = min(row, params.rows - 1u) * 2u * params.eights;
        var squares = 0.0;
        for (var vector = local; vector < 2u * params.eights; vector += 64u) {
            squares += dot(x[start + vector], x[start + vector]);
        }
        lane_partials[row * 64u + local] = squares;
    }
    for (var stride = 32u; stride > 0u; stride >>= 1u) {
        workgroupBarrier();
        if local < stride {
            for (var row = 0u; row < ROWS; row++) {
                lane_partials[row * 64u + local] += lane_partials[row * 64u + local + stride];
            }
        }
    }
    workgroupBarrier();
    if local < ROWS {
        norm_factors[local] = 1.0 / sqrt(lane_partials[local * 64u] / f32(8u * params.eights) + params.epsilon);
    }
    workgroupBarrier();
}

fn factor_of(row: u32) -> f32 {
    return norm_factors[row];
}
#else
fn x_vector(x_row: u32, vector: u32) -> vec4<f32> {
    return x[x_row + vector];
}

fn factor_of(row: u32) -> f32 {
    return 1.0;
}
#endif

#ifdef GATED
const RESULTS: u32 = OUTPUTS / 2u; // of a slot

// Row of W of output `output` of a slot whose first result is `first`: gates, then their up projections.
fn output_of(first: u32, output: u32) -> u32 {
    let half = params.outputs / 2u;
    return min(first + output % RESULTS, half - 1u) + select(0u, half, output >= RESULTS);
}

fn biased(output: u32, sum: f32) -> f32 {
#ifdef BIAS
    return sum + bias[output];
#else
    return sum;
#endif
}

fn emit_gated(row: u32, result: u32, gate: f32, up: f32) {
    let half = params.outputs / 2u;
    if row < params.rows && result < half {
        let activated = activate(vec4<f32>(biased(result, gate)), vec4<f32>(biased(half + result, up)));
        out[row * params.output_stride + result] = activated.x;
    }
}
#else
const RESULTS: u32 = OUTPUTS;

fn output_of(first: u32, output: u32) -> u32 {
    return min(first + output, params.outputs - 1u);
}
#endif

#ifndef ONE_ROW
alias Weights = array<Eight, OUTPUTS>;
alias XRows = array<u32, ROWS>;

// sums += weights * x for the eight columns `eight` of every row.
fn add_eight(weights: Weights, x_rows: XRows, eight: u32, sums: ptr<function, LaneSums>) {
#for row ROWS
    {
        let low = x_vector(x_rows[row], 2u * eight);
        let high = x_vector(x_rows[row], 2u * eight + 1u);
#for output OUTPUTS
        (*sums)[output * ROWS + row] = add_products(weights[output], low, high, (*sums)[output * ROWS + row]);
#endfor
    }
#endfor
}
#endif

@compute @workgroup_size(64)
fn main(at: Invocation) {
    fill_levels(at.local);
    let lane = at.local % LANES;
    let part = part_of(flat_workgroup(at));
    let first = (part.tile * SLOTS + at.local / LANES) * RESULTS;
    var sums: LaneSums;
    var weight_rows: array<u32, OUTPUTS>;
    // Rows and outputs past the end repeat the last one; emit drops them.
#for output OUTPUTS
    weight_rows[output] = weight_row(output_of(first, output));
#endfor
#ifndef ONE_ROW
    var x_rows: XRows;
#for row ROWS
    x_rows[row] = min(row, params.rows - 1u) * 2u * params.eights;
#endfor
#endif
    for (var unit = part.begin / UNIT + lane; UNIT * unit < part.end; unit += LANES) {
#ifdef ONE_ROW
        add_unit(weight_rows, 0u, unit, &sums);
#else
#ifdef GROUPS
        var groups: array<Group, OUTPUTS>;
#for output OUTPUTS
        groups[output] = weight_group(weight_rows[output], unit);
#endfor
        // A loop over the halves: if both were unrolled, drivers would compile for minutes.
        for (var half = 0u; half < 2u; half++) {
#for quarter 2
#ifdef PARTIAL
            if 4u * unit + 2u * half + quarter < params.eights {
#else
            {
#endif
                let eight = 4u * unit + 2u * half + quarter;
                var weights: Weights;
#for output OUTPUTS
                weights[output] = group_eight(groups[output], quarter);
#endfor
                add_eight(weights, x_rows, eight, &sums);
            }
#endfor
#for output OUTPUTS
            groups[output] = other_half(groups[output]);
#endfor
        }
#else
        var weights: Weights;
#for output OUTPUTS
        weights[output] = weight_eight(weight_rows[output], unit);
#endfor
        add_eight(weights, x_rows, unit, &sums);
#endif
#endif
    }
#ifdef NORM
    // Here and not first, so that no load of a weight waits for it.
    find_norm_factors(at.local);
#endif
    add_lanes(at.local, sums);
    for (var index = lane; index < ROWS * RESULTS; index += LANES) {
        let row = index % ROWS;
        let result = first + index / ROWS;
        let sum = slot_sum(at.local, index) * factor_of(row);
#ifdef GATED
        emit_gated(row, result, sum, slot_sum(at.local, ROWS * RESULTS + index) * factor_of(row));
#else
        emit_part(part, row, result, sum);
#endif
    }
}
