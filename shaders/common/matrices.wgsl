// Cooperative matrices: HEIGHT x SIZE halves times SIZE x SIZE, which a subgroup multiplies as one, with sums of f32.
// X * W^T is MatrixX (rows of X) times MatrixW (rows of W as columns). Only for Vulkan and Metal; Vulkan's SPIR-V gets
// its memory model right in backend/wgpu/spirv.rs, and the width of matrices that are not square, which WGSL cannot
// name. The importer imports invocation. Define: SIZE_8, SIZE_16 or SIZE_8_16; SCALAR_TILES.

#ifdef SIZE_16
const HEIGHT: u32 = 16u;
const SIZE: u32 = 16u;
alias MatrixX = coop_mat16x16<f16, A>;
alias MatrixW = coop_mat16x16<f16, B>;
alias MatrixSum = coop_mat16x16<f32, C>;
#else
#ifdef SIZE_8_16
const HEIGHT: u32 = 8u;
const SIZE: u32 = 16u;
alias MatrixX = coop_mat8x8<f16, A>; // 8 x 16 in SPIR-V
alias MatrixW = coop_mat16x16<f16, B>;
alias MatrixSum = coop_mat8x8<f32, C>; // 8 x 16 in SPIR-V
#else
const HEIGHT: u32 = 8u;
const SIZE: u32 = 8u;
alias MatrixX = coop_mat8x8<f16, A>;
alias MatrixW = coop_mat8x8<f16, B>;
alias MatrixSum = coop_mat8x8<f32, C>;
#endif
#endif

// What tiles in workgroup memory consist of, and how many of these make four halves. Metal's matrices are loaded by
// pointers to halves alone.
#ifdef SCALAR_TILES
alias TileElement = f16;
const ELEMENTS: u32 = 4u;
#else
alias TileElement = vec4<f16>;
const ELEMENTS: u32 = 1u;
#endif

// How often this workgroup's subgroups must compute to do the work of `expected` ones: a driver may run fewer, of more
// lanes. If it runs more, the others repeat the last one's part.
fn passes_of(at: Invocation, expected: u32) -> u32 {
    return (expected + at.subgroups - 1u) / at.subgroups;
}
