// out = W_e * x + bias_e for many routes: a register-tiled product of the rows routed to an expert, so that its matrix
// is read once for 32 rows. Products to be combined are written to scratch, and matmul_experts_merge sums them.
// Workgroup of 128: 128 outputs of one expert for all its routes, in tiles of 32 (see tile.wgsl). It finds its routes
// by reading all routes, 512 tokens at a time (a token has an expert at most once), in any order: a row's sums do not
// depend on its position.
// Variants: weight format, HEADS, BIAS, ROWS_EACH, VECTORS_EACH. Twin: backend/reference/matmul_experts.rs
#import invocation
#import matmul_experts
#import weight
#import tile

var<workgroup> found: array<u32, 512>;
var<workgroup> counter: atomic<u32>;
var<workgroup> found_count: u32;
// The rows of the current tile: found routes from `first_row` to `last_row`.
var<private> first_row: u32;
var<private> last_row: u32;

fn tile_x(row: u32, vector: u32) -> vec4<f32> {
    if first_row + row < last_row && vector < 2u * params.eights {
        return x[x_row_of(found[first_row + row]) + vector];
    }
    return vec4<f32>(0.0);
}

@compute @workgroup_size(128)
fn main(at: Invocation) {
    fill_levels(at.local);
    let tiles = (params.outputs + 127u) / 128u;
    let expert = flat_workgroup(at) / tiles;
    let output_start = (flat_workgroup(at) % tiles) * 128u;
    // Outputs past the end read the last row again; emit drops them.
    let row = weight_row(expert * params.outputs + min(output_start + at.local, params.outputs - 1u));
    for (var start = 0u; start < params.units; start += params.segment) {
        if at.local == 0u {
            atomicStore(&counter, 0u);
        }
        workgroupBarrier();
        let end = min(start + params.segment, params.units);
        for (var route = start + at.local; route < end; route += 128u) {
            // Excess workgroups of a grid spread over x and y have no expert.
            if expert < params.expert_count && expert_of(route) == expert {
                found[atomicAdd(&counter, 1u)] = route;
            }
        }
        workgroupBarrier();
        if at.local == 0u {
            found_count = atomicLoad(&counter);
        }
        let rows = workgroupUniformLoad(&found_count);
        for (var first = 0u; first < rows; first += TILE_ROWS) {
            first_row = first;
            last_row = rows;
            let sums = multiply_tile(at.local, row, 0u, (params.eights + 3u) / 4u);
            for (var n = 0u; n < ROWS_EACH; n++) {
                let found_row = first + 8u * n + (at.local >> 4u);
                if found_row < rows {
                    for (var j = 0u; j < OUTPUTS_EACH; j++) {
                        let output = output_start + 16u * j + (at.local & 15u);
                        emit(found[found_row], output, sums[2u * n + j / 4u][j % 4u]);
                    }
                }
            }
        }
    }
}
