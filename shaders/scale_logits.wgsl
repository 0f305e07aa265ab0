// In place: logits = softcap * tanh(scale * logits / softcap), or scale * logits. Invocation: one logit.
// logits: [rows, vocab] f32, processed as one run of elements; non-finite logits are kept.
// Variants: SOFTCAP. Twin: backend/reference/scale_logits.rs
#import invocation

struct Params {
    elements: u32,
    scale: f32,
    softcap: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;

#ifdef SOFTCAP
// Devices compute tanh as a quotient of exponentials, which loses all digits near zero; there, a Taylor series is used.
fn precise_tanh(x: f32) -> f32 {
    let square = x * x;
    let series = x * (1.0 + square * (-0.33333333 + square * (0.13333333 - square * 0.053968254)));
    return select(tanh(clamp(x, -20.0, 20.0)), series, abs(x) < 0.1);
}
#endif

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let index = flat_workgroup(at) * 64u + at.local;
    if index >= params.elements {
        return;
    }
    let logit = logits[index];
    // Not finite: the sampler must still detect a failed row.
    if (bitcast<u32>(logit) & 0x7fffffffu) >= 0x7f800000u {
        return;
    }
#ifdef SOFTCAP
    logits[index] = params.softcap * precise_tanh(params.scale * logit / params.softcap);
#else
    logits[index] = params.scale * logit;
#endif
}
