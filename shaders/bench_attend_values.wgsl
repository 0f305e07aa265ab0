// Weighted values of the gather-then-attend baseline, over contiguous blocks.
// result[sequence][head] = sum over tokens of weight · v[sequence][token / block][head / group][token % block]; values
// are f16.
// One thread computes eight neighbouring elements of one sequence and query head.
// No twin: used only by `folio bench`.

struct Params {
    context: u32,
    query_heads: u32,
    kv_heads: u32,
    chunks: u32,
    // Sequences times query heads.
    rows: u32,
    // log2 of the tokens per block.
    block_shift: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read> values: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.x / params.chunks;
    let chunk = id.x % params.chunks;
    if row >= params.rows {
        return;
    }
    let sequence = row / params.query_heads;
    let kv_head = row % params.query_heads / (params.query_heads / params.kv_heads);
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    for (var token = 0u; token < params.context; token += 1u) {
        let weight = weights[row * params.context + token];
        let block = (sequence * params.context + token) >> params.block_shift;
        let slot = token & ((1u << params.block_shift) - 1u);
        let at = ((block * params.kv_heads + kv_head) << params.block_shift) + slot;
        let v = values[at * params.chunks + chunk];
        low += weight * vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y));
        high += weight * vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w));
    }
    result[2u * id.x] = low;
    result[2u * id.x + 1u] = high;
}
