// Multiplies matrices in registers: the peak of a GPU's matrix units. Eight independent chains per subgroup; a
// workgroup makes `turns` links of each, divided among its subgroups, whose number is the driver's choice.
// The bench writes 8x8 instead of 16x16 where matrices are smaller, or where A and C are lower. No twin: a baseline of
// `folio bench`, not a step.
enable f16;
enable wgpu_cooperative_matrix;

struct Params {
    turns: u32,
    unused: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<f16>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    let count = params.turns / subgroups;
    let x0 = coopLoadT<coop_mat16x16<f16, A>>(&source[0u], 16u);
    let x1 = coopLoadT<coop_mat16x16<f16, A>>(&source[256u], 16u);
    let w0 = coopLoad<coop_mat16x16<f16, B>>(&source[512u], 16u);
    let w1 = coopLoad<coop_mat16x16<f16, B>>(&source[768u], 16u);
    let w2 = coopLoad<coop_mat16x16<f16, B>>(&source[1024u], 16u);
    let w3 = coopLoad<coop_mat16x16<f16, B>>(&source[1280u], 16u);
    var a = coop_mat16x16<f32, C>();
    var b = coop_mat16x16<f32, C>();
    var c = coop_mat16x16<f32, C>();
    var d = coop_mat16x16<f32, C>();
    var e = coop_mat16x16<f32, C>();
    var f = coop_mat16x16<f32, C>();
    var g = coop_mat16x16<f32, C>();
    var h = coop_mat16x16<f32, C>();
    for (var turn = 0u; turn < count; turn++) {
        a = coopMultiplyAdd(x0, w0, a);
        b = coopMultiplyAdd(x0, w1, b);
        c = coopMultiplyAdd(x0, w2, c);
        d = coopMultiplyAdd(x0, w3, d);
        e = coopMultiplyAdd(x1, w0, e);
        f = coopMultiplyAdd(x1, w1, f);
        g = coopMultiplyAdd(x1, w2, g);
        h = coopMultiplyAdd(x1, w3, h);
    }
    // So that none can be left out.
    let sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
    coopStoreT(sum, &sums[256u * (workgroup.x * subgroups + subgroup)], 16u);
}
