// out (=, +=) x * W^T + bias for 2 to 16 rows of x: every weight is read once and used for all rows.
// Workgroup of 128: 16 slots of OUTPUTS outputs, each with 8 lanes over the columns; x is staged in workgroup memory in
// slices of 8 KiB. ROWS is the number of rows rounded up to 2, 4, 8 or 16.
// Variants: weight format, BIAS, ROWS, OUTPUTS. Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import weight

const SLICE: u32 = 512u / ROWS; // vectors of 4 columns
var<workgroup> x_slice: array<vec4<f32>, 512>;
var<workgroup> partials: array<f32, 128u * ROWS>;

@compute @workgroup_size(128)
fn main(at: Invocation) {
    let lane = at.local & 7u;
    let slot = at.local >> 3u;
    let first = (flat_workgroup(at) * 16u + slot) * OUTPUTS;
    var sums: array<f32, ROWS * OUTPUTS>;
    for (var start = 0u; start < 2u * params.eights; start += SLICE) {
        workgroupBarrier();
        for (var index = at.local; index < 512u; index += 128u) {
            let row = index / SLICE;
            let column = start + index % SLICE;
            var value = vec4<f32>(0.0);
            if row < params.rows && column < 2u * params.eights {
                value = x[row * 2u * params.eights + column];
            }
            x_slice[index] = value;
        }
        workgroupBarrier();
        for (var pair = lane; pair < SLICE / 2u; pair += 8u) {
            let k = start / 2u + pair;
            if k < params.eights {
                for (var output = 0u; output < OUTPUTS; output++) {
                    // Outputs past the end read the last row again; emit drops them.
                    let w = weight_eight(weight_row(min(first + output, params.outputs - 1u)), k);
                    for (var row = 0u; row < ROWS; row++) {
                        let at = row * SLICE + 2u * pair;
                        sums[output * ROWS + row] += dot(w.low, x_slice[at]) + dot(w.high, x_slice[at + 1u]);
                    }
                }
            }
        }
    }
    for (var output = 0u; output < OUTPUTS; output++) {
        workgroupBarrier();
        for (var row = 0u; row < ROWS; row++) {
            partials[at.local * ROWS + row] = sums[output * ROWS + row];
        }
        workgroupBarrier();
        for (var index = at.local; index < 16u * ROWS; index += 128u) {
            let of_slot = index / ROWS;
            let row = index % ROWS;
            var total = 0.0;
            for (var part = 0u; part < 8u; part++) {
                total += partials[(of_slot * 8u + part) * ROWS + row];
            }
            emit(row, (flat_workgroup(at) * 16u + of_slot) * OUTPUTS + output, total);
        }
    }
}
