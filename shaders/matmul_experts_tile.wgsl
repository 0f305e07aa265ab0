// out = W_e * x + bias_e for many routes: a tiled product of the rows routed to an expert, so that its matrix is read
// once for TILE_ROWS rows. Products to be combined are written to scratch, and matmul_experts_merge sums them.
// Workgroup of 128: 128 outputs of one expert for all its routes, in tiles (see tile.wgsl, or with MATRICES
// tile_matrices.wgsl). It finds its routes by reading all routes, 512 tokens at a time (a token has an expert at most
// once), in any order: a row's sums do not depend on its position.
// Variants: weight format, HEADS, BIAS, TILE_ROWS, and what the tile takes. Twin: backend/reference/matmul_experts.rs
#import invocation
#import matmul_experts
#import share
#import weight
#ifdef MATRICES
#import tile_matrices
#else
#import tile
#endif

var<workgroup> found: array<u32, 512>;
var<workgroup> counter: atomic<u32>;
// The rows of the current tile: found routes from `first_row` to `last_row`.
var<private> first_row: u32;
var<private> last_row: u32;
var<private> output_start: u32;

fn tile_x(row: u32, vector: u32) -> TileVector {
    if first_row + row < last_row && vector < 2u * params.eights {
        return x[x_row_of(found[first_row + row]) + vector];
    }
    return TileVector();
}

fn tile_sum(row: u32, output: u32, sum: f32) {
    if first_row + row < last_row {
        let route = found[first_row + row];
#ifdef MATRICES
        // Exponents follow the rows.
        let exponent = x[params.units / params.x_routes * params.x_vectors + route / params.x_routes].x;
        emit(route, output_start + output, ldexp(sum, i32(exponent)));
#else
        emit(route, output_start + output, sum);
#endif
    }
}

@compute @workgroup_size(128)
fn main(at: Invocation) {
    fill_levels(at.local);
    let tiles = (params.outputs + 127u) / 128u;
    let expert = flat_workgroup(at) / tiles;
    output_start = (flat_workgroup(at) % tiles) * 128u;
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
        let counts = share(at.local, vec4<u32>(atomicLoad(&counter), tile_passes(at), 0u, 0u));
        let rows = counts.x;
        for (var first = 0u; first < rows; first += TILE_ROWS) {
            first_row = first;
            last_row = rows;
            multiply_tile(at, row, 0u, (params.eights + 3u) / 4u, counts.y);
        }
    }
}
