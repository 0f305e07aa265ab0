// In place: logits = softcap * tanh(scale * logits / softcap), or scale * logits. Invocation: one logit.
// logits: [rows, vocab] f32, taken as one run of elements; what is not finite stays.
// Variants: SOFTCAP. Twin: backend/cpu/scale_logits.rs
#import invocation

struct Params {
    elements: u32,
    scale: f32,
    softcap: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let index = flat_workgroup(at) * 64u + at.local;
    if index >= params.elements {
        return;
    }
    let logit = logits[index];
    // Not finite: the sampler must still find a row that failed.
    if (bitcast<u32>(logit) & 0x7fffffffu) >= 0x7f800000u {
        return;
    }
#ifdef SOFTCAP
    logits[index] = params.softcap * tanh(clamp(params.scale * logit / params.softcap, -20.0, 20.0));
#else
    logits[index] = params.scale * logit;
#endif
}
