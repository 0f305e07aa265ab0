// out = W_e * x + bias_e for many routes: a register-tiled product of the rows routed to an expert, so that its matrix
// is read once for 32 rows. Products to be combined are written to scratch, and matmul_experts_merge sums them.
// Workgroup of 128: 64 outputs of one expert for all its routes, in tiles of 32. It finds its routes by reading all
// routes, 512 tokens at a time (a token has an expert at most once), in any order: a row's sums do not depend on its
// position.
// Tiles are in workgroup memory as in matmul_tile. Variants: weight format, BIAS.
// Twin: backend/reference/matmul_experts.rs
#import invocation
#import matmul_experts
#import weight

var<workgroup> x_tile: array<vec4<f32>, 256>;
var<workgroup> w_tile: array<vec4<f32>, 512>;
var<workgroup> found: array<u32, 512>;
var<workgroup> counter: atomic<u32>;
var<workgroup> found_count: u32;

// Four found rows x four columns of x, transposed into the tile.
fn load_x(task: u32, first: u32, rows: u32, k: u32) {
    let column = task & 7u;
    let quad = task >> 3u;
    let vectors = 2u * params.eights;
    var values: array<vec4<f32>, 4>;
    for (var i = 0u; i < 4u; i++) {
        let row = first + 4u * quad + i;
        values[i] = vec4<f32>(0.0);
        if row < rows && k / 4u + column < vectors {
            values[i] = x[found[row] / params.x_routes * vectors + k / 4u + column];
        }
    }
    for (var j = 0u; j < 4u; j++) {
        x_tile[(4u * column + j) * 8u + quad] = vec4<f32>(values[0][j], values[1][j], values[2][j], values[3][j]);
    }
}

// Four rows x eight columns of W, transposed into the tile.
fn load_w(task: u32, expert: u32, output_start: u32, k: u32) {
    let column = task & 3u;
    let quad = task >> 2u;
    var rows: array<Eight, 4>;
    for (var i = 0u; i < 4u; i++) {
        let output = output_start + 4u * quad + i;
        rows[i] = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
        if output < params.outputs && k / 8u + column < params.eights {
            rows[i] = weight_eight(weight_row(expert * params.outputs + output), k / 8u + column);
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
    let tiles = (params.outputs + 63u) / 64u;
    let expert = flat_workgroup(at) / tiles;
    let output_start = (flat_workgroup(at) % tiles) * 64u;
    let row_group = at.local >> 4u;
    let output_quad = at.local & 15u;
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
        for (var first = 0u; first < rows; first += 32u) {
            var sums: array<vec4<f32>, 4>;
            for (var k = 0u; k < 8u * params.eights; k += 32u) {
                workgroupBarrier();
                if at.local < 64u {
                    load_w(at.local, expert, output_start, k);
                } else {
                    load_x(at.local - 64u, first, rows, k);
                }
                workgroupBarrier();
                for (var j = 0u; j < 32u; j++) {
                    let w = w_tile[j * 16u + output_quad];
                    let values = x_tile[j * 8u + row_group];
                    sums[0] += values.x * w;
                    sums[1] += values.y * w;
                    sums[2] += values.z * w;
                    sums[3] += values.w * w;
                }
            }
            for (var i = 0u; i < 4u; i++) {
                let row = first + 4u * row_group + i;
                if row < rows {
                    for (var j = 0u; j < 4u; j++) {
                        emit(found[row], output_start + 4u * output_quad + j, sums[i][j]);
                    }
                }
            }
        }
    }
}
