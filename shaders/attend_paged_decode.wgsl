// Attention of a few packed query rows of one KV head over a range of paged keys.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// q, out [tokens][query heads][head_dim]; pools [block][kv head of this shard][slot][head_dim].
// One workgroup: one work item × one KV head of the shard. It processes its keys in tiles of 32: four threads per key
// each compute the dot product of a quarter of the head; then a thread owns 8 columns of V for every n-th key of the
// tile.
// Numbers: HEAD_CHUNKS = head_dim / 8, ROWS = maximum packed rows of an item (1, 2, 4, 8).
// Variants: KV_F16, KV_Q8, SOFT_HALF, SOFTCAP, ALIBI, SINKS. Twin: backend/reference/attend_paged.rs
// attend_paged_merge joins the results of split ranges.

#import attend_item
#import invocation

const THREADS: u32 = 128u;
const TILE: u32 = 32u;
const ROW_THREADS: u32 = THREADS / ROWS;

var<workgroup> query: array<vec4<f32>, ROWS * 2u * HEAD_CHUNKS>; // [row][head_dim / 4]
var<workgroup> quarters: array<f32, 1024>; // [key][quarter][row]; at the end [key group][column] of one row
var<workgroup> scores: array<f32, 256>; // [key][row]
var<workgroup> weights: array<f32, 256>; // [key][row]: exp(s − m)
var<workgroup> bases: array<u32, 64>; // [tile parity][key]: first run of a key's head row in the pools, or NONE
var<workgroup> rescale: array<f32, ROWS>;
var<workgroup> ends: array<vec2<f32>, ROWS>; // m and Σ p of a row
var<workgroup> bounds: vec4<u32>; // kv begin, kv end, rows

#ifdef KV_Q8
var<workgroup> value_scales: array<f32, 64>; // indexed like bases

fn value_scale(index: u32) -> f32 {
    return value_scales[index];
}
#else
fn value_scale(index: u32) -> f32 {
    return 1.0;
}
#endif

fn dot_quarter(base: u32, quarter: u32) -> array<f32, ROWS> {
    var result: array<f32, ROWS>;
    for (var chunk = quarter; chunk < HEAD_CHUNKS; chunk += 4u) {
        let k = load_k(base + chunk);
        for (var row = 0u; row < ROWS; row++) {
            let x = (row * HEAD_CHUNKS + chunk) * 2u;
            result[row] += dot(query[x], k.low) + dot(query[x + 1u], k.high);
        }
    }
    return result;
}

// Scores of the keys of a tile, from the quarters: for this thread's row, every ROW_THREADS-th key.
fn write_scores(own: Row, own_row: u32, tile: u32, parity: u32, count: u32, first: u32) {
    for (var i = first; i < TILE; i += ROW_THREADS) {
        var s = MASKED;
        let is_read = bases[parity + i] != NONE;
        if (is_read && own_row < count && is_visible(tile + i, own.position)) {
            let at = i * 4u * ROWS + own_row;
            let sum = quarters[at] + quarters[at + ROWS] + quarters[at + 2u * ROWS] + quarters[at + 3u * ROWS];
            s = score(sum, own, tile + i);
        }
        scores[i * ROWS + own_row] = s;
    }
}

@compute @workgroup_size(128)
fn main(invocation: Invocation) {
    let local = invocation.local;
    let flat = flat_workgroup(invocation);
    let is_item = flat < params.items * params.head_count;
    let item = select(0u, flat / params.head_count, is_item);
    let head = flat % params.head_count;
    if (local == 0u) {
        let end = item_word(item, ITEM_KEY_END);
        let range = vec3<u32>(item_word(item, ITEM_KEY_BEGIN), end, item_word(item, ITEM_COUNT));
        bounds = vec4<u32>(select(vec3<u32>(), range, is_item), 0u);
    }
    // No early return: a workgroup beyond the list has no keys and no rows.
    let range = workgroupUniformLoad(&bounds);
    let count = range.z;

    for (var i = local; i < ROWS * HEAD_CHUNKS * 2u; i += THREADS) {
        let row = i / (HEAD_CHUNKS * 2u);
        query[i] = vec4<f32>();
        if (row < count) {
            query[i] = q_vector(row_at(packed_row(item, head, row)) + i % (HEAD_CHUNKS * 2u)) * params.scale;
        }
    }
    // Score phases: ROW_THREADS threads per row, which all track its maximum and sum.
    let own_row = local / ROW_THREADS;
    let own_first = local % ROW_THREADS;
    let own = packed_row(item, head, min(own_row, max(count, 1u) - 1u));
    var largest = MASKED;
    var total = 0.0;
    // Value phase: 8 columns of every key_groups-th key, for all rows.
    let key_groups = min(THREADS / HEAD_CHUNKS, TILE);
    let column = local % HEAD_CHUNKS;
    let key_group = local / HEAD_CHUNKS;
    var low: array<vec4<f32>, ROWS>;
    var high: array<vec4<f32>, ROWS>;
    var parity = 0u;
    workgroupBarrier();

    for (var tile = range.x & ~(TILE - 1u); tile < range.y; tile += TILE) {
        let key = tile + (local >> 2u);
        let slot = key & ((1u << params.block_shift) - 1u);
        var block = NONE;
        if (key >= range.x && key < range.y) {
            block = block_at(item, head, key);
        }
        let base = select(block + slot * HEAD_CHUNKS, NONE, block == NONE);
        if (base != NONE) {
            let dots = dot_quarter(base, local & 3u);
            let factor = k_scale(block, slot);
            for (var row = 0u; row < ROWS; row++) {
                quarters[local * ROWS + row] = dots[row] * factor;
            }
#ifdef KV_Q8
            value_scales[parity + (local >> 2u)] = v_scale(block, slot);
#endif
        }
        if ((local & 3u) == 0u) {
            bases[parity + (local >> 2u)] = base;
        }
        workgroupBarrier();

        write_scores(own, own_row, tile, parity, count, own_first);
        workgroupBarrier();

        let before = largest;
        for (var i = 0u; i < TILE; i++) {
            largest = max(largest, scores[i * ROWS + own_row]);
        }
        for (var i = own_first; i < TILE; i += ROW_THREADS) {
            let s = scores[i * ROWS + own_row];
            weights[i * ROWS + own_row] = select(exp(s - largest), 0.0, s == MASKED);
        }
        let shrink = exp(before - largest);
        rescale[own_row] = shrink;
        workgroupBarrier();

        total *= shrink;
        for (var i = 0u; i < TILE; i++) {
            total += weights[i * ROWS + own_row];
        }
        for (var row = 0u; row < ROWS; row++) {
            low[row] *= rescale[row];
            high[row] *= rescale[row];
        }
        for (var i = key_group; i < TILE; i += key_groups) {
            let at = bases[parity + i] + column;
            if (key_group < key_groups && bases[parity + i] != NONE) {
                let v = load_v(at);
                let factor = value_scale(parity + i);
                for (var row = 0u; row < ROWS; row++) {
                    let p = weights[i * ROWS + row] * factor;
                    low[row] += p * v.low;
                    high[row] += p * v.high;
                }
            }
        }
        // The next tile writes its bases while slower threads still read these.
        parity ^= TILE;
    }

    ends[own_row] = vec2<f32>(largest, total);
    for (var row = 0u; row < ROWS; row++) {
        workgroupBarrier();
        if (key_group < key_groups) {
            for (var i = 0u; i < 4u; i++) {
                quarters[(key_group * HEAD_CHUNKS + column) * 8u + i] = low[row][i];
                quarters[(key_group * HEAD_CHUNKS + column) * 8u + 4u + i] = high[row][i];
            }
        }
        workgroupBarrier();
        if (row < count) {
            let to = target_of(item, head, row, ends[row].x, ends[row].y);
            for (var vector = local; vector < HEAD_CHUNKS * 2u; vector += THREADS) {
                var sum = vec4<f32>();
                for (var i = 0u; i < key_groups; i++) {
                    let at = (i * HEAD_CHUNKS * 2u + vector) * 4u;
                    sum += vec4<f32>(quarters[at], quarters[at + 1u], quarters[at + 2u], quarters[at + 3u]);
                }
                write_vector(to, vector, sum);
            }
            if (local == 0u) {
                write_state(to, ends[row].x, ends[row].y);
            }
        }
    }
}
