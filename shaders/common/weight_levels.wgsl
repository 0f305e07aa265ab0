// Levels of the codes of a quantized weight, for codes below 256.
// LEVEL_TABLE: a table in workgroup memory, for GPUs; every kernel calls fill_levels before its first weight.
#ifdef LEVEL_TABLE
var<workgroup> level_table: array<f32, 16>;

fn levels(codes: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(level_table[codes.x], level_table[codes.y], level_table[codes.z], level_table[codes.w]);
}
#else
#ifdef LEVELS_IQ4
fn levels(codes: vec4<u32>) -> vec4<f32> {
    return computed_levels(codes);
}
#else
#ifdef LEVELS_E2M1
fn levels(codes: vec4<u32>) -> vec4<f32> {
    return computed_levels(codes);
}
#else
#ifdef LEVELS_E4M3
// The bias of the exponent is changed from 7 to 127. That makes 2^-6 + m / 512 of a subnormal m / 512: twice that,
// minus 2^-5, is the smaller one of the two only for subnormals.
fn levels(codes: vec4<u32>) -> vec4<f32> {
    let bits = (codes & vec4<u32>(0x7fu)) << vec4<u32>(20u);
    let normal = bitcast<vec4<f32>>(bits + vec4<u32>(0x3c000000u));
    let magnitude = min(normal, fma(normal, vec4<f32>(2.0), vec4<f32>(-0.015625)));
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(magnitude) | ((codes & vec4<u32>(0x80u)) << vec4<u32>(24u)));
}
#else
fn levels(codes: vec4<u32>) -> vec4<f32> {
#ifdef BYTE_CONVERSION
    return vec4<f32>(codes);
#else
    return vec4<f32>(bitcast<vec4<i32>>(codes));
#endif
}
#endif
#endif
#endif
#endif

#ifdef LEVELS_IQ4
// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, four signed bytes per word.
fn computed_levels(codes: vec4<u32>) -> vec4<f32> {
    let second = (codes & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(0xbfad9881u), vec4<u32>(0xf6eaddcfu), second);
    let high = select(vec4<u32>(0x26190d01u), vec4<u32>(0x71594535u), second);
    let word = select(low, high, codes >= vec4<u32>(8u));
    let place = vec4<u32>(24u) - ((codes & vec4<u32>(3u)) << vec4<u32>(3u));
    return vec4<f32>(bitcast<vec4<i32>>(word << place) >> vec4<u32>(24u));
}
#endif
#ifdef LEVELS_E2M1
// Twice 0 0.5 1 1.5 2 3 4 6, four bits each; bit 3 of a code is the sign.
fn computed_levels(codes: vec4<u32>) -> vec4<f32> {
    let place = (codes & vec4<u32>(7u)) << vec4<u32>(2u);
    let magnitude = vec4<f32>((vec4<u32>(0xc8643210u) >> place) & vec4<u32>(15u));
    return select(magnitude, -magnitude, codes >= vec4<u32>(8u));
}
#endif

// Fills the table, if there is one. In uniform control flow; a barrier comes before the first weight.
fn fill_levels(local: u32) {
#ifdef LEVEL_TABLE
    if local < 4u {
        let first = 4u * local;
        let four = computed_levels(vec4<u32>(first, first + 1u, first + 2u, first + 3u));
        level_table[first] = four.x;
        level_table[first + 1u] = four.y;
        level_table[first + 2u] = four.z;
        level_table[first + 3u] = four.w;
    }
    workgroupBarrier();
#endif
}
