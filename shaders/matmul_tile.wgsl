// out (=, +=) x * W^T + bias for many rows: a register-tiled product. Bound by multiply-adds.
// Workgroup of 128: a tile of TILE_ROWS x 128 (see tile.wgsl); an invocation computes TILE_ROWS / 8 rows x 8 outputs.
// SPLITS: a workgroup takes one of params.splits parts of the columns and writes partial sums (see matmul.wgsl).
// Variants: weight format, BIAS, SPLITS, ROWS_EACH, VECTORS_EACH. Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import weight
#import tile

var<private> row_start: u32;
// Shared, so that loops with barriers are uniform even for compilers that do not tell struct members apart.
var<workgroup> range: vec2<u32>; // begin and end, in 32 columns

fn tile_x(row: u32, vector: u32) -> vec4<f32> {
    if row_start + row < params.rows && vector < 2u * params.eights {
        return x[(row_start + row) * 2u * params.eights + vector];
    }
    return vec4<f32>(0.0);
}

@compute @workgroup_size(128)
fn main(at: Invocation) {
    fill_levels(at.local);
    let row_tiles = (params.rows + TILE_ROWS - 1u) / TILE_ROWS;
    let part = part_of(flat_workgroup(at));
    row_start = (part.tile % row_tiles) * TILE_ROWS;
    let output_start = (part.tile / row_tiles) * 128u;
    // Outputs past the end read the last row again; emit drops them.
    let row = weight_row(min(output_start + at.local, params.outputs - 1u));
    if at.local == 0u {
        range = vec2<u32>(part.begin / 32u, (part.end + 31u) / 32u);
    }
    let columns = workgroupUniformLoad(&range);
    let sums = multiply_tile(at.local, row, columns.x, columns.y);
    for (var n = 0u; n < ROWS_EACH; n++) {
        for (var j = 0u; j < OUTPUTS_EACH; j++) {
            let to = row_start + 8u * n + (at.local >> 4u);
            emit_part(part, to, output_start + 16u * j + (at.local & 15u), sums[2u * n + j / 4u][j % 4u]);
        }
    }
}
