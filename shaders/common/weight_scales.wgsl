// Scales of a group of 32 quantized weights.
// Defines: SCALES_*; OFFSET of the codes, which `b` contains; LEVEL_MULTIPLE: how many times larger than what scales
// refer to the levels are; FLOAT_GROUPS that share a scale; ROW_FACTOR: the units of scales are an f32 of the row.
#import half

// Word `index` of the section that starts at vector `start`.
fn section_word(start: u32, index: u32) -> u32 {
#ifdef TEXELS
    return weight_vector(start + (index >> 2u))[index & 3u];
#else
    return weight[start + (index >> 2u)][index & 3u];
#endif
}

fn signed_byte(word: u32, place: u32) -> f32 {
    return f32(bitcast<i32>(word << (24u - 8u * place)) >> 24u);
}

fn unsigned_byte(word: u32, place: u32) -> f32 {
    return f32((word >> (8u * place)) & 0xffu);
}

#ifdef LEVEL_MULTIPLE
const LEVEL_PART = 1.0 / f32(LEVEL_MULTIPLE);
#else
const LEVEL_PART = 1.0;
#endif

// `a` and `b` of both halves of a group, computed from its own scale and its super-group's.
#ifdef SCALES_HALF
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let a = unpack_halves(bits & 0xffffu).x;
#ifdef OFFSET
    let b = a * -f32(OFFSET);
#else
    let b = 0.0;
#endif
    return vec4<f32>(a, b, a, b);
}
#endif
#ifdef SCALES_HALF_MIN
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    return unpack_halves(bits).xyxy;
}
#endif
#ifdef SCALES_HALF_ZERO
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let a = unpack_halves(bits).x;
    let b = -a * f32(bitcast<i32>(bits) >> 16u);
    return vec4<f32>(a, b, a, b);
}
#endif
#ifdef SCALES_EXPONENT
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    // 2^(biased - 127), or half of it if levels are doubled; zero if that is not a normal number.
#ifdef LEVEL_MULTIPLE
    let a = bitcast<f32>((max(bits & 0xffu, 1u) - 1u) << 23u);
#else
    let a = bitcast<f32>((bits & 0xffu) << 23u);
#endif
    return vec4<f32>(a, 0.0, a, 0.0);
}
#endif
#ifdef SCALES_FLOAT
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let a = bitcast<f32>(bits);
#ifdef OFFSET
    let b = a * -f32(OFFSET);
#else
    let b = 0.0;
#endif
    return vec4<f32>(a, b, a, b);
}
#endif
#ifdef SCALES_E4M3
// E4M3 without sign, as in weight_levels.
fn small_float(byte: u32) -> f32 {
    let normal = bitcast<f32>((byte << 20u) + 0x3c000000u);
    return min(normal, fma(normal, 2.0, -0.015625));
}

fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let own = vec2<f32>(small_float(bits & 0xffu), small_float((bits >> 8u) & 0xffu));
    let a = own * LEVEL_PART * units.x;
    return vec4<f32>(a.x, 0.0, a.y, 0.0);
}
#endif
#ifdef SCALES_K32
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let a = units.x * LEVEL_PART * signed_byte(bits, 0u);
    return vec4<f32>(a, 0.0, a, 0.0);
}
#endif
#ifdef SCALES_K32_MIN
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let pair = units * vec2<f32>(unsigned_byte(bits, 0u), -unsigned_byte(bits, 1u));
    return pair.xyxy;
}
#endif
#ifdef SCALES_K16
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let a = units.x * LEVEL_PART * vec2<f32>(signed_byte(bits, 0u), signed_byte(bits, 1u));
#ifdef OFFSET
    let b = a * -f32(OFFSET);
#else
    let b = vec2<f32>(0.0);
#endif
    return vec4<f32>(a.x, b.x, a.y, b.y);
}
#endif
#ifdef SCALES_K16_MIN
fn scale_of(bits: u32, units: vec2<f32>) -> vec4<f32> {
    let a = units.x * vec2<f32>(f32(bits & 15u), f32((bits >> 8u) & 15u));
    let b = -units.y * vec2<f32>(f32((bits >> 4u) & 15u), f32((bits >> 12u) & 15u));
    return vec4<f32>(a.x, b.x, a.y, b.y);
}
#endif

// The bits of a group's scale, at the low end of a word.
fn scale_bits(row: u32, group: u32) -> u32 {
    let start = row + params.scales;
#ifdef SCALE_BITS_8
    return section_word(start, group >> 2u) >> (8u * (group & 3u));
#endif
#ifdef SCALE_BITS_16
    return section_word(start, group >> 1u) >> (16u * (group & 1u));
#endif
#ifdef SCALE_BITS_32
    return section_word(start, group);
#endif
#ifdef FLOAT_GROUPS
    return section_word(start, group / FLOAT_GROUPS);
#endif
}

// The super-group: scales shared by 256 weights, or the factor of the row.
fn super_units(row: u32, super_group: u32) -> vec2<f32> {
#ifdef ROW_FACTOR
    return vec2<f32>(bitcast<f32>(section_word(row + params.supers, 0u)));
#endif
#ifdef SUPERS
    return unpack_halves(section_word(row + params.supers, super_group));
#endif
#ifdef NO_UNITS
    return vec2<f32>(1.0);
#endif
}
