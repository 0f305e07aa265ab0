// Attention of up to 32 packed query rows of one KV head over a range of paged keys. Bound by multiply-adds.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// Layouts as attend_paged_decode. One workgroup: one work item × one KV head of the shard, in tiles of 64 keys.
// Scores: invocation i computes the rows i / 16 + 8 * n (n < 4) of the keys 4x to 4x + 3, x = i % 16, from 16 columns of
// Q and K at a time. Results: the same rows of the vectors x + 16 * v (v < VECTORS_EACH) of the head, from VALUE_KEYS
// keys of V at a time. What comes next from memory is loaded during the products. In workgroup memory, neighbours read
// neighbouring vectors, without bank conflicts.
// Numbers: HEAD_CHUNKS = head_dim / 8; HEAD_RUNS, the power of two from HEAD_CHUNKS, at least 8; VECTORS_EACH =
// HEAD_RUNS / 8. Variants: KV_F16, KV_Q8, SOFT_HALF, SOFTCAP, ALIBI, SINKS. Twin: backend/reference/attend_paged.rs

#import attend_item
#import invocation

const THREADS: u32 = 128u;
const ROWS: u32 = 32u;
const KEYS: u32 = 64u;
const KEY_FOURS: u32 = 16u;
const SLICES: u32 = (HEAD_CHUNKS + 1u) / 2u; // of 16 columns
const VALUE_KEYS: u32 = THREADS / HEAD_RUNS;
const WEIGHT_STRIDE: u32 = KEY_FOURS + 1u; // one vector of padding against bank conflicts

var<workgroup> weights: array<vec4<f32>, ROWS * WEIGHT_STRIDE>; // [row][key / 4]: exp(s − m)
// 16 columns of Q [column / 4][row], then of K [column / 4][key]; or VALUE_KEYS keys of V [key][half of a run][run].
var<workgroup> staged: array<vec4<f32>, 4u * (ROWS + KEYS)>;
var<workgroup> bases: array<u32, KEYS>; // first run of a key's head row in the pools
var<workgroup> positions: array<u32, ROWS>;
var<workgroup> largests: array<f32, ROWS>; // m before the tile
var<workgroup> bounds: vec4<u32>; // kv begin, kv end, rows

alias Quad = array<vec4<f32>, 4>;
alias Sums = array<vec4<f32>, 4u * VECTORS_EACH>; // [row n][vector v]

#ifdef ALIBI
var<workgroup> slopes_of: array<f32, ROWS>;

fn row_of(row: u32) -> Row {
    return Row(0u, 0u, positions[row], slopes_of[row]);
}
#else
fn row_of(row: u32) -> Row {
    return Row(0u, 0u, positions[row], 0.0);
}
#endif

#ifdef KV_Q8
var<workgroup> scales: array<vec2<f32>, KEYS>; // scales of a key's K and V

fn scale_of(key: u32, is_key: bool) -> f32 {
    return select(scales[key].y, scales[key].x, is_key);
}
#else
fn scale_of(key: u32, is_key: bool) -> f32 {
    return 1.0;
}
#endif

fn scaled(run: Packed, factor: f32) -> Run {
    let values = unpacked(run);
    return Run(values.low * factor, values.high * factor);
}

// The first run of every key of the tile. What no row sees repeats the last key: its score is masked, and its V is
// finite.
fn find_keys(local: u32, item: u32, head: u32, tile: u32, end: u32) {
    if local < KEYS {
        var key = min(tile + local, end - 1u);
        var block = block_at(item, head, key);
        if block == NONE {
            key = end - 1u;
            block = block_at(item, head, key);
        }
        let slot = key & ((1u << params.block_shift) - 1u);
        bases[local] = block + slot * HEAD_CHUNKS;
#ifdef KV_Q8
        scales[local] = vec2<f32>(k_scale(block, slot), v_scale(block, slot));
#endif
    }
}

// An invocation loads vector local % 4 of a slice of Q, of row local / 4, whose first vector is `row`.
fn query_vector(local: u32, row: u32, slice: u32) -> vec4<f32> {
    let vector = 4u * slice + (local & 3u);
    if row != NONE && vector < 2u * HEAD_CHUNKS {
        return q[row + vector] * params.scale;
    }
    return vec4<f32>();
}

// The key that lies at position `at` of staged K: those that an invocation reads lie KEY_FOURS apart.
fn key_at(at: u32) -> u32 {
    return at % KEY_FOURS * 4u + at / KEY_FOURS;
}

// An invocation loads run local % 2 of a slice of K, of the key at position local / 2. Columns beyond the head repeat its
// last ones: they are zero in Q.
fn key_run(local: u32, slice: u32) -> Packed {
    return packed_k(bases[key_at(local >> 1u)] + min(2u * slice + (local & 1u), HEAD_CHUNKS - 1u));
}

fn stage_slice(local: u32, query: vec4<f32>, packed: Packed) {
    staged[(local & 3u) * ROWS + (local >> 2u)] = query;
    let to = 4u * ROWS + 2u * (local & 1u) * KEYS + (local >> 1u);
    let run = scaled(packed, scale_of(key_at(local >> 1u), true));
    staged[to] = run.low;
    staged[to + KEYS] = run.high;
}

// dots += Q · K over the staged columns: [row n][key j].
fn add_dots(local: u32, dots: ptr<function, Quad>) {
    let x = local % KEY_FOURS;
    let row = local / KEY_FOURS;
    for (var four = 0u; four < 4u; four++) {
        var k: Quad;
#for j 4
        k[j] = staged[4u * ROWS + four * KEYS + j * KEY_FOURS + x];
#endfor
#for n 4
        {
            let own = staged[four * ROWS + row + 8u * n];
            var sums = (*dots)[n];
#for i 4
            sums = fma(vec4<f32>(k[0][i], k[1][i], k[2][i], k[3][i]), vec4<f32>(own[i]), sums);
#endfor
            (*dots)[n] = sums;
        }
#endfor
    }
}

// An invocation loads run local % HEAD_RUNS of key local / HEAD_RUNS of part `part` of the tile. Results beyond the head
// are not written.
fn value_run(local: u32, part: u32) -> Packed {
    return packed_v(bases[part * VALUE_KEYS + local / HEAD_RUNS] + min(local % HEAD_RUNS, HEAD_CHUNKS - 1u));
}

fn stage_values(local: u32, part: u32, packed: Packed) {
    let to = local / HEAD_RUNS * 2u * HEAD_RUNS + local % HEAD_RUNS;
    let run = scaled(packed, scale_of(part * VALUE_KEYS + local / HEAD_RUNS, false));
    staged[to] = run.low;
    staged[to + HEAD_RUNS] = run.high;
}

// sums += p · V over four staged keys; `four` counts from the first key of the tile.
fn add_values(local: u32, four: u32, sums: ptr<function, Sums>) {
    let first = four * 4u % VALUE_KEYS * 2u * HEAD_RUNS + (local & 15u);
#for v VECTORS_EACH
    {
        var values: Quad;
#for key 4
        values[key] = staged[first + 2u * key * HEAD_RUNS + 16u * v];
#endfor
#for n 4
        {
            let p = weights[((local >> 4u) + 8u * n) * WEIGHT_STRIDE + four];
            var sum = (*sums)[n * VECTORS_EACH + v];
#for key 4
            sum = fma(values[key], vec4<f32>(p[key]), sum);
#endfor
            (*sums)[n * VECTORS_EACH + v] = sum;
        }
#endfor
    }
#endfor
}

@compute @workgroup_size(128)
fn main(invocation: Invocation) {
    let flat = flat_workgroup(invocation);
    let local = invocation.local;
    let is_item = flat < params.items * params.head_count;
    let item = select(0u, flat / params.head_count, is_item);
    let head = flat % params.head_count;
    if local == 0u {
        let end = item_word(item, ITEM_KEY_END);
        let words = vec3<u32>(item_word(item, ITEM_KEY_BEGIN), end, item_word(item, ITEM_COUNT));
        bounds = vec4<u32>(select(vec3<u32>(), words, is_item), 0u);
    }
    // No early return: a workgroup beyond the list has no keys and no rows.
    let range = workgroupUniformLoad(&bounds);
    let count = range.z;

    // Rows beyond the item's are zero in Q, repeat its last one elsewhere, and are not written.
    let last_row = max(count, 1u) - 1u;
    let query_row = select(NONE, row_at(packed_row(item, head, min(local >> 2u, last_row))), (local >> 2u) < count);
    if local < ROWS {
        let row = packed_row(item, head, min(local, last_row));
        positions[local] = row.position;
#ifdef ALIBI
        slopes_of[local] = row.slope;
#endif
        largests[local] = MASKED;
    }
    let x = local & 15u;
    let first_row = local >> 4u;
    var totals = vec4<f32>(); // of the invocation's own keys
    var sums: Sums;

    for (var tile = range.x & ~(KEYS - 1u); tile < range.y; tile += KEYS) {
        find_keys(local, item, head, tile, range.y);
        workgroupBarrier();
        var dots: Quad;
        var query = query_vector(local, query_row, 0u);
        var run = key_run(local, 0u);
        for (var slice = 0u; slice < SLICES; slice++) {
            stage_slice(local, query, run);
            workgroupBarrier();
            // The last turn loads its columns again.
            query = query_vector(local, query_row, min(slice + 1u, SLICES - 1u));
            run = key_run(local, min(slice + 1u, SLICES - 1u));
            add_dots(local, &dots);
            workgroupBarrier();
        }

#for n 4
        {
            let row = row_of(first_row + 8u * n);
            var s: vec4<f32>;
#for j 4
            {
                let key = tile + 4u * x + j;
                let is_seen = (key < range.y) & is_visible(key, row.position);
                s[j] = select(MASKED, score(dots[n][j], row, key), is_seen);
            }
#endfor
            dots[n] = s;
            // Exchanged in place of the weights, which are not there yet.
            weights[(first_row + 8u * n) * WEIGHT_STRIDE + x].x = max(max(s.x, s.y), max(s.z, s.w));
        }
#endfor
        workgroupBarrier();
        var tops: vec4<f32>;
#for n 4
        tops[n] = largests[first_row + 8u * n];
        for (var i = 0u; i < KEY_FOURS; i++) {
            tops[n] = max(tops[n], weights[(first_row + 8u * n) * WEIGHT_STRIDE + i].x);
        }
#endfor
        var v_run = value_run(local, 0u);
        workgroupBarrier();
#for n 4
        {
            let row = first_row + 8u * n;
            let p = select(exp(dots[n] - tops[n]), vec4<f32>(), dots[n] == vec4<f32>(MASKED));
            weights[row * WEIGHT_STRIDE + x] = p;
            let shrink = exp(largests[row] - tops[n]);
            totals[n] = totals[n] * shrink + ((p.x + p.y) + (p.z + p.w));
#for v VECTORS_EACH
            sums[n * VECTORS_EACH + v] *= shrink;
#endfor
        }
#endfor
        for (var part = 0u; part < KEYS / VALUE_KEYS; part++) {
            stage_values(local, part, v_run);
            workgroupBarrier();
            if part == 0u && x == 0u {
#for n 4
                largests[first_row + 8u * n] = tops[n];
#endfor
            }
            v_run = value_run(local, min(part + 1u, KEYS / VALUE_KEYS - 1u));
            for (var four = 0u; four < VALUE_KEYS / 4u; four++) {
                add_values(local, part * (VALUE_KEYS / 4u) + four, &sums);
            }
            workgroupBarrier();
        }
    }

    // Also waits for the first maxima, should there be no keys.
    workgroupBarrier();
#for n 4
    weights[(first_row + 8u * n) * WEIGHT_STRIDE + x].x = totals[n];
#endfor
    workgroupBarrier();
#for n 4
    {
        let row = first_row + 8u * n;
        if row < count {
            var total = 0.0;
            for (var i = 0u; i < KEY_FOURS; i++) {
                total += weights[row * WEIGHT_STRIDE + i].x;
            }
            let to = target_of(item, head, row, largests[row], total);
#for v VECTORS_EACH
            {
                let at = x + 16u * v;
                if at % HEAD_RUNS < HEAD_CHUNKS {
                    write_vector(to, 2u * (at % HEAD_RUNS) + at / HEAD_RUNS, sums[n * VECTORS_EACH + v]);
                }
            }
#endfor
        }
    }
#endfor
}
