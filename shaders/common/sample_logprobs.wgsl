// Logprobs of the raw row: those of the drawn token and of the most likely tokens, in order.

#import sample_row
#import sample_threshold

var<workgroup> sums: array<f32, WORKGROUP>;
var<workgroup> top_count: atomic<u32>;
var<workgroup> top_keys: array<u32, TOP_LOGPROBS_MAX>;
var<workgroup> top_ids: array<u32, TOP_LOGPROBS_MAX>;

// max + ln Σ exp(l − max) as (max, ln Σ). Four sums per invocation keep the rounding error of 2¹⁷ terms near 1e-6.
fn log_total(row: Row, local: u32) -> vec2<f32> {
    var key = 0u;
    for (var id = local; id < row.vocab; id += WORKGROUP) {
        key = max(key, raw_key(row, id));
    }
    let largest = value_of(best_of(local, key, 0u).x);
    var parts = vec4<f32>();
    for (var id = local * 4u; id < row.vocab; id += WORKGROUP * 4u) {
        for (var i = 0u; i < 4u; i++) {
            if id + i < row.vocab {
                parts[i] += exp(value_of(raw_key(row, id + i)) - largest);
            }
        }
    }
    sums[local] = (parts.x + parts.y) + (parts.z + parts.w);
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
    let at = atomicAdd(&top_count, 1u);
    if at < TOP_LOGPROBS_MAX {
        top_keys[at] = key;
        top_ids[at] = id;
    }
}

// Writes the `count` most likely tokens, or fewer if fewer are above −∞.
fn write_top(row: Row, local: u32, count: u32, total: vec2<f32>) {
    if local == 0u {
        atomicStore(&top_count, 0u);
    }
    let selection = Selection(true, KEY_LOWEST + 1u, false, 0u, count);
    let least = threshold(row, local, selection, Scale(0.0, 1.0, 0.0));
    for (var id = local; id < row.vocab; id += WORKGROUP) {
        let key = raw_key(row, id);
        if key > least {
            keep_top(key, id);
        }
    }
    // Equal keys: lowest ids first. More than one iteration is needed only for ties.
    var next = 0u;
    for (var round = 0u; round < TOP_LOGPROBS_MAX; round++) {
        workgroupBarrier();
        let missing = share(local, vec4<u32>(count - min(count, atomicLoad(&top_count)), 0u, 0u, 0u)).x;
        if missing == 0u {
            break;
        }
        var lowest = NONE;
        for (var id = next + local; id < row.vocab && lowest == NONE; id += WORKGROUP) {
            lowest = select(NONE, id, raw_key(row, id) == least);
        }
        let found = best_of(local, 1u, lowest).y;
        if local == 0u && found != NONE {
            keep_top(least, found);
        }
        next = select(row.vocab, found + 1u, found != NONE);
    }
    workgroupBarrier();
    let kept = min(atomicLoad(&top_count), count);
    for (var i = local; i < kept; i += WORKGROUP) {
        var rank = 0u;
        for (var j = 0u; j < kept; j++) {
            let is_ahead = top_keys[j] > top_keys[i] || (top_keys[j] == top_keys[i] && top_ids[j] < top_ids[i]);
            rank += select(0u, 1u, is_ahead);
        }
        let at = row.index * RESULT_WORDS + rank;
        results[at + RESULT_TOP_IDS] = top_ids[i];
        results[at + RESULT_TOP_LOGPROBS] = bitcast<u32>(logprob(row, top_ids[i], total));
    }
}
