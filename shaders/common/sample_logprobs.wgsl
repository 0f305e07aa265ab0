// Logprobs of the raw row: those of the drawn token and of the most likely tokens, in order.

#import sample_list
#import sample_parts
#import sample_row
#import sample_shared

var<workgroup> sums: array<f32, WORKGROUP>;

// max + ln Σ exp(l − max) as (max, ln Σ). Four sums per invocation keep the rounding error of 2¹⁷ terms near 1e-6.
fn log_total(row: Row, local: u32) -> vec2<f32> {
    var key = 0u;
    for (var part = local; part < select(0u, params.parts, row.vocab > 0u); part += WORKGROUP) {
        key = max(key, parts[row.part + part * PART_WORDS]);
    }
    let largest = value_of(best_of(local, key, 0u).x);
    var four_sums = vec4<f32>();
    for (var four = local; four * 4u < row.vocab; four += WORKGROUP) {
        let bits = logits_four(row.logits, four, row.vocab);
        // A minus infinity past the end is not passed to exp: a device may assume that there is none.
        four_sums += select(exp(bitcast<vec4<f32>>(bits) - largest), vec4<f32>(), bits == vec4<u32>(MINUS_INFINITY));
    }
    sums[local] = (four_sums.x + four_sums.y) + (four_sums.z + four_sums.w);
    workgroupBarrier();
    for (var stride = WORKGROUP / 2u; stride > 0u; stride >>= 1u) {
        if local < stride {
            sums[local] += sums[local + stride];
        }
        workgroupBarrier();
    }
    return vec2<f32>(largest, log(sums[0]));
}

fn logprob(row: Row, id: u32, total: vec2<f32>) -> f32 {
    return value_of(raw_key(row, id)) - total.x - total.y;
}

fn keep_top(key: u32, id: u32) {
    let at = atomicAdd(&list_count, 1u);
    if at < LIST {
        list_keys[at] = key;
        list_ids[at] = id;
    }
}

// Lists the `count` largest keys above −∞ where a bound leaves too many: those above the count-th largest, and of
// those equal to it the ones with the lowest ids. More than one round is needed only for ties.
fn list_with_ties(row: Row, local: u32, source: u32, count: u32) {
    let selection = Selection(source, 0u, KEY_LOWEST + 1u, false, 0u, vec2<u32>(count, 0u));
    let least = threshold(row, local, selection, Scale(0.0, 1.0, -3.0e38));
    let above = list_keys_from(row, local, least + 1u, source, false, Scale(0.0, 1.0, -3.0e38)).count;
    var next = 0u;
    for (var missing = count - min(count, above); missing > 0u; missing--) {
        var lowest = NONE;
        for (var id = next + local; id < row.vocab && lowest == NONE; id += WORKGROUP) {
            lowest = select(NONE, id, key_at(row, id, source == RAW) == least);
        }
        let found = best_of(local, 1u, lowest).y;
        if local == 0u && found != NONE {
            keep_top(least, found);
        }
        next = select(row.vocab, found + 1u, found != NONE);
    }
    workgroupBarrier();
}

// Writes the `count` most likely tokens, or fewer if fewer are above −∞. `own`: the largest ADJUSTED key of this
// invocation.
fn write_top(row: Row, local: u32, own: u32, kind: u32, count: u32, total: vec2<f32>) {
#ifdef ADJUST
    let source = kind;
#else
    let source = RAW;
#endif
    let bound = bound_of(row, local, own, source, count);
    if list_keys_from(row, local, bound, source, false, Scale(0.0, 1.0, -3.0e38)).count > LIST {
        list_with_ties(row, local, source, count);
    }
    let listed = atomicLoad(&list_count);
    for (var i = local; i < listed; i += WORKGROUP) {
        var rank = 0u;
        for (var j = 0u; j < listed; j++) {
            let is_ahead = list_keys[j] > list_keys[i] || (list_keys[j] == list_keys[i] && list_ids[j] < list_ids[i]);
            rank += select(0u, 1u, is_ahead);
        }
        if rank < count {
            let at = row.index * metadata_word(META_RESULT_STRIDE) + RESULT_WORDS + rank * LIKELY_WORDS;
            results[at + LIKELY_ID] = list_ids[i];
            results[at + LIKELY_LOGPROB] = bitcast<u32>(logprob(row, list_ids[i], total));
        }
    }
}
