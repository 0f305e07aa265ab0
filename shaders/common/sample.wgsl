// Sample rows in the metadata, keys that order as logits do, and records in the results.

#import metadata

const KEY_LOWEST: u32 = 0x007fffffu; // −∞

fn row_word(row: u32, word: u32) -> u32 {
    return metadata_at(META_SAMPLES, row * SAMPLE_WORDS + word);
}

fn row_float(row: u32, word: u32) -> f32 {
    return bitcast<f32>(row_word(row, word));
}

// Plain greedy rows, which have no other option; sample_merge draws them.
fn is_plain(row: u32) -> bool {
    let is_penalised = row_float(row, SAMPLE_REPETITION_PENALTY) != 1.0
        || row_float(row, SAMPLE_PRESENCE_PENALTY) != 0.0 || row_float(row, SAMPLE_FREQUENCY_PENALTY) != 0.0;
    let is_reported = row_word(row, SAMPLE_LOGPROB) != 0u || row_word(row, SAMPLE_TOP_LOGPROBS) != 0u;
    return row_float(row, SAMPLE_TEMPERATURE) == 0.0 && !is_penalised && !is_reported
        && row_word(row, SAMPLE_BIAS_LEN) == 0u && row_word(row, SAMPLE_MASK_START) == NONE
        && row_word(row, SAMPLE_SCORED_TOKEN) == NONE;
}

// Whether a logit is NaN or +∞, tested by bits: a device may assume that neither occurs.
fn is_bad(bits: u32) -> bool {
    return (bits & 0x7fffffffu) >= 0x7f800000u && bits != 0xff800000u;
}

// Maps the bits of a float to a u32 with the same order; zeros and subnormals are equal.
fn key_of(bits: u32) -> u32 {
    let flushed = select(bits, 0u, (bits & 0x7f800000u) == 0u);
    return flushed ^ select(0x80000000u, 0xffffffffu, (flushed >> 31u) == 1u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, (key >> 31u) == 1u));
}

// Rows that are drawn from their whole vocabulary: neither greedy nor scored, without top-k and top-p.
fn is_open(row: u32, vocab: u32) -> bool {
    let top_k = row_word(row, SAMPLE_TOP_K);
    return row_float(row, SAMPLE_TEMPERATURE) != 0.0 && row_word(row, SAMPLE_SCORED_TOKEN) == NONE
        && (top_k == 0u || top_k >= vocab) && share_of(row) >= 1048576u;
}

// top-p as a multiple of 2⁻²⁰.
fn share_of(row: u32) -> u32 {
    return u32(min(row_float(row, SAMPLE_TOP_P), 1.0) * 1048576.0 + 0.5);
}
