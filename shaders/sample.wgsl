// Draws one token per sample row, following the specification in its twin step by step.
//
// logits [rows of this run][vocab]; parts: survey of the rows, and draws from the parts of open rows; scratch [sample
// rows of this dispatch][vocab] (only with ADJUST), results [sample row of the batch][record]. One workgroup: one
// sample row, unless sample_merge draws it.
// top-k and top-p are computed over a short list of the row's largest keys, which a bound from the survey selects; only
// if that is not enough, over the whole row. Thresholds are keys found by radix search; weights are integers, so sums
// do not depend on their order.
// Numbers: WORKGROUP, LIST. Variants: ADJUST (bias, penalties, mask), LOGPROBS, VECTORS.
// Twin: backend/reference/sample.rs

#import invocation
#import philox
#import sample_list
#import sample_parts
#import sample_row
#import sample_shared
#import share
#ifdef ADJUST
#import sample_adjust
#endif
#ifdef LOGPROBS
#import sample_logprobs
#endif

// Keys that a bound for top-p alone is made for. More than these are above it.
const NUCLEUS_KEYS: u32 = LIST * 3u / 16u;

// What draw_kept searches a threshold for.
const BOUND: u32 = 0u;
const TOP_K: u32 = 1u;
const TOP_P: u32 = 2u;

// This invocation's share of (largest key, its lowest id, any bad logit).
fn survey(row: Row, local: u32) -> vec3<u32> {
#ifdef ADJUST
    return adjust(row, local);
#else
    var best = vec3<u32>(0u, NONE, 0u);
    for (var part = local; part < select(0u, params.parts, row.vocab > 0u); part += WORKGROUP) {
        let at = row.part + part * PART_WORDS;
        let key = parts[at];
        best.z |= select(0u, 1u, key == BAD_KEY);
        if key > best.x {
            best = vec3<u32>(key, parts[at + 1u], best.z);
        }
    }
    return best;
#endif
}

// The token that is drawn from an open row.
fn draw_open(row: Row, local: u32, scale: Scale) -> u32 {
#ifdef ADJUST
    return draw(row, local, KEY_LOWEST + 1u, scale);
#else
    var best = 0u;
    var winner = NONE;
    // Parts are in the order of their ids.
    for (var part = local; part < select(0u, params.parts, row.vocab > 0u); part += WORKGROUP) {
        let at = row.part + part * PART_WORDS + PART_SCORE;
        if parts[at] > best {
            best = parts[at];
            winner = parts[at + 1u];
        }
    }
    return best_of(local, best, winner).y;
#endif
}

// Gumbel-max over the kept tokens of the row.
fn draw(row: Row, local: u32, floor: u32, scale: Scale) -> u32 {
    var best = 0u;
    var winner = NONE;
    for (var four = local; four * 4u < row.vocab; four += WORKGROUP) {
        let keys = keys_of(row, four, false);
        if any(keys >= vec4<u32>(floor)) {
            let words = words_of(row.index, four);
            for (var i = 0u; i < 4u; i++) {
                let score = score_of(keys[i], floor, words[i], scale);
                if score > best {
                    best = score;
                    winner = four * 4u + i;
                }
            }
        }
    }
    return best_of(local, best, winner).y;
}

// Gumbel-max over the kept tokens of the list.
fn draw_listed(row: Row, local: u32, listed: u32, floor: u32, scale: Scale) -> u32 {
    var best = 0u;
    var winner = NONE;
    for (var i = local; i < listed; i += WORKGROUP) {
        let id = list_ids[i];
        let score = score_of(list_keys[i], floor, words_of(row.index, id / 4u)[id % 4u], scale);
        if score > best || (score == best && id < winner && score > 0u) {
            best = score;
            winner = id;
        }
    }
    return best_of(local, best, winner).y;
}

// The token that is drawn with top-k and top-p; `own` is the largest key that this invocation has adjusted.
fn draw_kept(row: Row, local: u32, own: u32, scale: Scale) -> u32 {
    let top_k = row_word(row.index, SAMPLE_TOP_K);
    let share_wanted = share_of(row.index);
    let is_top_k = top_k > 0u && top_k < row.vocab;
    let is_top_p = share_wanted < 1048576u;
#ifdef ADJUST
    let maxima = list_maxima(row, local, own, ADJUSTED);
#else
    let maxima = list_maxima(row, local, own, RAW);
#endif
    var selection = any_of(LISTED, maxima, select(NUCLEUS_KEYS, top_k, is_top_k));
    var row_share = vec2<u32>();
    // Drivers inline every call: a single one in a loop is a third of the code.
    for (var stage = BOUND; stage <= TOP_P; stage++) {
        if (stage == TOP_K && !is_top_k) || (stage == TOP_P && !is_top_p) {
            continue;
        }
        if stage == TOP_P {
            selection.is_weighted = true;
            // Without top-k the share is one of the row, and the list may be a part of it only.
            let is_part = selection.source == LISTED && !is_top_k;
            selection.share = select(max(share_wanted, 1u), 0u, is_part);
            selection.sum = row_share;
        }
        let least = threshold(row, local, selection, scale);
        if stage == BOUND {
            // top-p alone needs the sum over the row.
            let listed = list_keys_from(row, local, least, ADJUSTED, is_top_p && !is_top_k, scale);
            row_share = part_of(listed.weights, max(share_wanted, 1u));
            let is_whole = listed.count <= LIST && (is_top_k || !is_less(listed.weights_listed, row_share));
            // top-k of the keys that min-p keeps: they are the largest ones, so the count of others below them does not
            // matter.
            selection = any_of(select(ADJUSTED, LISTED, is_whole), listed.count, top_k);
        } else {
            selection.floor = least;
        }
    }
    if selection.source == LISTED {
        return draw_listed(row, local, selection.listed, selection.floor, scale);
    }
    return draw(row, local, selection.floor, scale);
}

@compute @workgroup_size(WORKGROUP)
fn main(invocation: Invocation) {
    let local = invocation.local;
    // Shared, so that values that depend on it are uniform even for compilers that do not tell struct members apart.
    let flat = share(local, vec4<u32>(flat_workgroup(invocation), 0u, 0u, 0u)).x;
    let own_row = min(flat, params.rows - 1u);
    let index = params.row_first + own_row;
    let is_ours = flat < params.rows && !is_plain(index);
    // No early return: a workgroup without a row has an empty vocabulary.
    let vocab = select(0u, params.vocab, is_ours);
    let logits_row = row_word(index, SAMPLE_LOGITS_ROW) - params.logits_first;
    let row = Row(index, part_at(own_row, 0u), vocab, logits_row * params.vocab, flat * params.vocab);

    let own = survey(row, local);
    let best = best_of(local, own.x, own.y);
    let is_bad_row = best_of(local, own.z, 0u).x != 0u || best.x <= KEY_LOWEST;
    var chosen = best.y;
    let scored_token = row_word(index, SAMPLE_SCORED_TOKEN);
    if row_float(index, SAMPLE_TEMPERATURE) != 0.0 && scored_token == NONE {
        let scale = scale_of(index, best.x);
        if is_open(index, params.vocab) {
            chosen = draw_open(row, local, scale);
        } else {
            chosen = draw_kept(row, local, own.x, scale);
        }
    }
    chosen = select(select(scored_token, chosen, scored_token == NONE), NUMERICAL_ERROR, is_bad_row);

    let stride = metadata_word(META_RESULT_STRIDE);
    let at = index * stride;
    var chosen_logprob = 0.0;
    var chosen_rank = 0u;
#ifdef LOGPROBS
    let top = select(row_word(index, SAMPLE_TOP_LOGPROBS), 0u, is_bad_row || !is_ours);
    let is_reported = (row_word(index, SAMPLE_LOGPROB) != 0u || top > 0u) && !is_bad_row;
    for (var i = RESULT_LOGPROB + local; i < stride && is_ours; i += WORKGROUP) {
        results[at + i] = NONE;
    }
    storageBarrier();
    workgroupBarrier();
    if is_reported {
        let reported = select(0u, chosen, is_ours);
        let found = log_total(row, local, reported);
        let total = found.xy;
        chosen_logprob = logprob(row, reported, total);
        chosen_rank = 1u + u32(found.z);
        if top > 0u {
            let source = select(RAW, ADJUSTED, row_word(index, SAMPLE_TOP_ALLOWED) != 0u);
            write_top(row, local, own.x, source, min(top, TOP_LOGPROBS_MAX), total);
        }
    }
    storageBarrier();
    workgroupBarrier();
#endif
    if local == 0u && is_ours {
        results[at + RESULT_TOKEN_ID] = chosen;
        results[at + RESULT_LOGPROB] = bitcast<u32>(chosen_logprob);
        results[at + RESULT_RANK] = chosen_rank;
        let slot = row_word(index, SAMPLE_FEED_SLOT);
        if slot != NONE {
            feed[slot] = select(chosen, 0u, chosen == NUMERICAL_ERROR);
        }
    }
}
