// cos and sin of position · frequency, accurate to f32 rounding at any position.
//
// A float product loses the angle's fraction at large positions, and devices guarantee the accuracy of sin and cos only
// within ±π, to 2⁻¹¹. So the angle is computed in turns, in 64-bit fixed point: whole turns overflow and vanish.

#import wide

// 1 / 2π in units of 2⁻⁶⁴.
const TURNS_HIGH: u32 = 0x28be60dbu;
const TURNS_LOW: u32 = 0x9391054au;
const TWO_PI_OVER_2_32: f32 = 1.4629180792671596e-9;

// Turns per position, in units of 2⁻⁶⁴ (low, high), for a positive frequency in radians: mantissa · 2^(exponent − 150).
fn turns(frequency: f32) -> vec2<u32> {
    let bits = bitcast<u32>(frequency);
    let exponent = (bits >> 23u) & 0xffu;
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    let low = wide_mul(mantissa, TURNS_LOW);
    let high = wide_mul(mantissa, TURNS_HIGH);
    let middle = low.y + high.x;
    let top = high.y + select(0u, 1u, middle < low.y);
    // 96 bits (top, middle, low.x) shifted right by 150 − exponent; a frequency is below 2⁹, so that is at least 14.
    let shift = 150u - min(exponent, 136u);
    if (shift < 32u) {
        return vec2<u32>((low.x >> shift) | (middle << (32u - shift)), (middle >> shift) | (top << (32u - shift)));
    }
    if (shift == 32u) {
        return vec2<u32>(middle, top);
    }
    if (shift < 64u) {
        return vec2<u32>((middle >> (shift - 32u)) | (top << (64u - shift)), top >> (shift - 32u));
    }
    return vec2<u32>(select(0u, top >> min(shift - 64u, 31u), shift < 96u), 0u);
}

fn cos_sin(position: u32, frequency: f32) -> vec2<f32> {
    let step = turns(frequency);
    // The top 32 bits of the fraction of a turn.
    let phase = wide_mul(position, step.x).y + position * step.y;
    let quarter = (phase + 0x20000000u) >> 30u;
    let angle = f32(bitcast<i32>(phase - (quarter << 30u))) * TWO_PI_OVER_2_32;
    let square = angle * angle;
    let sine = angle + angle * square * (-1.6666654611e-1 + square * (8.3321608736e-3 - square * 1.9515295891e-4));
    let cosine = 1.0 - 0.5 * square
        + square * square * (4.166664568298827e-2 + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5));
    if (quarter == 1u) {
        return vec2<f32>(-sine, cosine);
    }
    if (quarter == 2u) {
        return vec2<f32>(-cosine, -sine);
    }
    if (quarter == 3u) {
        return vec2<f32>(sine, -cosine);
    }
    return vec2<f32>(cosine, sine);
}
