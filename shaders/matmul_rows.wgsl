// out (=, +=) x * W^T + bias for 1 to 16 rows of x: every weight is read once, widened in registers and used for all
// rows. Bound by memory bandwidth.
// Workgroup of 64: slots of OUTPUTS outputs (see slots.wgsl), whose lanes run over the columns, each with 16 bytes of a
// dense row or with a whole group of 32 quantized weights. ROWS is the number of rows rounded up to a power of two.
// SPLITS: a workgroup takes one of params.splits parts of the columns and writes partial sums (see matmul.wgsl).
// Variants: weight format, BIAS, SPLITS, ROWS, ONE_ROW, OUTPUTS, LANES, PARTIAL (the last group is not whole).
// Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import weight
#import slots

#ifdef GROUPS
const UNIT: u32 = 32u;
#else
const UNIT: u32 = 8u;
#endif

@compute @workgroup_size(64)
fn main(at: Invocation) {
    fill_levels(at.local);
    let lane = at.local % LANES;
    let part = part_of(flat_workgroup(at));
    let first = (part.tile * SLOTS + at.local / LANES) * OUTPUTS;
    var sums: LaneSums;
    var weight_rows: array<u32, OUTPUTS>;
    // Rows and outputs past the end repeat the last one; emit drops them.
#for output OUTPUTS
    weight_rows[output] = weight_row(min(first + output, params.outputs - 1u));
#endfor
#ifndef ONE_ROW
    var x_rows: array<u32, ROWS>;
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
                var weights: array<Eight, OUTPUTS>;
#for output OUTPUTS
                weights[output] = group_eight(groups[output], quarter);
#endfor
#for row ROWS
                {
                    let low = x[x_rows[row] + 2u * eight];
                    let high = x[x_rows[row] + 2u * eight + 1u];
#for output OUTPUTS
                    sums[output * ROWS + row] = add_products(weights[output], low, high, sums[output * ROWS + row]);
#endfor
                }
#endfor
            }
#endfor
#for output OUTPUTS
            groups[output] = other_half(groups[output]);
#endfor
        }
#else
        var weights: array<Eight, OUTPUTS>;
#for output OUTPUTS
        weights[output] = weight_eight(weight_rows[output], unit);
#endfor
#for row ROWS
        {
            let low = x[x_rows[row] + 2u * unit];
            let high = x[x_rows[row] + 2u * unit + 1u];
#for output OUTPUTS
            sums[output * ROWS + row] = add_products(weights[output], low, high, sums[output * ROWS + row]);
#endfor
        }
#endfor
#endif
#endif
    }
    add_lanes(at.local, sums);
    for (var index = lane; index < ROWS * OUTPUTS; index += LANES) {
        emit_part(part, index % ROWS, first + index / ROWS, slot_sum(at.local, index));
    }
}
