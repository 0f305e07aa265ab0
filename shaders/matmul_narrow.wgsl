// Rows of x as halves, for cooperative matrices: each row divided by a power of two, so that its largest magnitude lies
// from 2^14 to 2^15. After all rows, the exponent of that power for each row, in the first element of a vector.
// Workgroup of 128: a row. Twin: backend/reference/matmul.rs, which does not round
#import invocation

struct Params {
    rows: u32,
    vectors: u32, // of four columns
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f16>>;

var<workgroup> largest_bits: atomic<u32>;

@compute @workgroup_size(128)
fn main(at: Invocation) {
    // Excess workgroups of a grid spread over x and y do the last row again.
    let row = min(flat_workgroup(at), params.rows - 1u);
    let start = row * params.vectors;
    if at.local == 0u {
        atomicStore(&largest_bits, 0u);
    }
    workgroupBarrier();
    // Magnitudes are ordered as their bits are; this also finds infinity and NaN.
    var bits = vec4<u32>(0u);
    for (var vector = at.local; vector < params.vectors; vector += 128u) {
        bits = max(bits, bitcast<vec4<u32>>(x[start + vector]) & vec4<u32>(0x7fffffffu));
    }
    atomicMax(&largest_bits, max(max(bits.x, bits.y), max(bits.z, bits.w)));
    workgroupBarrier();
    // The exponent of the largest magnitude, less 14, of powers that are normal numbers.
    let exponent = clamp(i32(atomicLoad(&largest_bits) >> 23u) - 127 - 14, -126, 126);
    let factor = bitcast<f32>(u32(127 - exponent) << 23u);
    for (var vector = at.local; vector < params.vectors; vector += 128u) {
        out[start + vector] = vec4<f16>(x[start + vector] * factor);
    }
    if at.local == 0u {
        out[params.rows * params.vectors + row] = vec4<f16>(f16(exponent), 0.0h, 0.0h, 0.0h);
    }
}
