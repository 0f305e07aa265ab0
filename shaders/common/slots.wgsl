// A workgroup of 64 consists of slots of LANES lanes. The lanes of a slot share ROWS x OUTPUTS outputs: each sums some
// columns. Numbers: LANES, ROWS, OUTPUTS.

const SLOTS: u32 = 64u / LANES;
alias LaneSums = array<f32, ROWS * OUTPUTS>; // [output][row]

var<workgroup> lane_partials: array<f32, 64u * ROWS * OUTPUTS>; // [output][row][invocation]

// Adds up the sums of the lanes of every slot. In uniform control flow.
fn add_lanes(local: u32, sums: LaneSums) {
#for output OUTPUTS
#for row ROWS
    lane_partials[(output * ROWS + row) * 64u + local] = sums[output * ROWS + row];
#endfor
#endfor
    for (var stride = LANES / 2u; stride > 0u; stride >>= 1u) {
        workgroupBarrier();
        if local % LANES < stride {
            for (var index = 0u; index < ROWS * OUTPUTS; index++) {
                let to = index * 64u + local;
                lane_partials[to] += lane_partials[to + stride];
            }
        }
    }
    workgroupBarrier();
}

// Sum `index` of the invocation's slot, after add_lanes.
fn slot_sum(local: u32, index: u32) -> f32 {
    return lane_partials[index * 64u + local / LANES * LANES];
}

// sum + weights * x.
fn add_products(weights: Eight, low: vec4<f32>, high: vec4<f32>, sum: f32) -> f32 {
    let first = fma(weights.low.y, low.y, fma(weights.low.x, low.x, sum));
    let second = fma(weights.low.w, low.w, fma(weights.low.z, low.z, first));
    let third = fma(weights.high.y, high.y, fma(weights.high.x, high.x, second));
    return fma(weights.high.w, high.w, fma(weights.high.z, high.z, third));
}

#ifdef ONE_ROW
#ifdef INT8
#import int8
// sums += weights * x for a group of 32 quantized weights of each row: x is rounded to bytes, and the scales of both
// are applied to the sums of integers. Arguments as below.
fn add_unit(weight_rows: array<u32, OUTPUTS>, x_row: u32, unit: u32, sums: ptr<function, LaneSums>) {
    var groups: array<Group, OUTPUTS>;
#for output OUTPUTS
    groups[output] = weight_group(weight_rows[output], unit);
#endfor
    var values: array<vec4<f32>, 8>;
#for quarter 4
#ifdef PARTIAL
    if 4u * unit + quarter < params.eights {
#else
    {
#endif
        values[2u * quarter] = x_vector(x_row, 8u * unit + 2u * quarter);
        values[2u * quarter + 1u] = x_vector(x_row, 8u * unit + 2u * quarter + 1u);
    }
#endfor
    let x_bytes = byte_group(values);
#ifndef LEVELS_SIGNED
#ifdef OFFSETS
    let ones = vec2<u32>(0x01010101u);
    let first_sum = byte_products(x_bytes.words[0], ones) + byte_products(x_bytes.words[1], ones);
    let last_sum = byte_products(x_bytes.words[2], ones) + byte_products(x_bytes.words[3], ones);
#endif
#endif
#for output OUTPUTS
    {
        let group = groups[output];
        let first = byte_products(weight_bytes(group, 0u), x_bytes.words[0])
            + byte_products(weight_bytes(group, 1u), x_bytes.words[1]);
        let last = byte_products(weight_bytes(group, 2u), x_bytes.words[2])
            + byte_products(weight_bytes(group, 3u), x_bytes.words[3]);
        var sum = fma(f32(first), group.scale.x, f32(last) * group.scale.z);
#ifndef LEVELS_SIGNED
#ifdef OFFSETS
        sum = fma(f32(first_sum), group.scale.y, fma(f32(last_sum), group.scale.w, sum));
#endif
#endif
        (*sums)[output] = fma(sum, x_bytes.scale, (*sums)[output]);
    }
#endfor
}
#else
// sums += weights * x for 16 bytes of dense rows, or for a group of 32 quantized weights of each row. `x_row` is the
// first vector of the row of x; the importer defines x_vector(x_row, vector). PARTIAL: the last group is not whole.
fn add_unit(weight_rows: array<u32, OUTPUTS>, x_row: u32, unit: u32, sums: ptr<function, LaneSums>) {
#ifdef GROUPS
    var groups: array<Group, OUTPUTS>;
#for output OUTPUTS
    groups[output] = weight_group(weight_rows[output], unit);
#endfor
    // Levels are multiplied without scaling; the scales of a group are applied to the sums of its halves, and its
    // offsets to the sums of x, which all outputs share.
    var dots: array<vec2<f32>, OUTPUTS>;
    var x_sums = vec2<f32>(0.0);
#for quarter 4
#ifdef PARTIAL
    if 4u * unit + quarter < params.eights {
#else
    {
#endif
        let low = x_vector(x_row, 8u * unit + 2u * quarter);
        let high = x_vector(x_row, 8u * unit + 2u * quarter + 1u);
#ifdef OFFSETS
        let pairs = low + high;
        x_sums[quarter / 2u] += (pairs.x + pairs.y) + (pairs.z + pairs.w);
#endif
#for output OUTPUTS
        {
            let levels = group_levels(groups[output], quarter);
            dots[output][quarter / 2u] = add_products(levels, low, high, dots[output][quarter / 2u]);
        }
#endfor
    }
#endfor
#for output OUTPUTS
    {
        let scale = groups[output].scale;
        var sum = fma(dots[output].x, scale.x, fma(dots[output].y, scale.z, (*sums)[output]));
#ifdef OFFSETS
        sum = fma(x_sums.x, scale.y, fma(x_sums.y, scale.w, sum));
#endif
        (*sums)[output] = sum;
    }
#endfor
#else
    let low = x_vector(x_row, 2u * unit);
    let high = x_vector(x_row, 2u * unit + 1u);
#for output OUTPUTS
    (*sums)[output] = add_products(weight_eight(weight_rows[output], unit), low, high, (*sums)[output]);
#endfor
#endif
}
#endif
#endif
