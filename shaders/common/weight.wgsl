// Eight consecutive weights of a row, widened. `weight` is bound by the importing shader as array<vec4<u32>>, or with
// TEXELS as an image of such vectors.
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

#ifdef WEIGHT_F32
fn weight_eight(index: u32) -> Eight {
    return Eight(bitcast<vec4<f32>>(weight_vector(2u * index)), bitcast<vec4<f32>>(weight_vector(2u * index + 1u)));
}
#endif
#ifdef WEIGHT_F16
#import half
fn weight_eight(index: u32) -> Eight {
    let words = weight_vector(index);
    let low = vec4<f32>(unpack_halves(words.x), unpack_halves(words.y));
    return Eight(low, vec4<f32>(unpack_halves(words.z), unpack_halves(words.w)));
}
#endif
#ifdef WEIGHT_BF16
fn weight_eight(index: u32) -> Eight {
    let words = weight_vector(index);
    let even = bitcast<vec4<f32>>(words << vec4<u32>(16u));
    let odd = bitcast<vec4<f32>>(words & vec4<u32>(0xffff0000u));
    return Eight(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}
#endif
