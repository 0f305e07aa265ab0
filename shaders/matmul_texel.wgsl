// out (=, +=) x * W^T + bias for Mesa's llvmpipe, where x and W are read as images (backend/wgpu/texels.rs).
// A subgroup of 8 lanes computes ROWS rows of x times OUTPUTS (8) rows of W. A workgroup has 4 subgroups, since a
// workgroup costs 0.2 us in the driver. Lanes run over the columns, each 8 at a time, so that every lane of every load
// is used. At the end the 8 lanes of 8 sums are transposed while they are summed, so that a lane holds a whole sum.
//
// Measured speed on llvmpipe (Mesa 22.3, 2 cores), relative to reading storage buffers with lanes over columns:
//   storage image, 16 bytes per lane      x 10 to 14     <- this kernel, 80 to 100 % of a kernel that only reads
//   sampled image (textureLoad)           x 8            a load takes 3 to 4 times as long as from a storage image
//   uniform buffer (64 KiB)               x 2 per word   a load of x takes twice as long as from a storage image
//   storage buffer, uniform address       x 1            only literal indices get the scalar load and broadcast
//   storage buffer, 64-bit words          x 2
//   workgroup memory                      x 2            as slow as a storage buffer, except for the bounds check
// Per 8 lanes: subgroupAdd 12 ns (as long as 4 image loads), shuffles almost nothing, a store 6 to 11 ns, an integer
// division 15 ns, exp 2 ns.
// Arrays stay in registers only if every index is a literal: hence #for. At 8 rows, 16 outputs are 2 % faster than 8
// but double the compile time; 16 rows are slower than 8 (registers).
// Variants: weight format, BIAS, ROWS, OUTPUTS, MANY_ROWS (more than ROWS). Needs TEXELS, SUBGROUPS.
// Twin: backend/reference/matmul.rs
#import invocation
#import lanes
#import matmul
#import weight

@compute @workgroup_size(32)
fn main(at: Invocation) {
    let lane = at.local & 7u;
    let tile = flat_workgroup(at) * 4u + (at.local >> 3u);
#ifdef MANY_ROWS
    let row_tiles = (params.rows + ROWS - 1u) / ROWS;
    let first_row = (tile % row_tiles) * ROWS;
    let first = (tile / row_tiles) * OUTPUTS;
#else
    let first_row = 0u;
    let first = tile * OUTPUTS;
#endif
    var sums: array<f32, ROWS * OUTPUTS>;
    var x_rows: array<u32, ROWS>;
    var weight_rows: array<u32, OUTPUTS>;
    // Rows and outputs past the end repeat the last one; emit drops them.
#for row ROWS
    x_rows[row] = min(first_row + row, params.rows - 1u) * 2u * params.eights;
#endfor
#for output OUTPUTS
    weight_rows[output] = weight_row(min(first + output, params.outputs - 1u));
#endfor
    for (var k = lane; k < params.eights; k += 8u) {
        var low: array<vec4<f32>, ROWS>;
        var high: array<vec4<f32>, ROWS>;
#for row ROWS
        low[row] = x_vector(x_rows[row] + 2u * k);
        high[row] = x_vector(x_rows[row] + 2u * k + 1u);
#endfor
        var w: array<Eight, OUTPUTS>;
#for output OUTPUTS
        w[output] = weight_eight(weight_rows[output], k);
#for row ROWS
        sums[row * OUTPUTS + output] += dot(w[output].low, low[row]);
#endfor
#endfor
#for output OUTPUTS
#for row ROWS
        sums[row * OUTPUTS + output] += dot(w[output].high, high[row]);
#endfor
#endfor
    }
#for row ROWS
    {
        const at = row * OUTPUTS;
        let low = vec4<f32>(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
        let high = vec4<f32>(sums[at + 4u], sums[at + 5u], sums[at + 6u], sums[at + 7u]);
        emit(first_row + row, first + lane, lane_sum(lane, low, high));
    }
#endfor
}
