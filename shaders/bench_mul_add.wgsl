// Multiplies and adds in registers as two operations, which most drivers fuse: a variant of bench_fma for devices where
// `fma` itself is slow.
// Twelve independent chains per thread (three vectors of four); `turns` iterations of 16 links; two operations a link.
// A workgroup has 256 threads without barriers. The links are unrolled: on some drivers a loop iteration costs more
// than a link.
// No twin: a baseline of `folio bench`, not a step.

struct Params {
    turns: u32,
    threads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // The factors are read from memory: constants would be folded.
    let a = vec4<f32>(source[0].x);
    let b = vec4<f32>(source[0].y);
    var x = vec4<f32>(f32(id.x), 1.0, 2.0, 3.0);
    var y = x + 4.0;
    var z = x + 8.0;
    for (var turn = 0u; turn < params.turns; turn += 1u) {
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
        x = x * a + b; y = y * a + b; z = z * a + b;
    }
    let sum = x + y + z;
    if sum.x == 12345.678 {
        result[id.x] = sum;
    }
}
