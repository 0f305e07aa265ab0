// Sample rows in the metadata, keys that order as logits do, and records in the results.

#import metadata

const ROW_WORDS: u32 = 24u;
const ROW_LOGITS: u32 = 0u;
const ROW_FEED: u32 = 1u;
const ROW_SEED: u32 = 2u; // low word, then high
const ROW_CHOICE: u32 = 4u;
const ROW_POSITION: u32 = 5u;
const ROW_TEMPERATURE: u32 = 6u;
const ROW_TOP_K: u32 = 7u;
const ROW_TOP_P: u32 = 8u;
const ROW_MIN_P: u32 = 9u;
const ROW_REPETITION: u32 = 10u;
const ROW_PRESENCE: u32 = 11u;
const ROW_FREQUENCY: u32 = 12u;
const ROW_HISTORY: u32 = 13u; // start, then length
const ROW_PENDING: u32 = 15u;
const ROW_BIAS: u32 = 16u; // start, then length
const ROW_MASK: u32 = 18u;
const ROW_LOGPROB: u32 = 19u;
const ROW_TOP: u32 = 20u;
const ROW_GIVEN: u32 = 21u;

const TOP_MAX: u32 = 20u;
const RESULT_WORDS: u32 = 42u; // id, logprob, TOP_MAX ids, TOP_MAX logprobs
const NUMERICAL_ERROR: u32 = 0xffffffffu;
const KEY_LOWEST: u32 = 0x007fffffu; // −∞

fn row_word(row: u32, word: u32) -> u32 {
    return metadata_at(META_SAMPLES, row * ROW_WORDS + word);
}

fn row_float(row: u32, word: u32) -> f32 {
    return bitcast<f32>(row_word(row, word));
}

// Greedy, and nothing else: such rows are drawn by sample_argmax.
fn is_plain(row: u32) -> bool {
    let is_penalised = row_float(row, ROW_REPETITION) != 1.0 || row_float(row, ROW_PRESENCE) != 0.0
        || row_float(row, ROW_FREQUENCY) != 0.0;
    let is_reported = row_word(row, ROW_LOGPROB) != 0u || row_word(row, ROW_TOP) != 0u;
    return row_float(row, ROW_TEMPERATURE) == 0.0 && !is_penalised && !is_reported
        && row_word(row, ROW_BIAS + 1u) == 0u && row_word(row, ROW_MASK) == NONE && row_word(row, ROW_GIVEN) == NONE;
}

// NaN or +∞, told by bits: a device may assume that there are none.
fn is_bad(bits: u32) -> bool {
    return (bits & 0x7fffffffu) >= 0x7f800000u && bits != 0xff800000u;
}

// A u32 that orders as the float of these bits does; zeros and subnormals are one.
fn key_of(bits: u32) -> u32 {
    let flushed = select(bits, 0u, (bits & 0x7f800000u) == 0u);
    return flushed ^ select(0x80000000u, 0xffffffffu, (flushed >> 31u) == 1u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, (key >> 31u) == 1u));
}
