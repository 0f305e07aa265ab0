// Logits of a row, four at a time. VECTORS: the vocabulary is a multiple of four, so that rows consist of vectors.

const MINUS_INFINITY: u32 = 0xff800000u;

#ifdef VECTORS
@group(0) @binding(2) var<storage, read> logits: array<vec4<u32>>;

fn logits_four(start: u32, four: u32, vocab: u32) -> vec4<u32> {
    return logits[start / 4u + four];
}

fn logit_at(start: u32, id: u32) -> u32 {
    return logits[(start + id) / 4u][(start + id) % 4u];
}
#else
@group(0) @binding(2) var<storage, read> logits: array<u32>;

// −∞ past the end.
fn logits_four(start: u32, four: u32, vocab: u32) -> vec4<u32> {
    var bits = vec4<u32>(MINUS_INFINITY);
#for i 4
    if 4u * four + i < vocab {
        bits[i] = logits[start + 4u * four + i];
    }
#endfor
    return bits;
}

fn logit_at(start: u32, id: u32) -> u32 {
    return logits[start + id];
}
#endif
