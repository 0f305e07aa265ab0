// Two half-precision values per word, low half first. SOFT_HALF: integer arithmetic, for adapters without
// unpack2x16float.
#ifdef SOFT_HALF
fn half_to_float(half: u32) -> f32 {
    let magnitude = half & 0x7fffu;
    let normal = bitcast<f32>((magnitude << 13u) + 0x38000000u);
    let subnormal = f32(magnitude) * 5.9604644775390625e-8;
    let value = select(normal, subnormal, magnitude < 0x400u);
    return select(value, -value, (half & 0x8000u) != 0u);
}

fn float_to_half(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let magnitude = bits & 0x7fffffffu;
    let even = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u;
    let small = u32(round(abs(value) * 16777216.0));
    return ((bits >> 16u) & 0x8000u) | select(even, small, magnitude < 0x38800000u);
}

fn unpack_halves(word: u32) -> vec2<f32> {
    return vec2<f32>(half_to_float(word & 0xffffu), half_to_float(word >> 16u));
}

// Values are clamped first: an infinity written by one step becomes NaN in the next.
fn pack_halves(pair: vec2<f32>) -> u32 {
    let bounded = clamp(pair, vec2<f32>(-65504.0), vec2<f32>(65504.0));
    return float_to_half(bounded.x) | (float_to_half(bounded.y) << 16u);
}
#else
fn unpack_halves(word: u32) -> vec2<f32> {
    return unpack2x16float(word);
}

// Values are clamped first: an infinity written by one step becomes NaN in the next.
fn pack_halves(pair: vec2<f32>) -> u32 {
    return pack2x16float(clamp(pair, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}
#endif
