// Bindings and epilogue shared by the matmul kernels: out (=, +=) x * W^T + bias, for one shard of W's rows.
// x: [rows, 8 * eights] f32; W: [outputs, 8 * eights] in its format; out: [rows, output_stride] f32.

struct Params {
    rows: u32,
    eights: u32,        // columns of x and W / 8
    outputs: u32,       // rows of this shard of W
    output_start: u32,  // column of out (and element of bias) of the shard's first row
    output_stride: u32, // columns of out
    accumulate: u32,
    row_vectors: u32,   // of W; this and the following fields: see weight.wgsl
    plane: u32,
    scales: u32,
    supers: u32,
    splits: u32,        // parts of the columns, each computed by other workgroups
    span: u32,          // columns of a part, a multiple of 32
    epsilon: f32,       // NORM: as in rms_norm
    weight_offset: f32,
    alpha: f32,         // GATED: as in gated_activation
    limit: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
#ifdef TEXELS
#import texel
@group(0) @binding(1) var x: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(2) var weight: texture_storage_2d<rgba32uint, read>;

fn x_vector(index: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(x, texel(index)));
}
#else
#ifdef MATRICES
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;
#else
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#endif
@group(0) @binding(2) var<storage, read> weight: array<vec4<u32>>;
#endif
#ifdef NORM
@group(0) @binding(3) var<storage, read> norm: array<vec4<f32>>;
#ifdef BIAS
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
#else
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#endif
#else
#ifdef BIAS
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#else
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
#endif
#endif

fn emit(row: u32, output: u32, product: f32) {
    if row >= params.rows || output >= params.outputs {
        return;
    }
    let column = params.output_start + output;
    let index = row * params.output_stride + column;
    var value = product;
#ifdef BIAS
    value += bias[column];
#endif
    if params.accumulate != 0u {
        value += out[index];
    }
    out[index] = value;
}

// What a workgroup computes: outputs and rows of a tile, for columns from begin to end.
struct Part {
    tile: u32,
    split: u32,
    begin: u32,
    end: u32,
}

fn part_of(workgroup: u32) -> Part {
#ifdef SPLITS
    let split = workgroup % params.splits;
    let begin = split * params.span;
    return Part(workgroup / params.splits, split, begin, min(begin + params.span, 8u * params.eights));
#else
    return Part(workgroup, 0u, 0u, 8u * params.eights);
#endif
}

// SPLITS: out is [split][row][output of the shard], and matmul_merge computes the rest.
fn emit_part(part: Part, row: u32, output: u32, product: f32) {
#ifdef SPLITS
    if row < params.rows && output < params.outputs {
        out[(part.split * params.rows + row) * params.outputs + output] = product;
    }
#else
    emit(row, output, product);
#endif
}
