// Attention of a few packed query rows of one KV head over a range of paged keys, for Mesa's llvmpipe, where the pool
// is read as images (backend/wgpu/texels.rs).
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// One workgroup is one subgroup of 8 lanes: one work item × one KV head of the shard. Keys are processed in tiles of 8.
// For the dot products and for P · V, a lane owns every 8th run of 8 elements of the head. In between, the lanes of 8
// keys' sums are transposed while they are summed, so that a lane holds the score of one key and the softmax costs one
// vector operation per row and tile. A pass over a tile handles KEYS keys, limited by registers and the compiler.
// Compared with attend_paged_serial, this saves a subgroupAdd (as slow as 4 loads) and two exp per row and key, besides
// the gain from images (see matmul_texel). It reads K and V at about half the rate at which matmul_texel reads W.
// Numbers: HEAD_CHUNKS = head_dim / 8, LANE_CHUNKS = ⌈HEAD_CHUNKS / 8⌉, ROWS, KEYS (2, 4, 8), PAIRS = KEYS / 2,
// QUADS = KEYS / 4, OCTETS = KEYS / 8.
// Variants: KV_F16, KV_CODES, KV_FP8, SOFT_HALF, SOFTCAP, ALIBI, SINKS; TEXELS, SUBGROUPS always.
// Layouts as attend_paged_decode. Twin: backend/reference/attend_paged.rs

#import attend_item
#import invocation
#import lanes

@compute @workgroup_size(8)
fn main(at: Invocation) {
    let lane = at.subgroup_lane;
    let flat = flat_workgroup(at);
    // No early return, which would mask every later operation: a workgroup beyond the list has no keys and rows.
    let is_item = flat < params.items * params.head_count;
    let item = select(0u, flat / params.head_count, is_item);
    let head = flat % params.head_count;
    let count = select(0u, item_word(item, ITEM_COUNT), is_item);
    let end = select(0u, item_word(item, ITEM_KEY_END), is_item);
    let tables = metadata_word(params.group_header + GROUP_TABLES) + item_word(item, ITEM_TABLE);

    var rows: array<Row, ROWS>;
    var query: array<vec4<f32>, ROWS * LANE_CHUNKS * 2u>;
    var sums: array<vec4<f32>, ROWS * LANE_CHUNKS * 2u>;
    var largest: array<f32, ROWS>;
    var totals: array<f32, ROWS>;
    // Lanes past the end of the head read its last run and multiply it by zero.
    var runs: array<u32, LANE_CHUNKS>;
    var scales: array<f32, LANE_CHUNKS>;
#for chunk LANE_CHUNKS
    runs[chunk] = min(lane + chunk * 8u, HEAD_CHUNKS - 1u);
    scales[chunk] = select(0.0, params.scale, lane + chunk * 8u < HEAD_CHUNKS);
#endfor
#for row ROWS
    rows[row] = packed_row(item, head, min(row, max(count, 1u) - 1u));
    largest[row] = MASKED;
#for chunk LANE_CHUNKS
    query[(row * LANE_CHUNKS + chunk) * 2u] = q_vector(row_at(rows[row]) + runs[chunk] * 2u) * scales[chunk];
    query[(row * LANE_CHUNKS + chunk) * 2u + 1u] = q_vector(row_at(rows[row]) + runs[chunk] * 2u + 1u) * scales[chunk];
#endfor
#endfor
    // Keys before the first row's window, and unused slots, may lie in blocks that now belong to another sequence.
    // Masked keys therefore read a visible key instead: their probability is zero, but zero times a foreign NaN is NaN.
    let begin = max(item_word(item, ITEM_KEY_BEGIN), first_visible(rows[0].position));

    for (var tile = begin & ~7u; tile < end; tile += 8u) {
        let block = metadata_word(tables + (tile >> params.block_shift));
        let base = (block * params.head_count + head) * tile_runs(HEAD_CHUNKS, params.block_shift);
        let block_start = (tile >> params.block_shift) << params.block_shift;
        // A missing block has no keys that a row sees.
        if (block != NONE) {
            var scores: array<f32, ROWS>;
            for (var part = 0u; part < 8u; part += KEYS) {
                var dots: array<f32, ROWS * 8u>;
                var k: Run;
                var key_at: u32;
#for key KEYS
                key_at = base + (clamp(tile + part + key, begin, end - 1u) - block_start) * HEAD_CHUNKS;
#for chunk LANE_CHUNKS
                k = load_k(key_at + runs[chunk]);
#for row ROWS
                dots[row * 8u + key] += dot(query[(row * LANE_CHUNKS + chunk) * 2u], k.low)
                    + dot(query[(row * LANE_CHUNKS + chunk) * 2u + 1u], k.high);
#endfor
#endfor
#endfor
#for row ROWS
#for pair PAIRS
                dots[row * 8u + pair] = halve(lane, 1u, dots[row * 8u + pair * 2u], dots[row * 8u + pair * 2u + 1u]);
#endfor
#for pair QUADS
                dots[row * 8u + pair] = halve(lane, 2u, dots[row * 8u + pair * 2u], dots[row * 8u + pair * 2u + 1u]);
#endfor
#for pair OCTETS
                dots[row * 8u + pair] = halve(lane, 4u, dots[row * 8u + pair * 2u], dots[row * 8u + pair * 2u + 1u]);
#endfor
                if (KEYS < 4u) {
                    dots[row * 8u] += subgroupShuffleXor(dots[row * 8u], 2u);
                }
                if (KEYS < 8u) {
                    dots[row * 8u] += subgroupShuffleXor(dots[row * 8u], 4u);
                }
                scores[row] = select(scores[row], dots[row * 8u], (lane & ~(KEYS - 1u)) == part);
#endfor
            }

            let own_key = tile + lane;
            let own_slot = clamp(own_key, begin, end - 1u) - block_start;
            let k_factor = k_scale(base, own_slot);
            let v_factor = v_scale(base, own_slot);
            var sees: bool;
            var top: f32;
            var shrink: f32;
#for row ROWS
            scores[row] = score(scores[row] * k_factor, rows[row], own_key);
            sees = own_key < end && is_visible(own_key, rows[row].position);
            top = max(largest[row], lanes_max(select(MASKED, scores[row], sees)));
            shrink = exp(largest[row] - top);
            scores[row] = select(0.0, exp(scores[row] - top), sees);
            largest[row] = top;
            totals[row] = totals[row] * shrink + scores[row];
            scores[row] *= v_factor;
#for chunk LANE_CHUNKS
            sums[(row * LANE_CHUNKS + chunk) * 2u] *= shrink;
            sums[(row * LANE_CHUNKS + chunk) * 2u + 1u] *= shrink;
#endfor
#endfor

            for (var part = 0u; part < 8u; part += KEYS) {
                var p: array<f32, ROWS>;
                var v: Run;
                var key_at: u32;
#for key KEYS
                key_at = base + (clamp(tile + part + key, begin, end - 1u) - block_start) * HEAD_CHUNKS;
#for row ROWS
                p[row] = subgroupShuffle(scores[row], part + key);
#endfor
#for chunk LANE_CHUNKS
                v = load_v(key_at + runs[chunk]);
#for row ROWS
                sums[(row * LANE_CHUNKS + chunk) * 2u] += p[row] * v.low;
                sums[(row * LANE_CHUNKS + chunk) * 2u + 1u] += p[row] * v.high;
#endfor
#endfor
#endfor
            }
        }
    }

    var to: Target;
#for row ROWS
    totals[row] = lanes_sum(totals[row]);
    if (row < count) {
        to = target_of(item, head, row, largest[row], totals[row]);
#for chunk LANE_CHUNKS
        if (lane + chunk * 8u < HEAD_CHUNKS) {
            write_vector(to, runs[chunk] * 2u, sums[(row * LANE_CHUNKS + chunk) * 2u]);
            write_vector(to, runs[chunk] * 2u + 1u, sums[(row * LANE_CHUNKS + chunk) * 2u + 1u]);
        }
#endfor
        if (lane == 0u) {
            write_state(to, largest[row], totals[row]);
        }
    }
#endfor
}
