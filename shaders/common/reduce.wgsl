// The sum of a vec4 over a workgroup of WORKGROUP invocations, returned to all of them. Only in uniform control flow,
// and once per kernel. T1: subgroups of any size sum first and store one value each in workgroup memory.
#import invocation

#ifdef SUBGROUPS
// T1 has subgroups of at least four invocations.
var<workgroup> reduce_partials: array<vec4<f32>, WORKGROUP / 4u>;

fn reduce_sum(at: Invocation, value: vec4<f32>) -> vec4<f32> {
    let sum = subgroupAdd(value);
    if at.subgroup_lane == 0u {
        reduce_partials[at.subgroup] = sum;
    }
    workgroupBarrier();
    // Every subgroup sums all partials, each lane its share. Not `subgroup_size`: some drivers fill only half of it.
    let lanes = WORKGROUP / at.subgroups;
    var total = vec4<f32>(0.0);
    for (var first = 0u; first < at.subgroups; first += lanes) {
        let index = first + at.subgroup_lane;
        if index < at.subgroups {
            total += reduce_partials[index];
        }
    }
    return subgroupAdd(total);
}
#else
var<workgroup> reduce_partials: array<vec4<f32>, WORKGROUP>;

fn reduce_sum(at: Invocation, value: vec4<f32>) -> vec4<f32> {
    reduce_partials[at.local] = value;
    workgroupBarrier();
    for (var stride = WORKGROUP / 2u; stride > 0u; stride >>= 1u) {
        if at.local < stride {
            reduce_partials[at.local] += reduce_partials[at.local + stride];
        }
        workgroupBarrier();
    }
    return reduce_partials[0];
}
#endif
