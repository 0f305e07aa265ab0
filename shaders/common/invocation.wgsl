// Indices of an invocation. Workgroups are spread over x and y.
struct Invocation {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
#ifdef SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
#endif
}

fn flat_workgroup(at: Invocation) -> u32 {
    return at.workgroup.x + at.workgroup.y * at.workgroups.x;
}
