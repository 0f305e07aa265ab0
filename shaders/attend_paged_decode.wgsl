// Attention of a few packed query rows of one KV head over a range of paged keys. Bound by the reads of K and V.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// q, out [tokens][query heads][head_dim]; pools [block][kv head of this shard][slot][head_dim].
// One workgroup: one work item × one KV head of the shard. LANES lanes share a key: each loads 8 columns of K and V.
// In a turn, a group of lanes takes KEYS consecutive keys with all loads in flight, and has 8 scores: one per row and
// key. It keeps an online softmax of its own; at the end the groups are joined.
// Numbers: HEAD_CHUNKS = head_dim / 8; LANES, the power of two from HEAD_CHUNKS, at least 8; ROWS = maximum packed rows
// of an item (1, 2, 4, 8); KEYS = 8 / ROWS; LANE_DOUBLINGS = log2(LANES / 8).
// Variants: KV_F16, KV_CODES, KV_FP8, SOFT_HALF, SOFTCAP, ALIBI, SINKS; SUBGROUPS, of at least LANES lanes, exchange
// scores without workgroup memory. Twin: backend/reference/attend_paged.rs
// attend_paged_merge joins the results of split ranges.

#import attend_item
#import attend_lanes
#import invocation
#import share

// [row][half of 8 columns][lane]; at the end of the result instead of q.
var<workgroup> query: array<vec4<f32>, ROWS * 2u * LANES>;
var<workgroup> ends: array<vec2<f32>, ROWS * KEY_GROUPS>; // [row][group]: m and Σ p

// m and Σ p of a row over all groups.
fn joined(row: u32) -> vec2<f32> {
    var state = vec2<f32>(MASKED, 0.0);
    for (var i = 0u; i < KEY_GROUPS; i++) {
        state.x = max(state.x, ends[row * KEY_GROUPS + i].x);
    }
    for (var i = 0u; i < KEY_GROUPS; i++) {
        state.y += ends[row * KEY_GROUPS + i].y * exp(ends[row * KEY_GROUPS + i].x - state.x);
    }
    return state;
}

fn dot_eight(low: vec4<f32>, high: vec4<f32>, run: Run) -> f32 {
    let first = fma(low.y, run.low.y, low.x * run.low.x);
    let second = fma(low.w, run.low.w, fma(low.z, run.low.z, first));
    let third = fma(high.y, run.high.y, fma(high.x, run.high.x, second));
    return fma(high.w, run.high.w, fma(high.z, run.high.z, third));
}

@compute @workgroup_size(128)
fn main(invocation: Invocation) {
    let flat = flat_workgroup(invocation);
    let is_item = flat < params.items * params.head_count;
    let item = select(0u, flat / params.head_count, is_item);
    let head = flat % params.head_count;
    let words = vec3<u32>(item_word(item, ITEM_KEY_BEGIN), item_word(item, ITEM_KEY_END), item_word(item, ITEM_COUNT));
    // Keys from x to y, rows. No early return: a workgroup beyond the list has no keys and no rows.
    let range = share(invocation.local, vec4<u32>(select(vec3<u32>(), words, is_item), 0u));
    let count = range.z;
    let lane = lane_of(invocation);

    for (var i = invocation.local; i < ROWS * 2u * LANES; i += THREADS) {
        let row = i / (2u * LANES);
        let vector = 2u * (i % LANES) + i / LANES % 2u;
        query[i] = vec4<f32>();
        if (row < count && vector < 2u * HEAD_CHUNKS) {
            query[i] = q_vector(row_at(packed_row(item, head, row)) + vector) * params.scale;
        }
    }
    // Rows beyond the item's repeat its last one; their part of q is zero, and their result is not written.
    var rows: array<Row, ROWS>;
#for row ROWS
    rows[row] = packed_row(item, head, min(row, max(count, 1u) - 1u));
#endfor
    // The same holds for lanes beyond the head.
    let column = min(lane.index, HEAD_CHUNKS - 1u);
    let slot_mask = (1u << params.block_shift) - 1u;
    let last = max(range.y, 1u) - 1u;
    let last_block = block_at(item, head, last);

    var largest: array<f32, ROWS>;
    var totals: array<f32, ROWS>;
    var low: array<vec4<f32>, ROWS>;
    var high: array<vec4<f32>, ROWS>;
#for row ROWS
    largest[row] = MASKED;
#endfor
    workgroupBarrier();

    for (var turn = range.x; turn < range.y; turn += KEY_GROUPS * KEYS) {
        // Keys that are not read repeat the last one, so that no load waits for a branch. KEYS divides the block size.
        let first = turn + lane.group * KEYS;
        var block = block_at(item, head, min(first, last));
        var first_key = first;
        if (block == NONE) {
            block = last_block;
            first_key = last;
        }
        var k_runs: array<Packed, KEYS>;
        var v_runs: array<Packed, KEYS>;
#for key KEYS
        {
            let slot = min(first_key + key, last) & slot_mask;
            k_runs[key] = packed_k(block + slot * HEAD_CHUNKS + column);
            v_runs[key] = packed_v(block + slot * HEAD_CHUNKS + column);
        }
#endfor
        var parts: Scores;
#for row ROWS
        {
            let q_low = query[2u * row * LANES + lane.index];
            let q_high = query[(2u * row + 1u) * LANES + lane.index];
#for key KEYS
            parts[row * KEYS + key] = dot_eight(q_low, q_high, unpacked(k_runs[key]));
#endfor
        }
#endfor
        var scores = group_sums(lane, parts);
#for key KEYS
        {
            let factor = k_scale(block, min(first_key + key, last) & slot_mask);
#for row ROWS
            {
                let s = score(scores[row * KEYS + key] * factor, rows[row], first + key);
                let is_seen = (first + key < range.y) & is_visible(first + key, rows[row].position);
                scores[row * KEYS + key] = select(MASKED, s, is_seen);
            }
#endfor
        }
#endfor

        var weights: Scores;
#for row ROWS
        {
            var top = largest[row];
#for key KEYS
            top = max(top, scores[row * KEYS + key]);
#endfor
            let shrink = exp(largest[row] - top);
            largest[row] = top;
            totals[row] *= shrink;
#for key KEYS
            {
                let s = scores[row * KEYS + key];
                let p = select(exp(s - top), 0.0, s == MASKED);
                weights[row * KEYS + key] = p;
                totals[row] += p;
            }
#endfor
            low[row] *= shrink;
            high[row] *= shrink;
        }
#endfor
#for key KEYS
        {
            let v = unpacked(v_runs[key]);
            let factor = v_scale(block, min(first_key + key, last) & slot_mask);
#for row ROWS
            {
                let p = vec4<f32>(weights[row * KEYS + key] * factor);
                low[row] = fma(p, v.low, low[row]);
                high[row] = fma(p, v.high, high[row]);
            }
#endfor
        }
#endfor
    }

    // Joins the groups, one after the other, in place of the queries.
    if (lane.index == 0u) {
#for row ROWS
        ends[row * KEY_GROUPS + lane.group] = vec2<f32>(largest[row], totals[row]);
#endfor
    }
    workgroupBarrier();
#for row ROWS
    {
        let factor = exp(largest[row] - joined(row).x);
        low[row] *= factor;
        high[row] *= factor;
    }
#endfor
    for (var group = 0u; group < KEY_GROUPS; group++) {
        if (lane.group == group) {
#for row ROWS
            {
                let at = 2u * row * LANES + lane.index;
                query[at] = select(query[at], vec4<f32>(), group == 0u) + low[row];
                query[at + LANES] = select(query[at + LANES], vec4<f32>(), group == 0u) + high[row];
            }
#endfor
        }
        workgroupBarrier();
    }
    for (var i = invocation.local; i < ROWS * 2u * LANES; i += THREADS) {
        let row = i / (2u * LANES);
        let vector = 2u * (i % LANES) + i / LANES % 2u;
        if (row < count && vector < 2u * HEAD_CHUNKS) {
            let state = joined(row);
            let to = target_of(item, head, row, state.x, state.y);
            write_vector(to, vector, query[i]);
            if (vector == 0u) {
                write_state(to, state.x, state.y);
            }
        }
    }
}
