// out = W_e * x + bias_e for every route or, with COMBINE, their weighted sum for every token. Each route reads the
// matrix of its expert once. Bound by memory bandwidth if there are few routes.
// Workgroup of 64: slots of OUTPUTS outputs of a unit (see slots.wgsl), whose lanes run over the columns.
// Variants: weight format, HEADS, BIAS, COMBINE, ONE_ROW, ROWS (1), OUTPUTS, LANES, PARTIAL (the last group is not
// whole).
// Twin: backend/reference/matmul_experts.rs
#import invocation
#import matmul_experts
#import weight
#import slots

#ifdef GROUPS
const UNIT: u32 = 32u;
#else
const UNIT: u32 = 8u;
#endif

fn x_vector(x_row: u32, vector: u32) -> vec4<f32> {
    return x[x_row + vector];
}

@compute @workgroup_size(64)
fn main(at: Invocation) {
    fill_levels(at.local);
    let tiles = (params.outputs + SLOTS * OUTPUTS - 1u) / (SLOTS * OUTPUTS);
    let tile = flat_workgroup(at);
    let unit = tile / tiles;
    let first = (tile % tiles * SLOTS + at.local / LANES) * OUTPUTS;
    let lane = at.local % LANES;
    var sums: LaneSums;
    // Excess workgroups of a grid spread over x and y have no unit, but reach every barrier.
    let count = select(0u, params.routes_each, unit < params.units);
    for (var j = 0u; j < count; j++) {
        let route = unit * params.routes_each + j;
        let expert = expert_of(route);
        if expert < params.expert_count {
            var weight_rows: array<u32, OUTPUTS>;
            // Outputs past the end read the last row again; emit drops them.
#for output OUTPUTS
            weight_rows[output] = weight_row(expert * params.outputs + min(first + output, params.outputs - 1u));
#endfor
            let x_row = x_row_of(route);
            var products = LaneSums();
            for (var part = lane; UNIT * part < 8u * params.eights; part += LANES) {
                add_unit(weight_rows, x_row, part, &products);
            }
            let factor = factor_of(route);
#for output OUTPUTS
            sums[output] += factor * products[output];
#endfor
        }
    }
    add_lanes(at.local, sums);
    for (var output = lane; output < OUTPUTS; output += LANES) {
        emit(unit, first + output, slot_sum(at.local, output));
    }
}
