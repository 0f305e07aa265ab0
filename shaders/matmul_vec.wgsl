// out (=, +=) x * W^T + bias for one row of x: every weight is read once. Bound by memory bandwidth.
// Workgroup: 4 outputs; its invocations run over the columns with 16-byte loads and sum at the end.
// Variants: weight format, BIAS, SUBGROUPS, WORKGROUP. Twin: backend/reference/matmul.rs
#import matmul
#import weight
#import reduce

@compute @workgroup_size(WORKGROUP)
fn main(at: Invocation) {
    let output = 4u * flat_workgroup(at);
    // Outputs past the end read the last row again; emit drops them.
    let last = params.outputs - 1u;
    let row0 = weight_row(min(output, last));
    let row1 = weight_row(min(output + 1u, last));
    let row2 = weight_row(min(output + 2u, last));
    let row3 = weight_row(min(output + 3u, last));
    var sum = vec4<f32>(0.0);
    for (var k = at.local; k < params.eights; k += WORKGROUP) {
        let low = x[2u * k];
        let high = x[2u * k + 1u];
        let w0 = weight_eight(row0, k);
        let w1 = weight_eight(row1, k);
        let w2 = weight_eight(row2, k);
        let w3 = weight_eight(row3, k);
        sum += vec4<f32>(dot(w0.low, low), dot(w1.low, low), dot(w2.low, low), dot(w3.low, low));
        sum += vec4<f32>(dot(w0.high, high), dot(w1.high, high), dot(w2.high, high), dot(w3.high, high));
    }
    let total = reduce_sum(at, sum);
    if at.local < 4u {
        emit(0u, output + at.local, total[at.local]);
    }
}
