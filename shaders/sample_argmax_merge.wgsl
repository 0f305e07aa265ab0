// Joins the parts of sample_argmax; writes feed slot and result of each plain greedy row.
//
// parts [row][part] of (key, id); results [sample row of the batch][record]. One invocation: one row.
// Twin: backend/reference/sample.rs

#import invocation
#import sample

struct Params {
    rows: u32,
    row_first: u32,
    logits_first: u32,
    vocab: u32,
    parts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> parts: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> feed: array<u32>;
@group(0) @binding(4) var<storage, read_write> results: array<u32>;

@compute @workgroup_size(64)
fn main(invocation: Invocation) {
    let index = flat_workgroup(invocation) * 64u + invocation.local;
    let row = params.row_first + index;
    if index >= params.rows {
        return;
    }
    if !is_plain(row) {
        return;
    }
    var best = vec2<u32>(0u, NONE);
    // A part may be empty if the vocabulary is small; parts are in the order of their ids.
    let size = (params.vocab + params.parts - 1u) / params.parts;
    for (var part = 0u; part * size < params.vocab; part++) {
        let other = parts[index * params.parts + part];
        if other.x > best.x {
            best = other;
        }
    }
    let is_error = best.x == 0xffffffffu || best.x <= KEY_LOWEST;
    results[row * RESULT_WORDS + RESULT_TOKEN_ID] = select(best.y, NUMERICAL_ERROR, is_error);
    let slot = row_word(row, SAMPLE_FEED_SLOT);
    if slot != NONE {
        feed[slot] = select(best.y, 0u, is_error);
    }
}
