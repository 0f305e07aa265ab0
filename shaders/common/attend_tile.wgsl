// A tile of attend_paged_prefill: 32 rows of Q and 64 keys pass through workgroup memory and are multiplied by 128
// invocations. Scores: invocation i computes the rows i / 16 + 8 * n (n < 4) of the keys 4x to 4x + 3, x = i % 16, from
// 16 columns of Q and K at a time. Results: the same rows of the vectors x + 16 * v (v < VECTORS_EACH) of the head,
// from VALUE_KEYS keys of V at a time. Neighbours read neighbouring vectors, without bank conflicts.
// Numbers: HEAD_CHUNKS, HEAD_RUNS, VECTORS_EACH. Variants: KV_F16, KV_CODES, KV_FP8.

#import attend_item
#import attend_keys

const THREADS: u32 = 128u;
const ROWS: u32 = 32u;
const KEY_FOURS: u32 = 16u;
const SLICES: u32 = (HEAD_CHUNKS + 1u) / 2u; // of 16 columns
const VALUE_KEYS: u32 = THREADS / HEAD_RUNS;
const WEIGHT_STRIDE: u32 = KEY_FOURS + 1u; // one vector of padding against bank conflicts

var<workgroup> weights: array<vec4<f32>, ROWS * WEIGHT_STRIDE>; // [row][key / 4]: exp(s − m)
// 16 columns of Q [column / 4][row], then of K [column / 4][key]; or VALUE_KEYS keys of V [key][half of a run][run].
var<workgroup> staged: array<vec4<f32>, 4u * (ROWS + KEYS)>;
alias Quad = array<vec4<f32>, 4>;
alias Sums = array<vec4<f32>, 4u * VECTORS_EACH>; // [row n][vector v]

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

// An invocation loads run local % 2 of a slice of K, of the key at position local / 2. Columns beyond the head repeat
// its last ones: they are zero in Q.
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

// An invocation loads run local % HEAD_RUNS of key local / HEAD_RUNS of part `part` of the tile. Results beyond the
// head are not written.
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
