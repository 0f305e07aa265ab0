// Copies a buffer: the peak that streaming kernels are compared with.
// target[i] = source[i], 16 bytes an element.
// One workgroup copies 256 adjacent elements per iteration and strides over the buffer.
// No twin: a baseline of `folio bench`, not a step.

struct Params {
    elements: u32,
    threads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var i = id.x; i < params.elements; i += params.threads) {
        result[i] = source[i];
    }
}
