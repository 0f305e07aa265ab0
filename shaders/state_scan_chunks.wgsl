// A recurrence over the tokens of a sequence, as state_scan, in chunks of TOKENS tokens.
//
// With g(i, j) the product of keep of the tokens after j up to i, g(i) that of the chunk's tokens up to i, and the
// state S before the chunk:
//   change_i = rate_i (v_i - g(i) S^T k_i - sum over j < i of g(i, j) (k_i . k_j) change_j)     (DELTA), or rate_i v_i
//   o_i = g(i) S^T q_i + sum over j <= i of g(i, j) (q_i . k_j) change_j     (+ skip v_i)
//   S = g(last) S + sum over j of g(last, j) k_j change_j^T
// g is multiplied up from factors of at most 1: nothing overflows, and no logarithm is rounded.
//
// Workgroup: COLUMNS vectors of the values of a head of a sequence. The state is in registers from the first token to
// the last: an invocation has 4 keys by a vector, KEY_RUNS times. Keys and queries are multiplied with the state and
// with the keys in tiles of ROWS_EACH rows by 4 columns, from workgroup memory, which holds BLOCK vectors of each row
// at a time. With 128 keys, for 16 tokens and 16 columns, and in brackets by state_scan:
//   barriers: 8 with DELTA, otherwise 7 (40)
//   multiply-adds of an invocation: 1,450 with DELTA, otherwise 900 (1,300)
//   its reads of workgroup memory, 220 or 190 (1,200), have 700 or 550 elements (1,200)
// Variants: DELTA, SKIP; VECTORS and TOKENS = 16 always; KEY_RUNS = key_dim / 128 (rounded up to a power of two);
// ROWS_EACH = 4 with DELTA, otherwise 2. Layouts as state_scan. Twin: backend/reference/state_scan.rs
#import invocation
#import metadata
#import share
#import state_scan
#import state_chunk

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
    let range = share(at.local, vec4<u32>(first_row, select(0u, own, is_own), 0u, 0u));
    let key_vectors = params.key_dim / 4u;
    let key_head = head / params.shared_by % params.key_heads * key_vectors;
    let values = params.value_dim / 4u;
    let column = at.local % COLUMNS;
    let vector = item % params.tiles * COLUMNS + column;
    let is_live = range.y > 0u && vector < values;
    let value_at = params.value_start / 4u + head * values + vector;
    // In products: rows from a place on in steps of 8, and every other vector of keys.
    let place = at.local / 4u % 8u;
    let half = at.local / 32u % 2u;
    let with_state = at.local < THREADS / 2u;
    let result = select(WITH_KEYS, 0u, with_state) + column;
    // In the state: a vector of keys, of each run.
    let own_keys = at.local / COLUMNS;
    let source = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_FROM);
    let start = (source * params.heads + head) * params.key_dim;
    var s: array<vec4<f32>, 4u * KEY_RUNS>;
#for run KEY_RUNS
#for i 4
    if is_live && source != NONE && 32u * run + own_keys < key_vectors {
        s[4u * run + i] = state[(start + 4u * (32u * run + own_keys) + i) * values + vector];
    }
#endfor
#endfor

    for (var begin = 0u; begin < range.y; begin += TOKENS) {
        let tokens = min(TOKENS, range.y - begin);
        let row = range.x + begin;
        // Tokens after the last keep the state and change nothing.
        if at.local < TOKENS {
            var gate = vec2<f32>(1.0, 0.0);
            if at.local < tokens {
                gate = gates_of(row + at.local, head);
            }
            gates[at.local] = gate;
        }
        let own_token = token_at(place + 8u * half);
        var v = vec4<f32>();
        if is_live && with_state && own_token < tokens {
            v = convolved[(row + own_token) * params.channels / 4u + value_at];
        }
#ifdef DELTA
        var square = 0.0;
#endif
        var sums = array<vec4<f32>, ROWS_EACH>();
#for run KEY_RUNS
        for (var part = 0u; part < 2u; part++) {
            let first = (2u * run + part) * BLOCK;
            if first < key_vectors {
                workgroupBarrier();
                load_rows(at.local, row, tokens, key_head, first);
                if own_keys / BLOCK == part {
#for i 4
                    tile[STATE_AT + (4u * (own_keys % BLOCK) + i) * COLUMNS + column] = s[4u * run + i];
#endfor
                }
                workgroupBarrier();
                let count = min(BLOCK, key_vectors - first);
#ifdef DELTA
                for (var i = at.local / ROWS; i < count; i += THREADS / ROWS) {
                    let x = tile[i * ROWS + at.local % ROWS];
                    square += dot(x, x);
                }
#endif
                for (var i = half; i < count; i += 2u) {
                    let rows = i * ROWS + place + FIRST;
                    if with_state {
                        let y = STATE_AT + 4u * i * COLUMNS + column;
                        let y0 = tile[y];
                        let y1 = tile[y + COLUMNS];
                        let y2 = tile[y + 2u * COLUMNS];
                        let y3 = tile[y + 3u * COLUMNS];
#for r ROWS_EACH
                        {
                            let x = tile[rows + 8u * r];
                            sums[r] += x.x * y0 + x.y * y1 + x.z * y2 + x.w * y3;
                        }
#endfor
                    } else {
                        let y = i * ROWS + column;
                        let y0 = tile[y];
                        let y1 = tile[y + 4u];
                        let y2 = tile[y + 8u];
                        let y3 = tile[y + 12u];
#for r ROWS_EACH
                        {
                            let x = tile[rows + 8u * r];
                            sums[r] += vec4<f32>(dot(x, y0), dot(x, y1), dot(x, y2), dot(x, y3));
                        }
#endfor
                    }
                }
            }
        }
#endfor
        if at.local <= TOKENS {
            multiply_decays(at.local);
        }
        if with_state {
            set_change(own_token, column, gates[own_token].y * v);
        }
#ifdef DELTA
        squares[at.local] = square;
#endif
        workgroupBarrier();
        // Each half of the invocations completes one half of the rows, with the sums of the other.
#for r ROWS_EACH
        if 2u * r / ROWS_EACH != half {
            let own = place + FIRST + 8u * r;
            tile[result + (own / TOKENS * TOKENS + token_at(own)) * COLUMNS] = sums[r];
        }
#endfor
        workgroupBarrier();
        let key_scales =
            vec4<f32>(scale_at(column), scale_at(column + 4u), scale_at(column + 8u), scale_at(column + 12u));
#for r ROWS_EACH
        if 2u * r / ROWS_EACH == half {
            let own = place + FIRST + 8u * r;
            let token = token_at(own);
            let to = result + (own / TOKENS * TOKENS + token) * COLUMNS;
            let rate = select(1.0, gates[token].y, own < TOKENS);
            let sum = rate * scale_at(own) * (sums[r] + tile[to]);
            if !with_state {
                tile[to] = sum * key_scales * kept_at(token, column);
            } else if own < TOKENS {
                set_change(token, column, change_at(token, column) - kept_before(token) * sum);
            } else {
                tile[to] = kept_before(token) * sum;
            }
        }
#endfor
        if !with_state && place == 0u && half == 0u {
            let own = key_scales * kept_at(TOKENS - 1u, column);
#for i 4
            tails[4u * column + i] = own[i];
#endfor
        }
        workgroupBarrier();
#ifdef DELTA
        if at.local < 4u * COLUMNS {
            substitute(at.local);
        }
        workgroupBarrier();
#endif
        if is_live && own_keys < tokens {
            var sum = output_of(own_keys, column);
#ifdef SKIP
            sum += skip[head] * convolved[(row + own_keys) * params.channels / 4u + value_at];
#endif
            out[((row + own_keys) * params.heads + head) * values + vector] = sum;
        }
        let kept_last = kept_before(TOKENS - 1u);
#for i KEY_RUNS
#for t 4
        s[4u * i + t] *= kept_last;
#endfor
#endfor
        let keys_at = params.key_start / 4u + key_head;
#for token TOKENS
        {
            // Zero after the last token.
            let change = tails[token] * change_at(token, column);
            let keys = (row + min(token, tokens - 1u)) * params.channels / 4u + keys_at;
#for run KEY_RUNS
            {
                let k = convolved[keys + min(32u * run + own_keys, key_vectors - 1u)];
                s[4u * run] += k.x * change;
                s[4u * run + 1u] += k.y * change;
                s[4u * run + 2u] += k.z * change;
                s[4u * run + 3u] += k.w * change;
            }
#endfor
        }
#endfor
    }

    let slot = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_TO);
    let to = (slot * params.heads + head) * params.key_dim;
#for run KEY_RUNS
#for i 4
    if is_live && 32u * run + own_keys < key_vectors {
        state[(to + 4u * (32u * run + own_keys) + i) * values + vector] = s[4u * run + i];
    }
#endfor
#endfor
}
