// A recurrence over the tokens of a sequence, as state_scan, without workgroup memory.
//
// For drivers that run shaders on a CPU, where a barrier costs more than the work of a token between two of them. One
// workgroup is LANES threads of one subgroup: LANES columns of the values of a head of a sequence. A lane has a column
// of the state from the first token to the last, and every LANES-th element of a key and of a query.
// Variants: DELTA, SKIP; SUBGROUPS always; LANES, KEY_RUNS = key_dim / LANES (rounded up to a power of two).
// Layouts as state_scan. Twin: backend/reference/state_scan.rs
#import metadata
#import state_scan

const KEYS: u32 = KEY_RUNS * LANES;

// No `Invocation` here: compilers that do not tell struct members apart would consider `subgroupAdd` non-uniform.
@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let flat = workgroup.x + workgroup.y * workgroups.x;
    if flat >= params.workgroups {
        return;
    }
    let head = flat / params.tiles % params.heads;
    let sequence = flat / params.tiles / params.heads;
    let start = metadata_at(META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_START);
    let count = metadata_at(META_SEQUENCES, sequence * SEQUENCE_WORDS + SEQUENCE_ROW_COUNT);
    let column = flat % params.tiles * LANES + lane;
    let source = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_FROM);
    let first = (source * params.heads + head) * params.key_dim;
    var s: array<f32, KEYS>;
#for run KEY_RUNS
#for i LANES
    if source != NONE && run * LANES + i < params.key_dim {
        s[run * LANES + i] = state[(first + run * LANES + i) * params.value_dim + column];
    }
#endfor
#endfor

    let key_head = head / params.shared_by % params.key_heads * params.key_dim;
    for (var row = start; row < start + count; row++) {
        let channels = row * params.channels + key_head;
        var k: array<f32, KEY_RUNS>;
        var q: array<f32, KEY_RUNS>;
        var sums = vec4<f32>();
#for run KEY_RUNS
        if run * LANES + lane < params.key_dim {
            k[run] = convolved[channels + params.key_start + run * LANES + lane];
            q[run] = convolved[channels + params.query_start + run * LANES + lane];
            sums += vec4<f32>(k[run] * k[run], q[run] * q[run], q[run] * k[run], 0.0);
        }
#endfor
        sums = subgroupAdd(sums);
        let factor = vec4<f32>(gates_of(row, head), scales_of(sums.xy));
        let v = convolved[row * params.channels + params.value_start + head * params.value_dim + column];
        // Several sums, so that additions do not wait for each other: S^T k and S^T q, with the state before.
        var known = array<f32, 4>();
        var found = array<f32, 4>();
#for run KEY_RUNS
#for i LANES
        known[i % 4u] += s[run * LANES + i] * subgroupBroadcast(k[run], i);
        found[i % 4u] += s[run * LANES + i] * subgroupBroadcast(q[run], i);
#endfor
#endfor
#ifdef DELTA
        let change = factor.y * (v - factor.x * factor.z * (known[0] + known[1] + (known[2] + known[3])));
#else
        let change = factor.y * v;
#endif
        let overlap = sums.z * factor.z * factor.w;
        var sum = factor.x * factor.w * (found[0] + found[1] + (found[2] + found[3])) + overlap * change;
#ifdef SKIP
        sum += skip[head] * v;
#endif
        out[(row * params.heads + head) * params.value_dim + column] = sum;
        let written = factor.z * change;
#for run KEY_RUNS
#for i LANES
        s[run * LANES + i] = factor.x * s[run * LANES + i] + written * subgroupBroadcast(k[run], i);
#endfor
#endfor
    }

    let slot = metadata_at(META_STATES, sequence * STATE_WORDS + STATE_TO);
    let last = (slot * params.heads + head) * params.key_dim;
#for run KEY_RUNS
#for i LANES
    if run * LANES + i < params.key_dim {
        state[(last + run * LANES + i) * params.value_dim + column] = s[run * LANES + i];
    }
#endfor
#endfor
}
