// Reads a buffer as an image, for Mesa's llvmpipe, which is far faster at that: the peak that products with a vector
// are measured against.
// All 16-byte elements or-ed together, written only if that gives what the buffer cannot: so no read is left out.
// One workgroup reads 2048 elements a turn and strides over the buffer, whose length is whole turns.
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
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    var sum = vec4<u32>(0u);
    // A workgroup takes 2048 neighbours a turn, eight a thread: a turn of the loop costs some drivers more than a load.
    for (var base = workgroup.x * 2048u + local; base < params.elements; base += params.threads * 8u) {
        sum |= textureLoad(source, texel(base));
        sum |= textureLoad(source, texel(base + 256u));
        sum |= textureLoad(source, texel(base + 512u));
        sum |= textureLoad(source, texel(base + 768u));
        sum |= textureLoad(source, texel(base + 1024u));
        sum |= textureLoad(source, texel(base + 1280u));
        sum |= textureLoad(source, texel(base + 1536u));
        sum |= textureLoad(source, texel(base + 1792u));
    }
    if all(sum == vec4<u32>(0xdeadbeefu)) {
        result[local] = sum;
    }
}
