// The counter-based generator Philox4x32-10 (Salmon et al., 2011), and Gumbel noise from its words.

#import wide

fn philox(counter: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
    var words = counter;
    var key = seed;
    for (var round = 0u; round < 10u; round++) {
        let first = wide_mul(words.x, 0xd2511f53u);
        let second = wide_mul(words.z, 0xcd9e8d57u);
        words = vec4<u32>(second.y ^ words.y ^ key.x, second.x, first.y ^ words.w ^ key.y, first.x);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return words;
}

// −ln(−ln u) for u = ((word >> 8) + ½) · 2⁻²⁴. Above ½, a series in 1 − u is used: log is too inaccurate near 1.
fn gumbel(word: u32) -> f32 {
    let k = word >> 8u;
    let v = (f32(0xffffffu - k) + 0.5) * 5.9604644775390625e-8;
    let s = v / (2.0 - v);
    let z = s * s;
    let tail = 1.0 / 7.0 + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z / 13.0));
    let series = 2.0 * s * (1.0 + z * (1.0 / 3.0 + z * (0.2 + z * tail)));
    let direct = -log((f32(min(k, 0x7fffffu)) + 0.5) * 5.9604644775390625e-8);
    return -log(select(series, direct, k < 0x800000u));
}
