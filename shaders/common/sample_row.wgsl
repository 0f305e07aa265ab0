// Shared by all phases of the sampler: bindings, a row's keys, and values computed by the whole workgroup.
// Numbers: WORKGROUP. Variants: ADJUST (keys come from the scratch rows, after bias, penalties and mask).

#import sample

struct Params {
    rows: u32,
    row_first: u32, // first row, among the sample rows of the batch
    logits_first: u32, // first logits row of this run
    vocab: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<u32>;
@group(0) @binding(3) var<storage, read_write> scratch: array<u32>;
@group(0) @binding(4) var<storage, read_write> feed: array<u32>;
@group(0) @binding(5) var<storage, read_write> results: array<u32>;

var<workgroup> best_key: atomic<u32>;
var<workgroup> best_id: atomic<u32>;
var<workgroup> shared_words: vec4<u32>;

// The row that the workgroup processes.
struct Row {
    index: u32, // index of the sample row in the batch
    vocab: u32, // 0 for a workgroup without a row
    logits: u32, // first word in logits
    scratch: u32, // first word in scratch
}

fn raw_key(row: Row, id: u32) -> u32 {
    return key_of(logits[row.logits + id]);
}

fn key_at(row: Row, id: u32) -> u32 {
#ifdef ADJUST
    return scratch[row.scratch + id];
#else
    return raw_key(row, id);
#endif
}

// Broadcasts the value of invocation 0 to all invocations.
fn share(local: u32, words: vec4<u32>) -> vec4<u32> {
    if local == 0u {
        shared_words = words;
    }
    return workgroupUniformLoad(&shared_words);
}

// The largest key of all invocations, and the lowest id with that key.
fn best_of(local: u32, key: u32, id: u32) -> vec2<u32> {
    if local == 0u {
        atomicStore(&best_key, 0u);
        atomicStore(&best_id, NONE);
    }
    workgroupBarrier();
    atomicMax(&best_key, key);
    workgroupBarrier();
    if atomicLoad(&best_key) == key {
        atomicMin(&best_id, id);
    }
    workgroupBarrier();
    return share(local, vec4<u32>(atomicLoad(&best_key), atomicLoad(&best_id), 0u, 0u)).xy;
}
