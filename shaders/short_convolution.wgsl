// out[t][i] = c[t][i] * (sum_j weight[i][j] * s[t - TAPS + 1 + j][i] + bias[i]), s = b * u, over the rows t of one
// sequence; before its first row, s is its state. x: [tokens, 3, columns] f32 (b, c, u), weight: [columns, TAPS],
// state: [slots, TAPS - 1, columns], oldest first, out: [tokens, columns].
// SILU: out = silu(the sum), s = the first columns of x: [tokens, width].
// Invocation: 4 columns of one row. The rows that see the state, and the state itself, are the first row's: no other
// invocation reads or writes it. Variants: TAPS; BIAS, SILU.
// Twin: backend/reference/short_convolution.rs
#import invocation
#import metadata
#ifdef SILU
#import activation
#endif

struct Params {
    rows: u32,
    vectors: u32, // columns / 4
    sequences: u32,
    width: u32, // columns of x
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
#ifdef SILU
@group(0) @binding(2) var<storage, read> x: array<f32>;
#else
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
#endif
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;
#ifdef BIAS
@group(0) @binding(6) var<storage, read> bias: array<vec4<f32>>;
#endif

const KEPT: u32 = TAPS - 1u;

// The sequence of a token row: the last one that starts at or before it.
fn sequence_of(row: u32) -> u32 {
    var low = 0u;
    var high = params.sequences;
    while high - low > 1u {
        let middle = (low + high) / 2u;
        if metadata_at(META_SEQUENCES, middle * SEQUENCE_WORDS + SEQUENCE_ROW_START) <= row {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// s of a token row.
fn input_at(row: u32, vector: u32) -> vec4<f32> {
#ifdef SILU
    let at = row * params.width + 4u * vector;
    return vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
#else
    let at = row * 3u * params.vectors + vector;
    return x[at] * x[at + 2u * params.vectors];
#endif
}

// Element `at` of a state, zero without one.
fn state_at(slot: u32, at: u32, vector: u32) -> vec4<f32> {
    if slot == NONE {
        return vec4<f32>();
    }
    return state[(slot * KEPT + at) * params.vectors + vector];
}

// Writes row `start + index` of the sequence that begins at row `start`.
fn write_row(start: u32, index: u32, slot: u32, vector: u32) {
    var sum = vec4<f32>();
    for (var tap = 0u; tap < TAPS; tap++) {
        let at = index + tap;
        var input: vec4<f32>;
        if at < KEPT {
            input = state_at(slot, at, vector);
        } else {
            input = input_at(start + at - KEPT, vector);
        }
        let column = vector * 4u * TAPS + tap;
        sum += vec4(weight[column], weight[column + TAPS], weight[column + 2u * TAPS], weight[column + 3u * TAPS])
            * input;
    }
#ifdef BIAS
    sum += bias[vector];
#endif
    let row = start + index;
#ifdef SILU
    out[row * params.vectors + vector] = activate(sum, vec4<f32>(1.0));
#else
    out[row * params.vectors + vector] = x[(row * 3u + 1u) * params.vectors + vector] * sum;
#endif
}

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let row = item / params.vectors;
    if row >= params.rows {
        return;
    }
    let vector = item - row * params.vectors;
    let sequence = sequence_of(row);
    let start = metadata_at(META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_START);
    let count = metadata_at(META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_COUNT);
    let source = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_FROM);
    if row - start >= KEPT {
        write_row(start, row - start, source, vector);
        return;
    }
    if row > start {
        return;
    }
    for (var index = 0u; index < min(KEPT, count); index++) {
        write_row(start, index, source, vector);
    }
    // Ascending: what a shorter batch moves down is read before it is overwritten.
    let slot = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_TO);
    for (var kept = 0u; kept < KEPT; kept++) {
        let at = count + kept;
        var input: vec4<f32>;
        if at < KEPT {
            input = state_at(source, at, vector);
        } else {
            input = input_at(start + at - KEPT, vector);
        }
        state[(slot * KEPT + kept) * params.vectors + vector] = input;
    }
}
