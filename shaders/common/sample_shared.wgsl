// Values that a workgroup of the samplers computes together. Numbers: WORKGROUP.

#import share

var<workgroup> best_key: atomic<u32>;
var<workgroup> best_id: atomic<u32>;

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

// Parameters for the weights and scores of keys.
struct Scale {
    largest: f32,
    temperature: f32,
    lowest: f32, // d below this is excluded
}

fn scale_of(row: u32, largest_key: u32) -> Scale {
    let min_p = row_float(row, SAMPLE_MIN_P);
    let lowest = select(-3.0e38, log(max(min_p, 1e-37)), min_p > 0.0);
    return Scale(value_of(max(largest_key, KEY_LOWEST + 1u)), row_float(row, SAMPLE_TEMPERATURE), lowest);
}

fn distance_of(key: u32, scale: Scale) -> f32 {
    return (value_of(key) - scale.largest) / scale.temperature;
}

// The random words of tokens 4 · four to 4 · four + 3.
fn words_of(row: u32, four: u32) -> vec4<u32> {
    let seed = vec2<u32>(row_word(row, SAMPLE_SEED_LOW), row_word(row, SAMPLE_CHOICE));
    let counter = vec4<u32>(row_word(row, SAMPLE_POSITION), four, row_word(row, SAMPLE_SEED_HIGH), 0u);
    return philox(counter, seed);
}

// The score of a token in the draw, as a key; 0 if the token is not kept.
fn score_of(key: u32, floor: u32, word: u32, scale: Scale) -> u32 {
    let d = distance_of(max(key, KEY_LOWEST + 1u), scale);
    let score = key_of(bitcast<u32>(d + gumbel(word)));
    return select(0u, score, key >= floor && d >= scale.lowest);
}
