// Reads a buffer: the peak that products with a vector are compared with.
// Combines all 16-byte elements by OR and writes the result only if it has a value that cannot occur, so that the
// compiler cannot remove reads.
// One workgroup reads 2048 elements per iteration and strides over the buffer, whose length is a multiple of that.
// No twin: a baseline of `folio bench`, not a step.

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
    // Eight loads per thread and iteration: on some drivers a loop iteration costs more than a load.
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
