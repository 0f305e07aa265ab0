// out (=, +=) x * W^T + bias for many rows: a tiled product. Bound by multiply-adds.
// Workgroup of 128: a tile of TILE_ROWS x 128 (see tile.wgsl, or with MATRICES tile_matrices.wgsl).
// SPLITS: a workgroup takes one of params.splits parts of the columns and writes partial sums (see matmul.wgsl).
// Variants: weight format, BIAS, SPLITS, TILE_ROWS, and what the tile takes. Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import share
#import weight
#ifdef MATRICES
#import tile_matrices
#else
#import tile
#endif

var<private> part: Part;
var<private> row_start: u32;
var<private> output_start: u32;

fn tile_x(row: u32, vector: u32) -> TileVector {
    if row_start + row < params.rows && vector < 2u * params.eights {
        return x[(row_start + row) * 2u * params.eights + vector];
    }
    return TileVector();
}

fn tile_sum(row: u32, output: u32, sum: f32) {
    let to = row_start + row;
#ifdef MATRICES
    // Exponents follow the rows.
    let exponent = x[params.rows * 2u * params.eights + min(to, params.rows - 1u)].x;
    emit_part(part, to, output_start + output, ldexp(sum, i32(exponent)));
#else
    emit_part(part, to, output_start + output, sum);
#endif
}

@compute @workgroup_size(128)
fn main(at: Invocation) {
    fill_levels(at.local);
    let row_tiles = (params.rows + TILE_ROWS - 1u) / TILE_ROWS;
    part = part_of(flat_workgroup(at));
    row_start = (part.tile % row_tiles) * TILE_ROWS;
    output_start = (part.tile / row_tiles) * 128u;
    // Outputs past the end read the last row again; emit drops them.
    let row = weight_row(min(output_start + at.local, params.outputs - 1u));
    // In 32 columns.
    let range = share(at.local, vec4<u32>(part.begin / 32u, (part.end + 31u) / 32u, tile_passes(at), 0u));
    multiply_tile(at, row, range.x, range.y, range.z);
}
