// Attention of up to 32 packed query rows of one KV head over a range of paged keys, by cooperative matrices.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// Layouts as attend_paged_decode. Workgroup of 128: one work item × one KV head of the shard, in tiles of 64 keys.
// Q, K, V and p are halves, scores and sums f32. A row of Q is divided by a power of two, as in matmul_narrow. Four
// invocations share a row's softmax. The sums of a row stay in matrices, whose rows cannot be told apart: m is raised,
// and the sums shrunk in workgroup memory, only when a score exceeds it by more than SLACK.
// Numbers: HEAD_CHUNKS = head_dim / 8; HEAD_RUNS, the power of two from HEAD_CHUNKS, at least 8; VALUE_RUNS =
// HEAD_RUNS / 8; and how SUBGROUPS_COUNT subgroups share the scores (32 x 64), SCORE_*, and the results (32 x
// 8 HEAD_RUNS), RESULT_*.
// Variants: SIZE_8, SIZE_16 or SIZE_8_16, SCALAR_TILES, KV_F16, KV_CODES, KV_FP8, SOFT_HALF, SOFTCAP, ALIBI, SINKS.
// Twin: backend/reference/attend_paged.rs

#import attend_matrices
#import invocation
#import share

const SLACK: f32 = 8.0; // p is below 2981, a half

var<workgroup> quarters: array<f32, 4u * ROWS>; // what the four invocations of a row exchange
var<workgroup> shrinks: array<f32, ROWS>;
var<workgroup> targets: array<vec2<u32>, ROWS>; // a row's first vector of out, and the bits of the factor of its sums
var<workgroup> grown: atomic<u32>;

// The largest, or the sum, of what the invocations of a row have in `quarters`.
fn largest_quarter(local: u32) -> f32 {
    let first = local & ~3u;
    return max(max(quarters[first], quarters[first + 1u]), max(quarters[first + 2u], quarters[first + 3u]));
}

@compute @workgroup_size(128)
fn main(at: Invocation) {
    let flat = flat_workgroup(at);
    let local = at.local;
    let is_item = flat < params.items * params.head_count;
    let item = select(0u, flat / params.head_count, is_item);
    let head = flat % params.head_count;
    let words = vec3<u32>(item_word(item, ITEM_KEY_BEGIN), item_word(item, ITEM_KEY_END), item_word(item, ITEM_COUNT));
    // Keys from x to y, rows, passes. No early return: a workgroup beyond the list has no keys and no rows.
    let range = share(local, vec4<u32>(select(vec3<u32>(), words, is_item), passes_of(at, SUBGROUPS_COUNT)));
    let row = local >> 2u;
    let quarter = local & 3u;
    // Rows beyond the item's are zero in Q, repeat its last one elsewhere, and are not written.
    let own = packed_row(item, head, min(row, max(range.z, 1u) - 1u));
    let query_row = select(NONE, row_at(own), row < range.z);
    var top = 0.0;
    if query_row != NONE {
        for (var vector = quarter; vector < 2u * HEAD_CHUNKS; vector += 4u) {
            let values = abs(q[query_row + vector]);
            top = max(top, max(max(values.x, values.y), max(values.z, values.w)));
        }
    }
    quarters[local] = top;
    workgroupBarrier();
    let exponent = clamp(i32(bitcast<u32>(largest_quarter(local)) >> 23u) - 127 - 14, -126, 126);
    let factor = bitcast<f32>(u32(127 - exponent) << 23u);

    for (var pass_index = 0u; pass_index < range.w; pass_index++) {
        let stores = min(pass_index * at.subgroups + at.subgroup, SUBGROUPS_COUNT);
        let subgroup = min(stores, SUBGROUPS_COUNT - 1u);
        let result_row_start = subgroup / RESULTS_ACROSS * HEIGHT * RESULT_MATRICES_DOWN;
        let result_column = subgroup % RESULTS_ACROSS * SIZE * RESULT_MATRICES_ACROSS;
        var largest = MASKED;
        var total = 0.0;
        var sums: array<MatrixSum, RESULT_MATRICES_DOWN * RESULT_MATRICES_ACROSS>;
#for m RESULT_MATRICES_DOWN
#for n RESULT_MATRICES_ACROSS
        sums[RESULT_MATRICES_ACROSS * m + n] = MatrixSum();
#endfor
#endfor
        for (var tile = range.x & ~(KEYS - 1u); tile < range.y; tile += KEYS) {
            find_keys(local, item, head, tile, range.y);
            if local == 0u {
                atomicStore(&grown, 0u);
            }
            workgroupBarrier();

            for (var score_pass = 0u; score_pass < range.w; score_pass++) {
                let score_stores = min(score_pass * at.subgroups + at.subgroup, SUBGROUPS_COUNT);
                let score_subgroup = min(score_stores, SUBGROUPS_COUNT - 1u);
                let score_row = score_subgroup / SCORES_ACROSS * HEIGHT * SCORE_MATRICES_DOWN;
                let score_key = score_subgroup % SCORES_ACROSS * SIZE * SCORE_MATRICES_ACROSS;
                var dots: array<MatrixSum, SCORE_MATRICES_DOWN * SCORE_MATRICES_ACROSS>;
#for m SCORE_MATRICES_DOWN
#for n SCORE_MATRICES_ACROSS
                dots[SCORE_MATRICES_ACROSS * m + n] = MatrixSum();
#endfor
#endfor
                var query = query_vectors(local, query_row, 0u, factor);
                var runs = key_runs(local, 0u);
                for (var slice = 0u; slice < SLICES; slice++) {
                    stage_slice(local, query, runs);
                    workgroupBarrier();
                    // The last turn loads its columns again.
                    query = query_vectors(local, query_row, min(slice + 1u, SLICES - 1u), factor);
                    runs = key_runs(local, min(slice + 1u, SLICES - 1u));
                    for (var column = 0u; column < 8u; column += SIZE / 4u) {
                        var rows: array<MatrixX, SCORE_MATRICES_DOWN>;
#for m SCORE_MATRICES_DOWN
                        rows[m] = coopLoadT<MatrixX>(
                            &staged[ELEMENTS * (SLICE_STRIDE * (score_row + HEIGHT * m) + column)],
                            ELEMENTS * SLICE_STRIDE);
#endfor
#for n SCORE_MATRICES_ACROSS
                        {
                            let keys = coopLoad<MatrixW>(
                                &staged[ELEMENTS * (SLICE_STRIDE * (ROWS + score_key + SIZE * n) + column)],
                                ELEMENTS * SLICE_STRIDE);
#for m SCORE_MATRICES_DOWN
                            dots[SCORE_MATRICES_ACROSS * m + n] =
                                coopMultiplyAdd(rows[m], keys, dots[SCORE_MATRICES_ACROSS * m + n]);
#endfor
                        }
#endfor
                    }
                    workgroupBarrier();
                }
#for m SCORE_MATRICES_DOWN
#for n SCORE_MATRICES_ACROSS
                {
                    let to = SCORE_STRIDE * (score_row + HEIGHT * m) + score_key + SIZE * n;
                    let place = select(to, SPARE, score_stores == SUBGROUPS_COUNT);
                    coopStoreT(dots[SCORE_MATRICES_ACROSS * m + n], &scores[place], SCORE_STRIDE);
                }
#endfor
#endfor
            }
            workgroupBarrier();

            var s: array<vec4<f32>, 4>;
            var top_score = MASKED;
#for j 4
#for i 4
            {
                let at_key = 16u * quarter + 4u * j + i;
                let key = tile + at_key;
                let is_seen = (key < range.y) & is_visible(key, own.position);
                let dot = scores[SCORE_STRIDE * row + at_key] * params.scale * scale_of(at_key, true);
                s[j][i] = select(MASKED, score(ldexp(dot, exponent), own, key), is_seen);
                top_score = max(top_score, s[j][i]);
            }
#endfor
#endfor
            quarters[local] = top_score;
            workgroupBarrier();
            top_score = largest_quarter(local);
            var shrink = 1.0;
            if top_score > largest + SLACK {
                shrink = exp(largest - top_score);
                // Until then, a row's sums are zero.
                if largest > MASKED {
                    atomicStore(&grown, 1u);
                }
                largest = top_score;
            }
            if quarter == 0u {
                shrinks[row] = shrink;
            }
            total *= shrink;
#for j 4
            {
                let p = select(exp(s[j] - largest), vec4<f32>(), s[j] == vec4<f32>(MASKED));
                // What the sums add up.
                let rounded = vec4<f16>(p);
                let taken = vec4<f32>(rounded);
                total += (taken.x + taken.y) + (taken.z + taken.w);
                put_weights(WEIGHT_STRIDE * row + 4u * quarter + j, rounded);
            }
#endfor
            workgroupBarrier();
            if atomicLoad(&grown) != 0u {
#for m RESULT_MATRICES_DOWN
#for n RESULT_MATRICES_ACROSS
                coopStoreT(sums[RESULT_MATRICES_ACROSS * m + n], &scores[HEIGHT * SIZE * stores], SIZE);
                workgroupBarrier();
                for (var index = local; index < HEIGHT * SIZE * SUBGROUPS_COUNT; index += 128u) {
                    scores[index] *= shrinks[result_row(index, HEIGHT * m)];
                }
                workgroupBarrier();
                sums[RESULT_MATRICES_ACROSS * m + n] = coopLoadT<MatrixSum>(&scores[HEIGHT * SIZE * stores], SIZE);
                workgroupBarrier();
#endfor
#endfor
            }

            var runs = value_runs(local, 0u);
            for (var part = 0u; part < KEYS / VALUE_KEYS; part++) {
                stage_values(local, part, runs);
                workgroupBarrier();
                runs = value_runs(local, min(part + 1u, KEYS / VALUE_KEYS - 1u));
                for (var key = 0u; key < VALUE_KEYS; key += SIZE) {
                    var rows: array<MatrixX, RESULT_MATRICES_DOWN>;
#for m RESULT_MATRICES_DOWN
                    {
                        let vector = WEIGHT_STRIDE * (result_row_start + HEIGHT * m) + (VALUE_KEYS * part + key) / 4u;
                        rows[m] = coopLoadT<MatrixX>(&weights[ELEMENTS * vector], ELEMENTS * WEIGHT_STRIDE);
                    }
#endfor
#for n RESULT_MATRICES_ACROSS
                    {
                        let values = coopLoadT<MatrixW>(
                            &staged[ELEMENTS * (VALUE_STRIDE * key + (result_column + SIZE * n) / 4u)],
                            ELEMENTS * VALUE_STRIDE);
#for m RESULT_MATRICES_DOWN
                        sums[RESULT_MATRICES_ACROSS * m + n] =
                            coopMultiplyAdd(rows[m], values, sums[RESULT_MATRICES_ACROSS * m + n]);
#endfor
                    }
#endfor
                }
                workgroupBarrier();
            }
        }

        quarters[local] = total;
        workgroupBarrier();
        if quarter == 0u {
            let sum = (quarters[local] + quarters[local + 1u]) + (quarters[local + 2u] + quarters[local + 3u]);
            let to = target_of(item, head, min(row, max(range.z, 1u) - 1u), largest, sum);
            targets[row] = vec2<u32>(to.at, bitcast<u32>(to.factor));
        }
        let begin = pass_index * at.subgroups;
        let end = min(begin + at.subgroups, SUBGROUPS_COUNT);
#for m RESULT_MATRICES_DOWN
#for n RESULT_MATRICES_ACROSS
        workgroupBarrier();
        coopStoreT(sums[RESULT_MATRICES_ACROSS * m + n], &scores[HEIGHT * SIZE * stores], SIZE);
        workgroupBarrier();
        for (var four = HEIGHT * SIZE / 4u * begin + local; four < HEIGHT * SIZE / 4u * end; four += 128u) {
            let start = 4u * four;
            let to_row = result_row(start, HEIGHT * m);
            let matrix = start / (HEIGHT * SIZE) % RESULTS_ACROSS * RESULT_MATRICES_ACROSS + n;
            let column = SIZE * matrix + start % SIZE;
            if to_row < range.z && column < 8u * HEAD_CHUNKS {
                let values = vec4<f32>(scores[start], scores[start + 1u], scores[start + 2u], scores[start + 3u]);
                let to = targets[to_row];
                // Keys of tiles are never split.
                out[to.x + column / 4u] = values * bitcast<f32>(to.y);
            }
        }
#endfor
#endfor
        workgroupBarrier();
    }
}
