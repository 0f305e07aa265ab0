// Draws one token per sample row, following the specification in its twin step by step.
//
// logits [rows of this run][vocab], scratch [sample rows of this dispatch][vocab] (only with ADJUST),
// results [sample row of the batch][record]. One workgroup: one sample row, unless sample_argmax draws it.
// Thresholds are keys found by radix search; weights are integers, so sums do not depend on their order.
// Numbers: WORKGROUP. Variants: ADJUST (bias, penalties, mask), LOGPROBS. Twin: backend/reference/sample.rs

#import invocation
#import philox
#import sample_row
#import sample_threshold
#ifdef ADJUST
#import sample_adjust
#endif
#ifdef LOGPROBS
#import sample_logprobs
#endif

// This invocation's share of (largest key, its lowest id, any bad logit).
fn survey(row: Row, local: u32) -> vec3<u32> {
#ifdef ADJUST
    return adjust(row, local);
#else
    var best = vec3<u32>(0u, NONE, 0u);
    for (var id = local; id < row.vocab; id += WORKGROUP) {
        let bits = logits[row.logits + id];
        best.z |= select(0u, 1u, is_bad(bits));
        let key = key_of(bits);
        if key > best.x {
            best = vec3<u32>(key, id, best.z);
        }
    }
    return best;
#endif
}

// The threshold key: top-k and top-p keep tokens with this key or a larger one.
fn kept_floor(row: Row, local: u32, scale: Scale) -> u32 {
    var floor = KEY_LOWEST + 1u;
    let top_k = row_word(row.index, SAMPLE_TOP_K);
    if top_k > 0u && top_k < row.vocab {
        floor = threshold(row, local, Selection(false, floor, false, 0u, top_k), scale);
    }
    let share_wanted = u32(min(row_float(row.index, SAMPLE_TOP_P), 1.0) * 1048576.0 + 0.5);
    if share_wanted < 1048576u {
        let selection = Selection(false, floor, true, max(share_wanted, 1u), 0u);
        floor = threshold(row, local, selection, scale);
    }
    return floor;
}

// Gumbel-max over the kept tokens.
fn draw(row: Row, local: u32, floor: u32, scale: Scale) -> u32 {
    let seed = vec2<u32>(row_word(row.index, SAMPLE_SEED_LOW), row_word(row.index, SAMPLE_CHOICE));
    let position = row_word(row.index, SAMPLE_POSITION);
    let seed_high = row_word(row.index, SAMPLE_SEED_HIGH);
    var best = 0u;
    var winner = NONE;
    for (var four = local; four * 4u < row.vocab; four += WORKGROUP) {
        var keys = vec4<u32>();
        for (var i = 0u; i < 4u; i++) {
            if four * 4u + i < row.vocab {
                keys[i] = key_at(row, four * 4u + i);
            }
        }
        if any(keys >= vec4<u32>(floor)) {
            let words = philox(vec4<u32>(position, four, seed_high, 0u), seed);
            for (var i = 0u; i < 4u; i++) {
                let d = distance_of(max(keys[i], KEY_LOWEST + 1u), scale);
                let score = key_of(bitcast<u32>(d + gumbel(words[i])));
                if keys[i] >= floor && d >= scale.lowest && score > best {
                    best = score;
                    winner = four * 4u + i;
                }
            }
        }
    }
    return best_of(local, best, winner).y;
}

@compute @workgroup_size(WORKGROUP)
fn main(invocation: Invocation) {
    let local = invocation.local;
    // Shared, so that values that depend on it are uniform even for compilers that do not tell struct members apart.
    let flat = share(local, vec4<u32>(flat_workgroup(invocation), 0u, 0u, 0u)).x;
    let index = params.row_first + min(flat, params.rows - 1u);
    let is_ours = flat < params.rows && !is_plain(index);
    // No early return: a workgroup without a row has an empty vocabulary.
    let vocab = select(0u, params.vocab, is_ours);
    let logits_row = row_word(index, SAMPLE_LOGITS_ROW) - params.logits_first;
    let row = Row(index, vocab, logits_row * params.vocab, flat * params.vocab);

    let own = survey(row, local);
    let best = best_of(local, own.x, own.y);
    let is_bad_row = best_of(local, own.z, 0u).x != 0u || best.x <= KEY_LOWEST;
    var chosen = best.y;
    let scored_token = row_word(index, SAMPLE_SCORED_TOKEN);
    let temperature = row_float(index, SAMPLE_TEMPERATURE);
    if temperature != 0.0 && scored_token == NONE {
        let min_p = row_float(index, SAMPLE_MIN_P);
        var scale = Scale(value_of(max(best.x, KEY_LOWEST + 1u)), temperature, -3.0e38);
        if min_p > 0.0 {
            scale.lowest = log(min_p);
        }
        let floor = kept_floor(row, local, scale);
        chosen = draw(row, local, floor, scale);
    }
    chosen = select(select(scored_token, chosen, scored_token == NONE), NUMERICAL_ERROR, is_bad_row);

    let at = index * RESULT_WORDS;
    var chosen_logprob = 0.0;
#ifdef LOGPROBS
    let top = select(row_word(index, SAMPLE_TOP_LOGPROBS), 0u, is_bad_row || !is_ours);
    let is_reported = (row_word(index, SAMPLE_LOGPROB) != 0u || top > 0u) && !is_bad_row;
    for (var i = RESULT_LOGPROB + local; i < RESULT_WORDS && is_ours; i += WORKGROUP) {
        results[at + i] = NONE;
    }
    storageBarrier();
    workgroupBarrier();
    if is_reported {
        let total = log_total(row, local);
        chosen_logprob = logprob(row, select(0u, chosen, is_ours), total);
        if top > 0u {
            write_top(row, local, min(top, TOP_LOGPROBS_MAX), total);
        }
    }
    storageBarrier();
    workgroupBarrier();
#endif
    if local == 0u && is_ours {
        results[at + RESULT_TOKEN_ID] = chosen;
        results[at + RESULT_LOGPROB] = bitcast<u32>(chosen_logprob);
        let slot = row_word(index, SAMPLE_FEED_SLOT);
        if slot != NONE {
            feed[slot] = select(chosen, 0u, chosen == NUMERICAL_ERROR);
        }
    }
}
