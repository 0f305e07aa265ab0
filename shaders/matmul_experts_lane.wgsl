// out = W_e * x + bias_e for every route or, with COMBINE, their weighted sum for every token. It uses no workgroup
// memory, for shaders that run on CPU cores. Invocation: 4 outputs of a unit.
// Variants: weight format, HEADS, BIAS, COMBINE. Twin: backend/reference/matmul_experts.rs
#import invocation
#import matmul_experts
#import weight

@compute @workgroup_size(16)
fn main(at: Invocation) {
    let lanes = (params.outputs + 3u) / 4u;
    let item = flat_workgroup(at) * 16u + at.local;
    let unit = item / lanes;
    let first = (item % lanes) * 4u;
    if unit >= params.units {
        return;
    }
    // Outputs past the end repeat the last one; emit drops them.
    let last = params.outputs - 1u;
    var sum = vec4<f32>(0.0);
    for (var j = 0u; j < params.routes_each; j++) {
        let route = unit * params.routes_each + j;
        let expert = expert_of(route);
        if expert < params.expert_count {
            let base = expert * params.outputs;
            let row0 = weight_row(base + first);
            let row1 = weight_row(base + min(first + 1u, last));
            let row2 = weight_row(base + min(first + 2u, last));
            let row3 = weight_row(base + min(first + 3u, last));
            let x_row = x_row_of(route);
            var part = vec4<f32>(0.0);
            for (var k = 0u; k < params.eights; k++) {
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
    for (var i = 0u; i < 4u; i++) {
        emit(unit, first + i, sum[i]);
    }
}
