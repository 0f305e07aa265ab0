// Products of bytes: 32 elements of x are rounded to scale * code, with codes from -127 to 127, and an instruction
// multiplies four of them by four codes of a weight and adds the products. Twin: backend/reference/int8.rs
#import weight_group

struct ByteGroup {
    words: array<vec2<u32>, 4>, // eight codes each
    scale: f32,
}

// Adding 1.5 * 2^23 rounds to an integer, whose low byte is the low byte of the sum's bits.
fn packed_codes(values: vec4<f32>, inverse: f32) -> u32 {
    let bits = bitcast<vec4<u32>>(fma(values, vec4<f32>(inverse), vec4<f32>(12582912.0)));
    let pairs = (bits.xz & vec2<u32>(0xffu)) | ((bits.yw & vec2<u32>(0xffu)) << vec2<u32>(8u));
    return pairs.x | (pairs.y << 16u);
}

fn largest_of(values: vec4<f32>, other: f32) -> f32 {
    let magnitudes = abs(values);
    return max(max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w)), other);
}

fn byte_group(values: array<vec4<f32>, 8>) -> ByteGroup {
    var largest = 0.0;
#for n 8
    largest = largest_of(values[n], largest);
#endfor
    var group: ByteGroup;
    group.scale = largest / 127.0;
    // Smaller elements become zeros: the reciprocal would overflow.
    let inverse = select(0.0, 127.0 / largest, largest > 1e-30);
#for part 4
    group.words[part] =
        vec2<u32>(packed_codes(values[2u * part], inverse), packed_codes(values[2u * part + 1u], inverse));
#endfor
    return group;
}

// Codes 8 * part to 8 * part + 7 of a weight's group as signed bytes.
fn weight_bytes(group: Group, part: u32) -> vec2<u32> {
#ifdef LEVELS_SIGNED
    return code_bytes(group, part) ^ vec2<u32>(0x80808080u);
#else
    return code_bytes(group, part);
#endif
}

fn byte_products(a: vec2<u32>, b: vec2<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y);
}
