// Draws from each part of the open rows: Gumbel-max over all tokens, whose winners `sample` joins.
//
// logits [rows of this run][vocab]; parts [row][part] of records (see sample_parts.wgsl), surveyed. One workgroup: one
// part of one row. Numbers: WORKGROUP. Variants: VECTORS. Twin: backend/reference/sample.rs

#import invocation
#import philox
#import sample
#import sample_logits
#import sample_parts
#import sample_shared
#import share

@group(0) @binding(3) var<storage, read_write> parts: array<u32>;

@compute @workgroup_size(WORKGROUP)
fn main(invocation: Invocation) {
    let local = invocation.local;
    let flat = share(local, vec4<u32>(flat_workgroup(invocation), 0u, 0u, 0u)).x;
    let is_row = flat < params.rows * params.parts;
    let index = select(0u, flat / params.parts, is_row);
    let row = params.row_first + index;
    let part = flat % params.parts;
    let is_ours = is_row && is_open(row, params.vocab);
    var key = 0u;
    for (var other = local; other < params.parts; other += WORKGROUP) {
        key = max(key, parts[part_at(index, other)]);
    }
    let largest = best_of(local, key, 0u).x;
    let scale = scale_of(row, largest);
    let start = (row_word(row, SAMPLE_LOGITS_ROW) - params.logits_first) * params.vocab;
    let begin = part * params.part_fours;
    let end = select(0u, min(begin + params.part_fours, (params.vocab + 3u) / 4u), is_ours && largest != BAD_KEY);
    var best = 0u;
    var winner = NONE;
    for (var four = begin + local; four < end; four += WORKGROUP) {
        let bits = logits_four(start, four, params.vocab);
        let words = words_of(row, four);
#for i 4
        {
            let score = score_of(key_of(bits[i]), KEY_LOWEST + 1u, words[i], scale);
            if score > best {
                best = score;
                winner = 4u * four + i;
            }
        }
#endfor
    }
    let found = best_of(local, best, winner);
    if local == 0u && is_ours {
        parts[part_at(index, part) + PART_SCORE] = found.x;
        parts[part_at(index, part) + PART_SCORE + 1u] = found.y;
    }
}
