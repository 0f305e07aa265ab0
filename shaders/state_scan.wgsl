// A recurrence over the tokens of a sequence: per head, with the state S, [key_dim, value_dim],
// S = keep * S; S += k (rate * (v - S^T k))^T (DELTA) or S += k (rate * v)^T; o = S^T q (+ skip * v with SKIP).
// DELTA: keep = exp(decay * softplus(a + bias)), rate = beta_scale * sigmoid(b); k and q have unit length, times
// 1 / sqrt(key_dim) for q; gates are b, then a. Otherwise rate = softplus(dt + bias), keep = exp(decay * rate).
// convolved: [tokens, channels], mixed: [tokens, mixed_columns] with the gates from params.gates on, state: [slots,
// heads, key_dim, value_dim], out: [tokens, heads, value_dim], decay, bias, skip: [heads].
// Workgroup: 16 columns of the values of a head of a sequence, by 8 slices of the keys, which stay in registers from
// the first token to the last; a token needs one barrier. o = keep * S^T q + (q . k) * change, with the state before.
// Variants: DELTA, SKIP; KEYS_EACH (keys of a slice). Twin: backend/reference/state_scan.rs
#import invocation
#import metadata
#import share
#import state_scan

const COLUMNS: u32 = 16u;
const SLICES: u32 = 8u;
const THREADS: u32 = 128u;
const KEYS: u32 = SLICES * KEYS_EACH;
// Tokens whose keys and queries are loaded at a time, and lanes that sum over the keys of one.
const TOKENS: u32 = 4u;
const LANES: u32 = THREADS / TOKENS;

var<workgroup> queries: array<f32, TOKENS * KEYS>;
var<workgroup> keys: array<f32, TOKENS * KEYS>;
var<workgroup> products: array<vec4<f32>, THREADS>; // sums of k * k, q * q, q * k
var<workgroup> factors: array<vec4<f32>, TOKENS>; // keep, rate, scale of k, scale of q
var<workgroup> overlaps: array<f32, TOKENS>; // q . k
var<workgroup> partials: array<vec2<f32>, 2u * THREADS>; // S^T k and S^T q, of every other token

// Loads keys and queries of `count` rows from `row` on, and computes their factors.
fn load_tokens(local: u32, row: u32, count: u32, head: u32) {
    let key_head = head / params.shared_by % params.key_heads * params.key_dim;
    workgroupBarrier();
    for (var i = local; i < TOKENS * KEYS; i += THREADS) {
        let at = (row + i / KEYS) * params.channels + key_head + i % KEYS;
        keys[i] = 0.0;
        queries[i] = 0.0;
        if i / KEYS < count && i % KEYS < params.key_dim {
            keys[i] = convolved[at + params.key_start];
            queries[i] = convolved[at + params.query_start];
        }
    }
    workgroupBarrier();
    var sums = vec4<f32>();
    for (var i = local % LANES; i < KEYS; i += LANES) {
        let k = keys[local / LANES * KEYS + i];
        let q = queries[local / LANES * KEYS + i];
        sums += vec4<f32>(k * k, q * q, q * k, 0.0);
    }
    products[local] = sums;
    workgroupBarrier();
    if local < count {
        var total = vec4<f32>();
        for (var lane = 0u; lane < LANES; lane++) {
            total += products[local * LANES + lane];
        }
        let factor = vec4<f32>(gates_of(row + local, head), scales_of(total.xy));
        factors[local] = factor;
        overlaps[local] = total.z * factor.z * factor.w;
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn main(at: Invocation) {
    let flat = flat_workgroup(at);
    let item = min(flat, params.workgroups - 1u);
    let head = item / params.tiles % params.heads;
    let sequence = item / params.tiles / params.heads;
    let first_row = metadata_at(META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_START);
    let own = metadata_at(META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_COUNT);
    // Excess workgroups of a grid spread over x and y have no tokens.
    let is_own = flat < params.workgroups && own >= params.rows_min && own <= params.rows_max;
    // The first row, NONE for a sequence that is left alone; rows. One by one: Mesa's compiler for AMD ends at a select
    // of vectors here.
    let range = share(at.local, vec4<u32>(select(NONE, first_row, is_own), select(0u, own, is_own), 0u, 0u));
    let start = range.x;
    let count = range.y;
    let slice = at.local / COLUMNS;
    let column = item % params.tiles * COLUMNS + at.local % COLUMNS;
    let is_live = start != NONE && column < params.value_dim;
    let source = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_FROM);
    var s: array<f32, KEYS_EACH>;
    let first = (source * params.heads + head) * params.key_dim;
#for i KEYS_EACH
    if is_live && source != NONE && i * SLICES + slice < params.key_dim {
        s[i] = state[(first + i * SLICES + slice) * params.value_dim + column];
    }
#endfor

    for (var begin = 0u; begin < count; begin += TOKENS) {
        let tokens = min(TOKENS, count - begin);
        load_tokens(at.local, start + begin, tokens, head);
        for (var token = 0u; token < tokens; token++) {
            let factor = factors[token];
            let row = start + begin + token;
            var v = 0.0;
            if is_live {
                v = convolved[row * params.channels + params.value_start + head * params.value_dim + column];
            }
            var sums = vec2<f32>();
#for i KEYS_EACH
            {
                let key = token * KEYS + i * SLICES + slice;
                sums += s[i] * vec2<f32>(keys[key], queries[key]);
            }
#endfor
            // Two halves, so that a token's sums are not overwritten while they are read.
            let half = (token & 1u) * THREADS;
            partials[half + at.local] = sums;
            workgroupBarrier();
            sums = vec2<f32>();
            for (var other = 0u; other < SLICES; other++) {
                sums += partials[half + other * COLUMNS + at.local % COLUMNS];
            }
#ifdef DELTA
            let change = factor.y * (v - factor.x * factor.z * sums.x);
#else
            let change = factor.y * v;
#endif
            if is_live && slice == 0u {
                var sum = factor.x * factor.w * sums.y + overlaps[token] * change;
#ifdef SKIP
                sum += skip[head] * v;
#endif
                out[(row * params.heads + head) * params.value_dim + column] = sum;
            }
            let written = factor.z * change;
#for i KEYS_EACH
            s[i] = factor.x * s[i] + written * keys[token * KEYS + i * SLICES + slice];
#endfor
        }
    }

    let slot = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_TO);
    let last = (slot * params.heads + head) * params.key_dim;
#for i KEYS_EACH
    if is_live && i * SLICES + slice < params.key_dim {
        state[(last + i * SLICES + slice) * params.value_dim + column] = s[i];
    }
#endfor
}
