// out (=, +=) x * W^T + bias for many rows: a register-tiled product.
// Workgroup of 128: a tile of TILE_ROWS x 64, columns in steps of 32; an invocation computes TILE_ROWS / 8 rows x 4
// outputs. Both tiles are column-major in workgroup memory, so that a step of k reads vectors: 8 KiB each at 64 rows.
// Variants: weight format, BIAS, TILE_ROWS (32 or 64). Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import weight

const QUADS: u32 = TILE_ROWS / 4u;
const ROWS_EACH: u32 = TILE_ROWS / 8u;
var<workgroup> x_tile: array<vec4<f32>, 32u * QUADS>;
var<workgroup> w_tile: array<vec4<f32>, 512>;

// Four rows x four columns of x, transposed into the tile.
fn load_x(task: u32, row_start: u32, k: u32) {
    let column = task & 7u;
    let quad = task >> 3u;
    let vectors = 2u * params.eights;
    var rows: array<vec4<f32>, 4>;
    for (var i = 0u; i < 4u; i++) {
        let row = row_start + 4u * quad + i;
        rows[i] = vec4<f32>(0.0);
        if row < params.rows && k / 4u + column < vectors {
            rows[i] = x[row * vectors + k / 4u + column];
        }
    }
    for (var j = 0u; j < 4u; j++) {
        x_tile[(4u * column + j) * QUADS + quad] = vec4<f32>(rows[0][j], rows[1][j], rows[2][j], rows[3][j]);
    }
}

// Four rows x eight columns of W, transposed into the tile.
fn load_w(task: u32, output_start: u32, k: u32) {
    let column = task & 3u;
    let quad = task >> 2u;
    var rows: array<Eight, 4>;
    for (var i = 0u; i < 4u; i++) {
        let output = output_start + 4u * quad + i;
        rows[i] = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
        if output < params.outputs && k / 8u + column < params.eights {
            rows[i] = weight_eight(weight_row(output), k / 8u + column);
        }
    }
    for (var j = 0u; j < 4u; j++) {
        let low = vec4<f32>(rows[0].low[j], rows[1].low[j], rows[2].low[j], rows[3].low[j]);
        let high = vec4<f32>(rows[0].high[j], rows[1].high[j], rows[2].high[j], rows[3].high[j]);
        w_tile[(8u * column + j) * 16u + quad] = low;
        w_tile[(8u * column + j + 4u) * 16u + quad] = high;
    }
}

@compute @workgroup_size(128)
fn main(at: Invocation) {
    let row_tiles = (params.rows + TILE_ROWS - 1u) / TILE_ROWS;
    let tile = flat_workgroup(at);
    let row_start = (tile % row_tiles) * TILE_ROWS;
    let output_start = (tile / row_tiles) * 64u;
    let row_group = at.local >> 4u;
    let output_quad = at.local & 15u;
    var sums: array<vec4<f32>, ROWS_EACH>;
    for (var k = 0u; k < 8u * params.eights; k += 32u) {
        workgroupBarrier();
        if at.local < 8u * QUADS {
            load_x(at.local, row_start, k);
        }
        if at.local < 64u {
            load_w(at.local, output_start, k);
        }
        workgroupBarrier();
        for (var j = 0u; j < 32u; j++) {
            let w = w_tile[j * 16u + output_quad];
            for (var part = 0u; part < ROWS_EACH / 4u; part++) {
                let rows = x_tile[j * QUADS + row_group * (ROWS_EACH / 4u) + part];
                sums[4u * part] += rows.x * w;
                sums[4u * part + 1u] += rows.y * w;
                sums[4u * part + 2u] += rows.z * w;
                sums[4u * part + 3u] += rows.w * w;
            }
        }
    }
    for (var i = 0u; i < ROWS_EACH; i++) {
        for (var j = 0u; j < 4u; j++) {
            emit(row_start + row_group * ROWS_EACH + i, output_start + 4u * output_quad + j, sums[i][j]);
        }
    }
}
