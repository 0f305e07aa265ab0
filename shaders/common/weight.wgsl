// Reads and widens weights of a row, eight at a time. The importing shader binds `weight` as array<vec4<u32>>, or with
// TEXELS as an image of such vectors. Its params have row_vectors and, for quantized formats, plane, scales and supers:
// the starts of the sections of a row (defined by plan/format/weight.rs), in vectors.
struct Eight {
    low: vec4<f32>,
    high: vec4<f32>,
}

#ifdef TEXELS
#import texel
fn weight_vector(index: u32) -> vec4<u32> {
    return textureLoad(weight, texel(index));
}
#else
fn weight_vector(index: u32) -> vec4<u32> {
    return weight[index];
}
#endif

// First vector of a row.
fn weight_row(row: u32) -> u32 {
    return row * params.row_vectors;
}

#ifdef WEIGHT_F32
fn weight_eight(row: u32, k: u32) -> Eight {
    let first = row + 2u * k;
    return Eight(bitcast<vec4<f32>>(weight_vector(first)), bitcast<vec4<f32>>(weight_vector(first + 1u)));
}
#endif
#ifdef WEIGHT_F16
#import half
fn weight_eight(row: u32, k: u32) -> Eight {
    let words = weight_vector(row + k);
    let low = vec4<f32>(unpack_halves(words.x), unpack_halves(words.y));
    return Eight(low, vec4<f32>(unpack_halves(words.z), unpack_halves(words.w)));
}
#endif
#ifdef WEIGHT_BF16
fn weight_eight(row: u32, k: u32) -> Eight {
    let words = weight_vector(row + k);
    let even = bitcast<vec4<f32>>(words << vec4<u32>(16u));
    let odd = bitcast<vec4<f32>>(words & vec4<u32>(0xffff0000u));
    return Eight(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}
#endif
#ifdef GROUPS
#import weight_group
fn weight_eight(row: u32, k: u32) -> Eight {
    return group_eight(weight_group(row, k >> 2u), k & 3u);
}
#endif
