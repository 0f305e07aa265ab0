// Reads a buffer as an image, which is far faster on Mesa's llvmpipe: the peak that products with a vector are compared
// with.
// Combines all 16-byte elements by OR and writes the result only if it has a value that cannot occur, so that the
// compiler cannot remove reads.
// Each group of 8 lanes, which that driver runs together, reads a contiguous part of the buffer, 64 elements per
// iteration; the length of a part is a multiple of that.
// No twin: a baseline of `folio bench`, not a step.

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
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    var sum = vec4<u32>(0u);
    let part = params.elements / (params.threads >> 3u);
    let start = (workgroup.x * 32u + (local >> 3u)) * part + (local & 7u);
    // Eight loads per iteration: a loop iteration costs more than a load.
    for (var base = start; base < start + part; base += 64u) {
        sum |= textureLoad(source, texel(base));
        sum |= textureLoad(source, texel(base + 8u));
        sum |= textureLoad(source, texel(base + 16u));
        sum |= textureLoad(source, texel(base + 24u));
        sum |= textureLoad(source, texel(base + 32u));
        sum |= textureLoad(source, texel(base + 40u));
        sum |= textureLoad(source, texel(base + 48u));
        sum |= textureLoad(source, texel(base + 56u));
    }
    if all(sum == vec4<u32>(0xdeadbeefu)) {
        result[local] = sum;
    }
}
