// The largest key of a part of each plain greedy row, and its lowest id.
//
// logits [rows of this run][vocab]; parts [row][part] of (key, id), key = 0xffffffff for a bad logit.
// One workgroup: one part of one row. sample_argmax_merge joins them. Numbers: WORKGROUP.
// Twin: backend/reference/sample.rs

#import invocation
#import sample

struct Params {
    rows: u32,
    row_first: u32, // first row, among the sample rows of the batch
    logits_first: u32, // first logits row of this run
    vocab: u32,
    parts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<u32>;
@group(0) @binding(3) var<storage, read_write> parts: array<vec2<u32>>;

var<workgroup> keys: array<u32, WORKGROUP>;
var<workgroup> ids: array<u32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(invocation: Invocation) {
    let flat = flat_workgroup(invocation);
    let local = invocation.local;
    let is_row = flat < params.rows * params.parts;
    let row = params.row_first + select(0u, flat / params.parts, is_row);
    let part = flat % params.parts;
    let size = (params.vocab + params.parts - 1u) / params.parts;
    let begin = part * size;
    let end = select(0u, min(begin + size, params.vocab), is_row && is_plain(row));
    let base = (row_word(row, SAMPLE_LOGITS_ROW) - params.logits_first) * params.vocab;
    var key = 0u;
    var id = NONE;
    for (var i = begin + local; i < end; i += WORKGROUP) {
        let bits = logits[base + i];
        let own = select(key_of(bits), 0xffffffffu, is_bad(bits));
        if own > key {
            key = own;
            id = i;
        }
    }
    keys[local] = key;
    ids[local] = id;
    workgroupBarrier();
    for (var stride = WORKGROUP / 2u; stride > 0u; stride >>= 1u) {
        if local < stride {
            let other = keys[local + stride];
            let other_id = ids[local + stride];
            if other > keys[local] || (other == keys[local] && other_id < ids[local]) {
                keys[local] = other;
                ids[local] = other_id;
            }
        }
        workgroupBarrier();
    }
    if local == 0u && end > begin {
        parts[flat] = vec2<u32>(keys[0], ids[0]);
    }
}
