// out = W_e * x + bias_e for every route or, with COMBINE, their weighted sum for every token. Each route reads the
// matrix of its expert once. Bound by memory bandwidth if there are few routes.
// Workgroup: 4 outputs of a unit; its invocations run over the columns with 16-byte loads and sum at the end.
// Variants: weight format, BIAS, COMBINE, SUBGROUPS, WORKGROUP. Twin: backend/reference/matmul_experts.rs
#import matmul_experts
#import weight
#import reduce

@compute @workgroup_size(WORKGROUP)
fn main(at: Invocation) {
    let tiles = (params.outputs + 3u) / 4u;
    let tile = flat_workgroup(at);
    let unit = tile / tiles;
    let output = 4u * (tile % tiles);
    // Outputs past the end read the last row again; emit drops them.
    let last = params.outputs - 1u;
    var sum = vec4<f32>(0.0);
    // Excess workgroups of a grid spread over x and y have no unit, but reach every barrier.
    let count = select(0u, params.routes_each, unit < params.units);
    for (var j = 0u; j < count; j++) {
        let route = unit * params.routes_each + j;
        let expert = expert_of(route);
        if expert < params.expert_count {
            let base = expert * params.outputs;
            let row0 = weight_row(base + min(output, last));
            let row1 = weight_row(base + min(output + 1u, last));
            let row2 = weight_row(base + min(output + 2u, last));
            let row3 = weight_row(base + min(output + 3u, last));
            let x_row = route / params.x_routes * 2u * params.eights;
            var part = vec4<f32>(0.0);
            for (var k = at.local; k < params.eights; k += WORKGROUP) {
                let low = x[x_row + 2u * k];
                let high = x[x_row + 2u * k + 1u];
                let w0 = weight_eight(row0, k);
                let w1 = weight_eight(row1, k);
                let w2 = weight_eight(row2, k);
                let w3 = weight_eight(row3, k);
                part += vec4<f32>(dot(w0.low, low), dot(w1.low, low), dot(w2.low, low), dot(w3.low, low));
                part += vec4<f32>(dot(w0.high, high), dot(w1.high, high), dot(w2.high, high), dot(w3.high, high));
            }
            sum += factor_of(route) * part;
        }
    }
    let total = reduce_sum(at, sum);
    if at.local < 4u {
        emit(unit, output + at.local, total[at.local]);
    }
}
