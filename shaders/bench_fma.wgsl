// Multiplies and adds in registers: the peak that matrix products are measured against.
// Eight independent chains of x = x · a + b a thread, 16 links a turn, `turns` turns; two operations a link.
// One workgroup is 256 threads that never meet.
// No twin: a yardstick of `folio bench`, not a step.

struct Params {
    turns: u32,
    threads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> result: array<vec4<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // Factors come from memory: constants would be folded.
    let a = source[0].x;
    let b = source[0].y;
    let start = f32(id.x);
    var x0 = start;
    var x1 = start + 1.0;
    var x2 = start + 2.0;
    var x3 = start + 3.0;
    var x4 = start + 4.0;
    var x5 = start + 5.0;
    var x6 = start + 6.0;
    var x7 = start + 7.0;
    for (var turn = 0u; turn < params.turns; turn += 1u) {
        for (var link = 0u; link < 16u; link += 1u) {
            x0 = fma(x0, a, b);
            x1 = fma(x1, a, b);
            x2 = fma(x2, a, b);
            x3 = fma(x3, a, b);
            x4 = fma(x4, a, b);
            x5 = fma(x5, a, b);
            x6 = fma(x6, a, b);
            x7 = fma(x7, a, b);
        }
    }
    let sum = vec4<f32>(x0 + x4, x1 + x5, x2 + x6, x3 + x7);
    if sum.x == 12345.678 {
        result[id.x] = sum;
    }
}
