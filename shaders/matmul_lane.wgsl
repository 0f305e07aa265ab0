// out (=, +=) x * W^T + bias without workgroup memory, for shaders that run on CPU cores.
// Invocation: OUTPUTS outputs x ROWS rows, so that a loaded weight is used for all rows and a loaded x for all outputs.
// Arrays stay in registers only if every index is a literal: hence #for, and a copy of the sums that is not indexed so.
// Otherwise a browser checks each index, too. Workgroup of 16: small products keep several cores busy.
// Variants: weight format, BIAS, ROWS, OUTPUTS. Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import weight

@compute @workgroup_size(16)
fn main(at: Invocation) {
    let lanes = (params.outputs + OUTPUTS - 1u) / OUTPUTS;
    let item = flat_workgroup(at) * 16u + at.local;
    let first_row = (item / lanes) * ROWS;
    let first = (item % lanes) * OUTPUTS;
    if first_row >= params.rows {
        return;
    }
    var sums: array<f32, ROWS * OUTPUTS>;
    var weight_rows: array<u32, OUTPUTS>;
    var x_rows: array<u32, ROWS>;
    // Rows and outputs past the end repeat the last one; emit drops them.
#for output OUTPUTS
    weight_rows[output] = weight_row(min(first + output, params.outputs - 1u));
#endfor
#for row ROWS
    x_rows[row] = min(first_row + row, params.rows - 1u) * 2u * params.eights;
#endfor
    for (var k = 0u; k < params.eights; k++) {
        var w: array<Eight, OUTPUTS>;
#for output OUTPUTS
        w[output] = weight_eight(weight_rows[output], k);
#endfor
#for row ROWS
        {
            let low = x[x_rows[row] + 2u * k];
            let high = x[x_rows[row] + 2u * k + 1u];
#for output OUTPUTS
            sums[output * ROWS + row] += dot(w[output].low, low) + dot(w[output].high, high);
#endfor
        }
#endfor
    }
    // A loop, as unrolled code would take drivers longer to compile than the products.
    var results = sums;
    for (var index = 0u; index < ROWS * OUTPUTS; index++) {
        emit(first_row + index % ROWS, first + index / ROWS, results[index]);
    }
}
