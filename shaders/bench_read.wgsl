// Reads a buffer: the peak that products with a vector are measured against.
// All 16-byte elements or-ed together, written only if that gives what the buffer cannot: so no read is left out.
// One workgroup reads 2048 elements a turn and strides over the buffer, whose length is whole turns.
// No twin: a yardstick of `folio bench`, not a step.

struct Params {
    elements: u32,
    threads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    var sum = vec4<u32>(0u);
    // A workgroup takes 2048 neighbours a turn, eight a thread: a turn of the loop costs some drivers more than a load.
    for (var base = workgroup.x * 2048u + local; base < params.elements; base += params.threads * 8u) {
        sum |= source[base];
        sum |= source[base + 256u];
        sum |= source[base + 512u];
        sum |= source[base + 768u];
        sum |= source[base + 1024u];
        sum |= source[base + 1280u];
        sum |= source[base + 1536u];
        sum |= source[base + 1792u];
    }
    if all(sum == vec4<u32>(0xdeadbeefu)) {
        result[local] = sum;
    }
}
