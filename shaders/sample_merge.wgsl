// Joins the surveyed parts of plain greedy rows; writes feed slot and result of each.
//
// parts [row][part] of records (see sample_parts.wgsl); results [sample row of the batch][record]. One invocation: one
// row. Twin: backend/reference/sample.rs

#import invocation
#import sample
#import sample_parts

@group(0) @binding(2) var<storage, read> parts: array<u32>;
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
    // Parts are in the order of their ids.
    for (var part = 0u; part < params.parts; part++) {
        let at = part_at(index, part);
        if parts[at] > best.x {
            best = vec2<u32>(parts[at], parts[at + 1u]);
        }
    }
    let is_error = best.x == BAD_KEY || best.x <= KEY_LOWEST;
    results[row * metadata_word(META_RESULT_STRIDE) + RESULT_TOKEN_ID] = select(best.y, NUMERICAL_ERROR, is_error);
    let slot = row_word(row, SAMPLE_FEED_SLOT);
    if slot != NONE {
        feed[slot] = select(best.y, 0u, is_error);
    }
}
