// Softmax of the gather-then-attend baseline, in place.
// scores[row] = exp(scores[row] - max) / sum
// One workgroup handles one row: a sequence and query head.
// No twin: used only by `folio bench`.

struct Params {
    context: u32,
    query_heads: u32,
    kv_heads: u32,
    chunks: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> scores: array<f32>;

var<workgroup> partial: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = workgroup.x * params.context;
    var largest = -3.0e38;
    for (var i = thread; i < params.context; i += 64u) {
        largest = max(largest, scores[row + i]);
    }
    partial[thread] = largest;
    workgroupBarrier();
    for (var i = 0u; i < 64u; i += 1u) {
        largest = max(largest, partial[i]);
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = thread; i < params.context; i += 64u) {
        let weight = exp(scores[row + i] - largest);
        scores[row + i] = weight;
        sum += weight;
    }
    partial[thread] = sum;
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < 64u; i += 1u) {
        total += partial[i];
    }
    for (var i = thread; i < params.context; i += 64u) {
        scores[row + i] = scores[row + i] / total;
    }
}
