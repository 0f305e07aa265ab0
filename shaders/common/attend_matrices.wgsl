// A tile of attend_paged_matrices: 32 rows of Q and 64 keys pass through workgroup memory as halves, 32 columns at a
// time, then V, VALUE_KEYS keys at a time.
// Numbers: HEAD_CHUNKS, HEAD_RUNS, VALUE_RUNS, RESULTS_ACROSS, RESULT_MATRICES_DOWN.
// Variants: SIZE_8, SIZE_16 or SIZE_8_16, SCALAR_TILES, KV_F16, KV_CODES, KV_FP8.

#import attend_item
#import attend_keys
#import matrices

const ROWS: u32 = 32u;
const SLICES: u32 = HEAD_RUNS / 4u; // of 32 columns
const SLICE_STRIDE: u32 = 10u; // vectors: 32 columns and padding, as in tile_matrices
const VALUE_KEYS: u32 = 16u;
const VALUE_STRIDE: u32 = 2u * HEAD_RUNS + 2u;
const WEIGHT_STRIDE: u32 = KEYS / 4u + 2u;
const SCORE_STRIDE: u32 = KEYS + 4u;
const STAGED: u32 = max(SLICE_STRIDE * (ROWS + KEYS), VALUE_STRIDE * VALUE_KEYS);
// Where subgroups store that repeat another's part.
const SPARE: u32 = SCORE_STRIDE * ROWS;

var<workgroup> staged: array<TileElement, ELEMENTS * STAGED>; // a slice of Q, then of K; or VALUE_KEYS keys of V
var<workgroup> scores: array<f32, SPARE + SCORE_STRIDE * HEIGHT>; // [row][key]; or a matrix of each subgroup
var<workgroup> weights: array<TileElement, ELEMENTS * WEIGHT_STRIDE * ROWS>; // [row][key / 4]: p

alias ValueRuns = array<Packed, VALUE_RUNS>;

fn put_staged(vector: u32, values: vec4<f16>) {
#ifdef SCALAR_TILES
#for i 4
    staged[4u * vector + i] = values[i];
#endfor
#else
    staged[vector] = values;
#endif
}

fn put_weights(vector: u32, values: vec4<f16>) {
#ifdef SCALAR_TILES
#for i 4
    weights[4u * vector + i] = values[i];
#endfor
#else
    weights[vector] = values;
#endif
}

// An invocation's share of a slice of Q: vectors local % 4 and 4 more of row local / 4, whose first vector is `row`.
fn query_vectors(local: u32, row: u32, slice: u32, factor: f32) -> array<vec4<f16>, 2> {
    var vectors: array<vec4<f16>, 2>;
#for n 2
    {
        let vector = 8u * slice + 4u * n + (local & 3u);
        vectors[n] = vec4<f16>(0.0h);
        if row != NONE && vector < 2u * HEAD_CHUNKS {
            vectors[n] = vec4<f16>(q[row + vector] * factor);
        }
    }
#endfor
    return vectors;
}

// Of a slice of K: run local % 4 of the keys local / 4 and 32 more. Columns beyond the head repeat its last ones: they
// are zero in Q.
fn key_runs(local: u32, slice: u32) -> array<Packed, 2> {
    let run = min(4u * slice + (local & 3u), HEAD_CHUNKS - 1u);
    return array<Packed, 2>(packed_k(bases[local >> 2u] + run), packed_k(bases[(local >> 2u) + 32u] + run));
}

fn stage_slice(local: u32, query: array<vec4<f16>, 2>, keys: array<Packed, 2>) {
#for n 2
    {
        put_staged(SLICE_STRIDE * (local >> 2u) + 4u * n + (local & 3u), query[n]);
        let key = (local >> 2u) + 32u * n;
        // Codes are exact; their scale multiplies the score.
        let run = unpacked(keys[n]);
        let to = SLICE_STRIDE * (ROWS + key) + 2u * (local & 3u);
        put_staged(to, vec4<f16>(run.low));
        put_staged(to + 1u, vec4<f16>(run.high));
    }
#endfor
}

// Of VALUE_KEYS keys of V: run local % HEAD_RUNS of the keys that lie 128 / HEAD_RUNS apart. Results beyond the head
// are not written.
fn value_runs(local: u32, part: u32) -> ValueRuns {
    var runs: ValueRuns;
#for n VALUE_RUNS
    {
        let key = VALUE_KEYS * part + (128u * n + local) / HEAD_RUNS;
        runs[n] = packed_v(bases[key] + min(local % HEAD_RUNS, HEAD_CHUNKS - 1u));
    }
#endfor
    return runs;
}

fn stage_values(local: u32, part: u32, runs: ValueRuns) {
#for n VALUE_RUNS
    {
        let key = (128u * n + local) / HEAD_RUNS;
        let run = scaled(runs[n], scale_of(VALUE_KEYS * part + key, false));
        let to = VALUE_STRIDE * key + 2u * (local % HEAD_RUNS);
        put_staged(to, vec4<f16>(run.low));
        put_staged(to + 1u, vec4<f16>(run.high));
    }
#endfor
}

// Row in the tile of an element of a matrix in `scores`, if that of subgroup 0 begins at `row`.
fn result_row(index: u32, row: u32) -> u32 {
    let subgroup = index / (HEIGHT * SIZE);
    return row + subgroup / RESULTS_ACROSS * HEIGHT * RESULT_MATRICES_DOWN + index / SIZE % HEIGHT;
}
