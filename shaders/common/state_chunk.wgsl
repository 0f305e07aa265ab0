// The memory of a chunk of tokens in state_scan_chunks, and what is computed from it alone. The importing shader also
// imports state_scan. Variants: DELTA; TOKENS, ROWS_EACH.

const COLUMNS: u32 = 4u;
const THREADS: u32 = 128u;
const BLOCK: u32 = 16u;
// Rows that are multiplied: the keys, then the queries. Without DELTA, keys are columns only.
const ROWS: u32 = 2u * TOKENS;
const FIRST: u32 = ROWS - 8u * ROWS_EACH;
const STATE_AT: u32 = BLOCK * ROWS;
// In the results, products with the state, [ROWS, COLUMNS], are before those with the keys, [ROWS, TOKENS / 4].
const WITH_KEYS: u32 = ROWS * COLUMNS;

// Keys and queries, [BLOCK, ROWS], and the state, [4 * BLOCK, COLUMNS]; then the results.
var<workgroup> tile: array<vec4<f32>, STATE_AT + 4u * BLOCK * COLUMNS>;
var<workgroup> gates: array<vec2<f32>, TOKENS>; // keep, rate
var<workgroup> kept: array<f32, TOKENS * (TOKENS + 1u)>; // of each token i: g(i, j), zero for j > i; then g(i)
var<workgroup> tails: array<f32, TOKENS>; // g(last, j), times the scale of k
var<workgroup> changes: array<f32, 4u * COLUMNS * TOKENS>; // rate * v at first
#ifdef DELTA
var<workgroup> squares: array<f32, THREADS>; // sums of x * x of each row, of every fourth vector: [4, ROWS]
#endif

// The token at a place among the rows. Invocations that each have 4 consecutive tokens so read neighbouring places.
fn token_at(place: u32) -> u32 {
    return place % 4u * 4u + place / 4u % 4u;
}

// Loads BLOCK vectors of keys and queries of `tokens` rows from `row` on, from vector `first` of a head on.
fn load_rows(local: u32, row: u32, tokens: u32, key_head: u32, first: u32) {
    let vector = local / 8u;
    for (var place = local % 8u; place < ROWS; place += 8u) {
        let start = select(params.query_start, params.key_start, place < TOKENS);
        var x = vec4<f32>();
        if token_at(place) < tokens && first + vector < params.key_dim / 4u {
            x = convolved[((row + token_at(place)) * params.channels + start) / 4u + key_head + first + vector];
        }
        tile[vector * ROWS + place] = x;
    }
}

// Multiplies the decays of the tokens up.
fn multiply_decays(before: u32) {
    var product = 1.0;
    for (var token = 0u; token < TOKENS; token++) {
        if before == TOKENS || token > before {
            product *= gates[token].x;
        }
        kept[token * (TOKENS + 1u) + before] = select(product, 0.0, before < TOKENS && token < before);
    }
}

// The scale of the row at a place.
fn scale_at(place: u32) -> f32 {
#ifdef DELTA
    var sum = 0.0;
    for (var part = 0u; part < THREADS; part += ROWS) {
        sum += squares[part + place];
    }
    let scales = scales_of(vec2<f32>(sum));
    return select(scales.y, scales.x, place < TOKENS);
#else
    return 1.0;
#endif
}

fn kept_at(token: u32, column: u32) -> vec4<f32> {
    let at = token * (TOKENS + 1u) + 4u * column;
    return vec4<f32>(kept[at], kept[at + 1u], kept[at + 2u], kept[at + 3u]);
}

fn kept_before(token: u32) -> f32 {
    return kept[token * (TOKENS + 1u) + TOKENS];
}

fn change_at(token: u32, column: u32) -> vec4<f32> {
    let at = 4u * (token * COLUMNS + column);
    return vec4<f32>(changes[at], changes[at + 1u], changes[at + 2u], changes[at + 3u]);
}

fn set_change(token: u32, column: u32, change: vec4<f32>) {
    let at = 4u * (token * COLUMNS + column);
    changes[at] = change.x;
    changes[at + 1u] = change.y;
    changes[at + 2u] = change.z;
    changes[at + 3u] = change.w;
}

#ifdef DELTA
// Subtracts what earlier tokens of the chunk change, in a column of the values.
fn substitute(column: u32) {
    var known: array<vec4<f32>, 4>;
#for token TOKENS
    {
        var change = changes[token * 4u * COLUMNS + column];
#for i 4
        if 4u * i < token {
            change -= dot(tile[WITH_KEYS + token * COLUMNS + i], known[i]);
        }
#endfor
        known[token / 4u][token % 4u] = change;
        changes[token * 4u * COLUMNS + column] = change;
    }
#endfor
}
#endif

// The output of a token, from the state before the chunk and what the chunk's tokens change.
fn output_of(token: u32, column: u32) -> vec4<f32> {
    let at = (TOKENS + token) * COLUMNS;
    var sum = tile[at + column];
    for (var i = 0u; 4u * i <= token; i++) {
        let weights = tile[WITH_KEYS + at + i];
        sum += weights.x * change_at(4u * i, column) + weights.y * change_at(4u * i + 1u, column);
        sum += weights.z * change_at(4u * i + 2u, column) + weights.w * change_at(4u * i + 3u, column);
    }
    return sum;
}
