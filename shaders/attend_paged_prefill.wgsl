// Attention of up to 32 packed query rows of one KV head over a range of paged keys.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// Layouts as attend_paged_decode. One workgroup: one work item × one KV head of the shard, in tiles of 32 keys.
// Heads are processed in slices of 32 elements, so that a slice of Q, one of K or V and the scores fit 16 KiB. A thread
// computes 4 rows × 2 keys of the scores, then 4 rows × 2 columns of every slice of the result.
// Numbers: HEAD_CHUNKS = head_dim / 8. Variants: KV_F16, KV_Q8, SOFT_HALF, SOFTCAP, ALIBI, SINKS.
// Twin: backend/reference/attend_paged.rs

#import attend_item
#import invocation

const TILE: u32 = 32u;
const SLICES: u32 = (HEAD_CHUNKS + 3u) / 4u;
const STRIDE: u32 = 9u; // vectors per row of a slice: 8, and one of padding against bank conflicts
const SCORE_STRIDE: u32 = 36u;

var<workgroup> query: array<vec4<f32>, 288>; // [row][32 elements of a slice]
var<workgroup> slice: array<vec4<f32>, 288>; // [key][32 elements of a slice] of K, then V
var<workgroup> scores: array<f32, 1152>; // [row][key], then exp(s − m); at the end a slice of the result
var<workgroup> bases: array<u32, 32>; // first run of a key's head row in the pools; NONE if no row sees it
var<workgroup> quarters: array<f32, 128>; // [row][quarter]: parts of a row's maximum, at the end of its sum
var<workgroup> rescale: array<f32, 32>;
var<workgroup> largests: array<f32, 32>;
var<workgroup> bounds: vec4<u32>; // kv begin, kv end, rows

// Loads run `local & 3` of slice `index`, for row or key `local >> 2`.
fn load_query(item: u32, head: u32, local: u32, index: u32, count: u32) {
    let chunk = index * 4u + (local & 3u);
    let at = (local >> 2u) * STRIDE + (local & 3u) * 2u;
    var run = Run(vec4<f32>(), vec4<f32>());
    if chunk < HEAD_CHUNKS && (local >> 2u) < count {
        let source = row_at(packed_row(item, head, local >> 2u)) + chunk * 2u;
        run = Run(q[source] * params.scale, q[source + 1u] * params.scale);
    }
    query[at] = run.low;
    query[at + 1u] = run.high;
}

#ifdef KV_Q8
var<workgroup> scales: array<vec2<f32>, 32>; // scales of a key's K and V

fn scale_of(key: u32, is_key: bool) -> f32 {
    return select(scales[key].y, scales[key].x, is_key);
}
#else
fn scale_of(key: u32, is_key: bool) -> f32 {
    return 1.0;
}
#endif

fn load_slice(local: u32, index: u32, is_key: bool) {
    let chunk = index * 4u + (local & 3u);
    let at = (local >> 2u) * STRIDE + (local & 3u) * 2u;
    let base = bases[local >> 2u];
    var run = Run(vec4<f32>(), vec4<f32>());
    if chunk < HEAD_CHUNKS && base != NONE {
        if is_key {
            run = load_k(base + chunk);
        } else {
            run = load_v(base + chunk);
        }
    }
    let factor = scale_of(local >> 2u, is_key);
    slice[at] = run.low * factor;
    slice[at + 1u] = run.high * factor;
}

// Adds a slice's contribution to the scores of rows 4y..4y+3 with keys x and x + 16.
fn add_scores(x: u32, y: u32, sums: array<vec2<f32>, 4>) -> array<vec2<f32>, 4> {
    var result = sums;
    for (var i = 0u; i < 8u; i++) {
        let first = slice[x * STRIDE + i];
        let second = slice[(x + 16u) * STRIDE + i];
        for (var row = 0u; row < 4u; row++) {
            let own = query[(y * 4u + row) * STRIDE + i];
            result[row] += vec2<f32>(dot(own, first), dot(own, second));
        }
    }
    return result;
}

// Σ p · v over the tile, for rows 4y..4y+3 and columns 2x, 2x + 1 of the slice.
fn weigh(x: u32, y: u32) -> array<vec2<f32>, 4> {
    var result: array<vec2<f32>, 4>;
    for (var key = 0u; key < TILE; key++) {
        let four = slice[key * STRIDE + (x >> 1u)];
        let v = select(four.xy, four.zw, (x & 1u) == 1u);
        for (var row = 0u; row < 4u; row++) {
            result[row] += scores[(y * 4u + row) * SCORE_STRIDE + key] * v;
        }
    }
    return result;
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
    let x = local & 15u;
    let y = local >> 4u;
    var rows: array<Row, 4>;
    for (var row = 0u; row < 4u; row++) {
        rows[row] = packed_row(item, head, min(y * 4u + row, max(count, 1u) - 1u));
    }
    // Four threads per row track its maximum; each sums a quarter of the keys.
    let own_row = local >> 2u;
    let own_first = (local & 3u) * 8u;
    var largest = MASKED;
    var total = 0.0;
    var sums: array<vec2<f32>, SLICES * 4u>;

    for (var tile = range.x & ~(TILE - 1u); tile < range.y; tile += TILE) {
        if local < TILE {
            let key = tile + local;
            let slot = key & ((1u << params.block_shift) - 1u);
            var block = NONE;
            if key >= range.x && key < range.y {
                block = block_at(item, head, key);
            }
            bases[local] = select(block + slot * HEAD_CHUNKS, NONE, block == NONE);
#ifdef KV_Q8
            // Zero for keys that are not read: workgroup memory may hold a NaN.
            var pair = vec2<f32>();
            if block != NONE {
                pair = vec2<f32>(k_scale(block, slot), v_scale(block, slot));
            }
            scales[local] = pair;
#endif
        }
        workgroupBarrier();
        var dots: array<vec2<f32>, 4>;
        for (var index = 0u; index < SLICES; index++) {
            load_query(item, head, local, index, count);
            load_slice(local, index, true);
            workgroupBarrier();
            dots = add_scores(x, y, dots);
            workgroupBarrier();
        }
        for (var row = 0u; row < 4u; row++) {
            for (var half = 0u; half < 2u; half++) {
                let key = tile + x + half * 16u;
                let is_seen = bases[x + half * 16u] != NONE && is_visible(key, rows[row].position);
                let s = score(dots[row][half], rows[row], key);
                scores[(y * 4u + row) * SCORE_STRIDE + x + half * 16u] = select(MASKED, s, is_seen);
            }
        }
        workgroupBarrier();

        var top = MASKED;
        for (var i = 0u; i < 8u; i++) {
            top = max(top, scores[own_row * SCORE_STRIDE + own_first + i]);
        }
        quarters[local] = top;
        workgroupBarrier();
        let before = largest;
        for (var i = 0u; i < 4u; i++) {
            largest = max(largest, quarters[own_row * 4u + i]);
        }
        let shrink = exp(before - largest);
        total *= shrink;
        for (var i = 0u; i < 8u; i++) {
            let at = own_row * SCORE_STRIDE + own_first + i;
            let s = scores[at];
            let p = select(exp(s - largest), 0.0, s == MASKED);
            scores[at] = p;
            total += p;
        }
        rescale[own_row] = shrink;

        for (var index = 0u; index < SLICES; index++) {
            load_slice(local, index, false);
            workgroupBarrier();
            let share = weigh(x, y);
            for (var row = 0u; row < 4u; row++) {
                sums[index * 4u + row] = sums[index * 4u + row] * rescale[y * 4u + row] + share[row];
            }
            workgroupBarrier();
        }
    }

    quarters[local] = total;
    largests[own_row] = largest;
    for (var index = 0u; index < SLICES; index++) {
        workgroupBarrier();
        for (var row = 0u; row < 4u; row++) {
            let at = (y * 4u + row) * SCORE_STRIDE + x * 2u;
            scores[at] = sums[index * 4u + row].x;
            scores[at + 1u] = sums[index * 4u + row].y;
        }
        workgroupBarrier();
        let chunk = index * 4u + (local & 3u);
        if chunk < HEAD_CHUNKS && own_row < count {
            let at = own_row * 4u;
            let sum = (quarters[at] + quarters[at + 1u]) + (quarters[at + 2u] + quarters[at + 3u]);
            let to = target_of(item, head, own_row, largests[own_row], sum);
            for (var i = 0u; i < 2u; i++) {
                let first = own_row * SCORE_STRIDE + own_first + i * 4u;
                let four = vec4<f32>(scores[first], scores[first + 1u], scores[first + 2u], scores[first + 3u]);
                write_vector(to, chunk * 2u + i, four);
            }
        }
    }
}
