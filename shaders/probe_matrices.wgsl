// Writes as how many subgroups the driver runs a workgroup of 128 invocations that multiply matrices, which no API says
// before. The probe writes 8x8 instead of 16x16 where matrices are smaller, or A and C are lower. No twin: not a step.
enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> source: array<f16>;
// The number; then a matrix of sums for each subgroup.
@group(0) @binding(2) var<storage, read_write> results: array<f32>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    let x = coopLoadT<coop_mat16x16<f16, A>>(&source[0u], 16u);
    let w = coopLoad<coop_mat16x16<f16, B>>(&source[256u], 16u);
    let sum = coopMultiplyAdd(x, w, coop_mat16x16<f32, C>());
    coopStoreT(sum, &results[256u * (1u + subgroup)], 16u);
    if local == 0u {
        results[0u] = f32(subgroups);
    }
}
