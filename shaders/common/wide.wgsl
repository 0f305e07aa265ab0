// The 64-bit product of two words, (low, high).
fn wide_mul(a: u32, b: u32) -> vec2<u32> {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let cross = a_high * b_low + (low >> 16u);
    let cross_low = a_low * b_high + (cross & 0xffffu);
    return vec2<u32>((cross_low << 16u) | (low & 0xffffu), a_high * b_high + (cross >> 16u) + (cross_low >> 16u));
}
