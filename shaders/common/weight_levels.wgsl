// Levels of the codes of a quantized weight. Words with 8-bit codes have arbitrary bits above the low eight.
#ifdef LEVELS_SIGNED
fn levels(codes: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(codes << vec4<u32>(24u)) >> vec4<u32>(24u));
}
#else
#ifdef LEVELS_IQ4
// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, four signed bytes per word.
fn levels(codes: vec4<u32>) -> vec4<f32> {
    let second = (codes & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(0xbfad9881u), vec4<u32>(0xf6eaddcfu), second);
    let high = select(vec4<u32>(0x26190d01u), vec4<u32>(0x71594535u), second);
    let word = select(low, high, codes >= vec4<u32>(8u));
    let place = vec4<u32>(24u) - ((codes & vec4<u32>(3u)) << vec4<u32>(3u));
    return vec4<f32>(bitcast<vec4<i32>>(word << place) >> vec4<u32>(24u));
}
#else
#ifdef LEVELS_E2M1
// Twice 0 0.5 1 1.5 2 3 4 6, four bits each; bit 3 of a code is the sign.
fn levels(codes: vec4<u32>) -> vec4<f32> {
    let place = (codes & vec4<u32>(7u)) << vec4<u32>(2u);
    let magnitude = vec4<f32>((vec4<u32>(0xc8643210u) >> place) & vec4<u32>(15u));
    return select(magnitude, -magnitude, codes >= vec4<u32>(8u));
}
#else
#ifdef LEVELS_E4M3
// The bias of the exponent is changed from 7 to 127; subnormals are multiples of 2^-9.
fn levels(codes: vec4<u32>) -> vec4<f32> {
    let bits = codes & vec4<u32>(0x7fu);
    let normal = bitcast<vec4<f32>>((bits << vec4<u32>(20u)) + vec4<u32>(0x3c000000u));
    let magnitude = select(normal, vec4<f32>(bits) * 0.001953125, bits < vec4<u32>(8u));
    return select(magnitude, -magnitude, (codes & vec4<u32>(0x80u)) != vec4<u32>(0u));
}
#else
fn levels(codes: vec4<u32>) -> vec4<f32> {
    // Signed conversion is one instruction on CPUs.
    return vec4<f32>(bitcast<vec4<i32>>(codes));
}
#endif
#endif
#endif
#endif
