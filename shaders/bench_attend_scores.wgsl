// Scores of the gather-then-attend baseline, over contiguous blocks.
// scores[sequence][head][token] = q[sequence][head] · k[sequence][token / block][head / group][token % block] / √d;
// keys are f16, d = head_dim.
// One thread computes one score; a row of workgroups handles one sequence and query head.
// No twin: used only by `folio bench`.

struct Params {
    context: u32,
    query_heads: u32,
    kv_heads: u32,
    // 16-byte elements of a key: head_dim / 8.
    chunks: u32,
    rows: u32,
    // log2 of the tokens per block.
    block_shift: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> scores: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let token = id.x;
    let sequence = id.y / params.query_heads;
    let head = id.y % params.query_heads;
    if token >= params.context {
        return;
    }
    let kv_head = head / (params.query_heads / params.kv_heads);
    let block = (sequence * params.context + token) >> params.block_shift;
    let slot = token & ((1u << params.block_shift) - 1u);
    let key = (((block * params.kv_heads + kv_head) << params.block_shift) + slot) * params.chunks;
    let query = id.y * params.chunks * 2u;
    var sum = 0.0;
    for (var i = 0u; i < params.chunks; i += 1u) {
        let k = keys[key + i];
        let low = vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y));
        let high = vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w));
        sum += dot(q[query + 2u * i], low) + dot(q[query + 2u * i + 1u], high);
    }
    scores[id.y * params.context + token] = sum * inverseSqrt(f32(params.chunks * 8u));
}
