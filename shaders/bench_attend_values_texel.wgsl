// Weighted values of the gather-then-attend baseline, for Mesa's llvmpipe: bench_attend_values with inputs as images.
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
@group(0) @binding(1) var weights: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(2) var values: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>>;

// Images are 4096 vectors wide, see backend/wgpu/texels.rs.
fn texel(index: u32) -> vec2<u32> {
    return vec2<u32>(index & 4095u, index >> 12u);
}

fn low_half(v: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y));
}

fn high_half(v: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w));
}

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
    // Contexts are whole blocks, so the number of weights is a multiple of four.
    for (var token = 0u; token < params.context; token += 4u) {
        let weight = bitcast<vec4<f32>>(textureLoad(weights, texel((row * params.context + token) >> 2u)));
        let block = (sequence * params.context + token) >> params.block_shift;
        let slot = token & ((1u << params.block_shift) - 1u);
        let at = (((block * params.kv_heads + kv_head) << params.block_shift) + slot) * params.chunks + chunk;
        let first = textureLoad(values, texel(at));
        let second = textureLoad(values, texel(at + params.chunks));
        let third = textureLoad(values, texel(at + 2u * params.chunks));
        let fourth = textureLoad(values, texel(at + 3u * params.chunks));
        low += weight.x * low_half(first) + weight.y * low_half(second);
        low += weight.z * low_half(third) + weight.w * low_half(fourth);
        high += weight.x * high_half(first) + weight.y * high_half(second);
        high += weight.z * high_half(third) + weight.w * high_half(fourth);
    }
    result[2u * id.x] = low;
    result[2u * id.x + 1u] = high;
}
