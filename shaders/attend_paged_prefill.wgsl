// Attention of up to 32 packed query rows of one KV head over a range of paged keys. Bound by multiply-adds.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// Layouts as attend_paged_decode. One workgroup: one work item × one KV head of the shard, in tiles of 64 keys.
// attend_tile.wgsl says which invocation computes what. What comes next from memory is loaded during the products.
// Numbers: HEAD_CHUNKS = head_dim / 8; HEAD_RUNS, the power of two from HEAD_CHUNKS, at least 8; VECTORS_EACH =
// HEAD_RUNS / 8. Variants: KV_F16, KV_CODES, KV_FP8, SOFT_HALF, SOFTCAP, ALIBI, SINKS.
// Twin: backend/reference/attend_paged.rs

#import attend_item
#import attend_tile
#import invocation
#import share

var<workgroup> positions: array<u32, ROWS>;
var<workgroup> largests: array<f32, ROWS>; // m before the tile

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

@compute @workgroup_size(128)
fn main(invocation: Invocation) {
    let flat = flat_workgroup(invocation);
    let local = invocation.local;
    let is_item = flat < params.items * params.head_count;
    let item = select(0u, flat / params.head_count, is_item);
    let head = flat % params.head_count;
    let words = vec3<u32>(item_word(item, ITEM_KEY_BEGIN), item_word(item, ITEM_KEY_END), item_word(item, ITEM_COUNT));
    // Keys from x to y, rows. No early return: a workgroup beyond the list has no keys and no rows.
    let range = share(local, vec4<u32>(select(vec3<u32>(), words, is_item), 0u));
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
        var dots = Quad();
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
