// Like matmul_texel, for quantized weights in rows of whole groups: a lane processes 32 columns at a time, so that one
// image load gives 32 codes of 4 bits.
// Codes are multiplied without scaling; the scales of a group are applied to its 16-column sums, and its minimum to the
// sum of x, which all outputs share. x is on the stack, where a multiply-add reads it at no cost. All loads of an
// iteration come before its arithmetic, so that cores wait for them together instead of one after the other.
// Variants: weight format, BIAS, ROWS, OUTPUTS, MANY_ROWS (more than ROWS). Needs TEXELS, SUBGROUPS.
// Twin: backend/reference/matmul.rs
#import invocation
#import lanes
#import matmul
#import weight
#import weight_placed

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
    let groups = params.eights / 4u;
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
    for (var group = lane; group < groups; group += 8u) {
        var low: array<vec4<f32>, ROWS * 4u>;
        var high: array<vec4<f32>, ROWS * 4u>;
        var x_sums: array<vec2<f32>, ROWS>;
        var w: array<Group, OUTPUTS>;
#for output OUTPUTS
        w[output] = weight_group(weight_rows[output], group);
#endfor
#for row ROWS
#for part 4
        low[row * 4u + part] = x_vector(x_rows[row] + 8u * group + 2u * part);
        high[row * 4u + part] = x_vector(x_rows[row] + 8u * group + 2u * part + 1u);
        x_sums[row][part / 2u] += dot(low[row * 4u + part] + high[row * 4u + part], vec4<f32>(1.0));
        low[row * 4u + part] *= PLACES_LOW;
        high[row * 4u + part] *= PLACES_HIGH;
#endfor
#endfor
#for output OUTPUTS
        {
            let scale = w[output].scale;
            var dots: array<vec2<f32>, ROWS>;
#for part 4
            {
                let codes = placed_levels(w[output], part);
#for row ROWS
                dots[row][part / 2u] += dot(codes.low, low[row * 4u + part]) + dot(codes.high, high[row * 4u + part]);
#endfor
            }
#endfor
#for row ROWS
            sums[row * OUTPUTS + output] += dot(dots[row], scale.xz) + dot(x_sums[row], scale.yw);
#endfor
        }
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
