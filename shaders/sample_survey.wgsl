// Surveys the logits of every sample row: the largest key of each part of a row and its lowest id, and the largest keys
// of subsets, from which `sample` derives a bound for the n-th largest key.
//
// logits [rows of this run][vocab]; parts [row][part] of records (see sample_parts.wgsl). One workgroup: one part of
// one row. Numbers: WORKGROUP. Variants: VECTORS. Twin: backend/reference/sample.rs

#import invocation
#import sample
#import sample_logits
#import sample_parts

@group(0) @binding(3) var<storage, read_write> parts: array<u32>;

var<workgroup> keys: array<u32, WORKGROUP>;
var<workgroup> ids: array<u32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(invocation: Invocation) {
    let flat = flat_workgroup(invocation);
    let local = invocation.local;
    let is_row = flat < params.rows * params.parts;
    let index = select(0u, flat / params.parts, is_row);
    let row = params.row_first + index;
    let part = flat % params.parts;
    let start = (row_word(row, SAMPLE_LOGITS_ROW) - params.logits_first) * params.vocab;
    let begin = part * params.part_fours;
    let end = select(0u, min(begin + params.part_fours, (params.vocab + 3u) / 4u), is_row);
    var key = 0u;
    var id = NONE;
    for (var four = begin + local; four < end; four += WORKGROUP) {
        let bits = logits_four(start, four, params.vocab);
#for i 4
        {
            let own = select(key_of(bits[i]), BAD_KEY, is_bad(bits[i]));
            if own > key {
                key = own;
                id = 4u * four + i;
            }
        }
#endfor
    }
    keys[local] = key;
    ids[local] = id;
    workgroupBarrier();
    for (var stride = WORKGROUP / 2u; stride > 0u; stride >>= 1u) {
        // What is left of subset n is at n.
        if stride == PART_MAXIMA / 2u && local < PART_MAXIMA && is_row {
            parts[part_at(index, part) + 2u + local] = keys[local];
        }
        workgroupBarrier();
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
    if local == 0u && is_row {
        parts[part_at(index, part)] = keys[0];
        parts[part_at(index, part) + 1u] = ids[0];
    }
}
