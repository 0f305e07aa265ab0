// Attention of a few packed query rows of one KV head over a range of paged keys, without workgroup memory.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = softcap(scale · q · k_j) + slope · (j − position)
//
// For drivers that run shaders on a CPU: there loads are the most expensive operation, so every element of K and V is
// loaded once, and everything else stays in registers. One workgroup is LANES threads of one subgroup: one work item ×
// one KV head of the shard. A lane owns every LANES-th run of 8 elements of the head; keys are processed one at a time.
// Numbers: HEAD_CHUNKS = head_dim / 8, LANE_CHUNKS = ⌈HEAD_CHUNKS / LANES⌉, ROWS.
// Variants: KV_F16, KV_CODES, KV_FP8, SOFT_HALF, SOFTCAP, ALIBI, SINKS; SUBGROUPS always.
// Layouts as attend_paged_decode. Twin: backend/reference/attend_paged.rs

#import attend_item

// No `Invocation` here: compilers that do not tell struct members apart would consider `subgroupAdd` non-uniform.
@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let flat = workgroup.x + workgroup.y * workgroups.x;
    if (flat >= params.items * params.head_count) {
        return;
    }
    let item = flat / params.head_count;
    let head = flat % params.head_count;
    let count = item_word(item, ITEM_COUNT);
    let begin = item_word(item, ITEM_KEY_BEGIN);
    let end = item_word(item, ITEM_KEY_END);

    var query: array<vec4<f32>, ROWS * LANE_CHUNKS * 2u>;
    var sums: array<vec4<f32>, ROWS * LANE_CHUNKS * 2u>;
    var largest: array<f32, ROWS>;
    var totals: array<f32, ROWS>;
    var rows: array<Row, ROWS>;
    for (var row = 0u; row < ROWS; row++) {
        let own = packed_row(item, head, min(row, max(count, 1u) - 1u));
        largest[row] = MASKED;
        rows[row] = own;
        for (var i = 0u; i < LANE_CHUNKS; i++) {
            let chunk = lane + i * LANES;
            if (chunk < HEAD_CHUNKS) {
                query[(row * LANE_CHUNKS + i) * 2u] = q_vector(row_at(own) + chunk * 2u) * params.scale;
                query[(row * LANE_CHUNKS + i) * 2u + 1u] = q_vector(row_at(own) + chunk * 2u + 1u) * params.scale;
            }
        }
    }

    let block_size = 1u << params.block_shift;
    var next = begin;
    while (next < end) {
        let base = block_at(item, head, next);
        let first = next & ~(block_size - 1u);
        var key = next;
        next = min(end, first + block_size);
        // A missing block has no keys that a row sees.
        key = select(key, next, base == NONE);
        var at = base + (key - first) * HEAD_CHUNKS + lane;
        while (key < next) {
            var dots = array<f32, ROWS>();
            for (var i = 0u; i < LANE_CHUNKS; i++) {
                if (lane + i * LANES < HEAD_CHUNKS) {
                    let k = load_k(at + i * LANES);
                    for (var row = 0u; row < ROWS; row++) {
                        let x = (row * LANE_CHUNKS + i) * 2u;
                        dots[row] += dot(query[x], k.low) + dot(query[x + 1u], k.high);
                    }
                }
            }
            let k_factor = k_scale(base, key - first);
            let v_factor = v_scale(base, key - first);
            for (var row = 0u; row < ROWS; row++) {
                let s = score(subgroupAdd(dots[row]) * k_factor, rows[row], key);
                let sees = is_visible(key, rows[row].position);
                let top = select(largest[row], max(largest[row], s), sees);
                let shrink = exp(largest[row] - top);
                let p = select(0.0, exp(s - top), sees);
                largest[row] = top;
                totals[row] = totals[row] * shrink + p;
                dots[row] = p * v_factor;
                for (var i = 0u; i < LANE_CHUNKS * 2u; i++) {
                    sums[row * LANE_CHUNKS * 2u + i] *= shrink;
                }
            }
            for (var i = 0u; i < LANE_CHUNKS; i++) {
                if (lane + i * LANES < HEAD_CHUNKS) {
                    let v = load_v(at + i * LANES);
                    for (var row = 0u; row < ROWS; row++) {
                        let x = (row * LANE_CHUNKS + i) * 2u;
                        sums[x] += dots[row] * v.low;
                        sums[x + 1u] += dots[row] * v.high;
                    }
                }
            }
            key++;
            at += HEAD_CHUNKS;
        }
    }

    for (var row = 0u; row < ROWS; row++) {
        if (row < count) {
            let to = target_of(item, head, row, largest[row], totals[row]);
            for (var i = 0u; i < LANE_CHUNKS; i++) {
                let chunk = lane + i * LANES;
                if (chunk < HEAD_CHUNKS) {
                    let x = (row * LANE_CHUNKS + i) * 2u;
                    write_vector(to, chunk * 2u, sums[x]);
                    write_vector(to, chunk * 2u + 1u, sums[x + 1u]);
                }
            }
            if (lane == 0u) {
                write_state(to, largest[row], totals[row]);
            }
        }
    }
}
