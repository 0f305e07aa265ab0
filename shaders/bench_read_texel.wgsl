// Reads a buffer as an image, for Mesa's llvmpipe, which is far faster at that: the peak that products with a vector
// are measured against. All 16-byte elements or-ed together, written only if that gives what the buffer cannot: so no
// read is left out. One workgroup reads 256 elements a turn and strides over the buffer.
// No twin: a yardstick of `folio bench`, not a step.

struct Params {
    elements: u32,
    threads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var source: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4<u32>>;

// Images are 4096 vectors wide, see backend/wgpu/texels.rs.
fn texel(index: u32) -> vec2<u32> {
    return vec2<u32>(index & 4095u, index >> 12u);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4<u32>(0u);
    for (var i = id.x; i < params.elements; i += params.threads) {
        sum |= textureLoad(source, texel(i));
    }
    if all(sum == vec4<u32>(0xdeadbeefu)) {
        result[id.x] = sum;
    }
}
