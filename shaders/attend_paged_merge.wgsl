// Joins the partial results of key ranges that attend_paged_decode wrote to the partial buffer.
//
//   m = max mᵢ,  out = Σ oᵢ · exp(mᵢ − m) / (Σ lᵢ · exp(mᵢ − m) [+ exp(sink − m)])
//
// partials [slot][kv head][8 packed rows][head_dim sums, then m, l, 0, 0]; out [tokens][query heads][head_dim].
// A merge item lists its slots (one per range, in key order), so the order of the sum is fixed. One workgroup: one
// packed row of one KV head of one item; a thread handles every 64th vector. Numbers: HEAD_CHUNKS. Variants: SINKS.
// Twin: backend/reference/attend_paged.rs

#import attend
#import invocation
#import metadata

const THREADS: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> sinks: array<f32>;
@group(0) @binding(3) var<storage, read> partials: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

fn item_word(item: u32, word: u32) -> u32 {
    return metadata_at(params.group_header + GROUP_WORK, params.item_start + item * ITEM_WORDS + word);
}

@compute @workgroup_size(64)
fn main(invocation: Invocation) {
    let local = invocation.local;
    let flat = flat_workgroup(invocation);
    let row = flat % PARTIAL_ROWS;
    let head = flat / PARTIAL_ROWS % params.kv_heads;
    let item = flat / PARTIAL_ROWS / params.kv_heads;
    if (item >= params.items || row >= item_word(item, ITEM_COUNT)) {
        return;
    }
    let packed = item_word(item, ITEM_PACKED) + row;
    let query_head = head * params.group + packed % params.group;
    let token = item_word(item, ITEM_ROW) + packed / params.group;
    let splits = item_word(item, MERGE_ITEM_SPLITS);
    let row_vectors = HEAD_CHUNKS * 2u + 1u;
    let base = ((item_word(item, ITEM_SLOT) * params.kv_heads + head) * PARTIAL_ROWS + row) * row_vectors;
    let stride = params.kv_heads * PARTIAL_ROWS * row_vectors;
    let state = base + HEAD_CHUNKS * 2u;

    var largest = MASKED;
#ifdef SINKS
    largest = sinks[query_head];
#endif
    for (var i = 0u; i < splits; i++) {
        largest = max(largest, partials[state + i * stride].x);
    }
    var total = 0.0;
#ifdef SINKS
    total = exp(sinks[query_head] - largest);
#endif
    for (var i = 0u; i < splits; i++) {
        let part = partials[state + i * stride];
        total += part.y * exp(part.x - largest);
    }
    let out_at = (token * params.kv_heads * params.group + query_head) * HEAD_CHUNKS * 2u;
    for (var vector = local; vector < HEAD_CHUNKS * 2u; vector += THREADS) {
        var sum = vec4<f32>();
        for (var i = 0u; i < splits; i++) {
            sum += partials[base + i * stride + vector] * exp(partials[state + i * stride].x - largest);
        }
        out[out_at + vector] = sum / max(total, 1e-37);
    }
}
