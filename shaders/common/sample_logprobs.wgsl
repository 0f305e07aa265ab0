// Logprobs of the raw row: those of the drawn token, with its rank, and of the most likely tokens, in order.

#import sample_list
#import sample_parts
#import sample_row
#import sample_shared

// Of Σ exp(l − max), and of the number of keys above one.
var<workgroup> sums: array<vec2<f32>, WORKGROUP>;

// max + ln Σ exp(l − max) as (max, ln Σ), and the number of logits above that of `id`, which is below 2²⁴. Four sums
// per invocation keep the rounding error of 2¹⁷ terms near 1e-6.
fn log_total(row: Row, local: u32, id: u32) -> vec3<f32> {
    let own = raw_key(row, id);
    var key = 0u;
    for (var part = local; part < select(0u, params.parts, row.vocab > 0u); part += WORKGROUP) {
        key = max(key, parts[row.part + part * PART_WORDS]);
    }
    let largest = value_of(best_of(local, key, 0u).x);
    var four_sums = vec4<f32>();
    var above = vec4<f32>();
    for (var four = local; four * 4u < row.vocab; four += WORKGROUP) {
        let bits = logits_four(row.logits, four, row.vocab);
        let keys = vec4<u32>(key_of(bits.x), key_of(bits.y), key_of(bits.z), key_of(bits.w));
        above += select(vec4<f32>(), vec4<f32>(1.0), keys > vec4<u32>(own));
        // A minus infinity past the end is not passed to exp: a device may assume that there is none.
        four_sums += select(exp(bitcast<vec4<f32>>(bits) - largest), vec4<f32>(), bits == vec4<u32>(MINUS_INFINITY));
    }
    sums[local] = vec2<f32>(
        (four_sums.x + four_sums.y) + (four_sums.z + four_sums.w), (above.x + above.y) + (above.z + above.w));
    workgroupBarrier();
    for (var stride = WORKGROUP / 2u; stride > 0u; stride >>= 1u) {
        if local < stride {
            sums[local] += sums[local + stride];
        }
        workgroupBarrier();
    }
    return vec3<f32>(largest, log(sums[0].x), sums[0].y);
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

// Adds the `missing` keys with the lowest ids of those that equal `key` to the list.
fn list_ties(row: Row, local: u32, source: u32, key: u32, missing: u32) {
    var next = 0u;
    for (var left = missing; left > 0u; left--) {
        var lowest = NONE;
        for (var id = next + local; id < row.vocab && lowest == NONE; id += WORKGROUP) {
            lowest = select(NONE, id, key_at(row, id, source == RAW) == key);
        }
        let found = best_of(local, 1u, lowest).y;
        if local == 0u && found != NONE {
            keep_top(key, found);
        }
        next = select(row.vocab, found + 1u, found != NONE);
    }
    workgroupBarrier();
}

// Lists at least the `count` largest keys above −∞, or all if there are fewer: those from a bound upwards. If that
// leaves too many: exactly those, of which only the ones that equal the count-th largest need further rounds.
fn list_top(row: Row, local: u32, own: u32, source: u32, count: u32) {
    let scale = Scale(0.0, 1.0, -3.0e38);
    var selection = any_of(LISTED, list_maxima(row, local, own, source), count);
    // A loop, so that there is a single call for drivers to inline.
    for (var is_exact = 0u; is_exact < 2u; is_exact++) {
        let least = threshold(row, local, selection, scale);
        let listed = list_keys_from(row, local, least + is_exact, source, false, scale).count;
        if is_exact == 1u {
            list_ties(row, local, source, least, count - min(count, listed));
        } else if listed <= LIST {
            break;
        }
        selection = any_of(source, 0u, count);
    }
}

// Writes the `count` most likely tokens, or fewer if fewer are above −∞. `own`: the largest ADJUSTED key of this
// invocation.
fn write_top(row: Row, local: u32, own: u32, kind: u32, count: u32, total: vec2<f32>) {
#ifdef ADJUST
    let source = kind;
#else
    let source = RAW;
#endif
    list_top(row, local, own, source, count);
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
