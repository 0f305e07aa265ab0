// A value of invocation 0 for all invocations of a workgroup. Loops with barriers whose bounds it gives are uniform,
// also for compilers that do not tell the members of a struct apart.
//
// Apple's compiler may drop the barrier before the load if only one invocation has ever written the variable
// (wgpu issue 4500): so it is initialized, with a barrier of its own.
var<workgroup> shared_words: vec4<u32>;

fn share(local: u32, words: vec4<u32>) -> vec4<u32> {
    if local == 0u {
        shared_words = vec4<u32>();
    }
    workgroupBarrier();
    if local == 0u {
        shared_words = words;
    }
    return workgroupUniformLoad(&shared_words);
}
