// Parts of a row that a workgroup surveys or draws from: one record each, of the largest key (BAD_KEY if a logit is
// bad) and its lowest id, the largest keys of PART_MAXIMA subsets of the part and, for an open row, the largest score
// and its id.
// Numbers: PART_WORDS, of a record; PART_MAXIMA.

const PART_SCORE: u32 = 2u + PART_MAXIMA;
const BAD_KEY: u32 = 0xffffffffu;

struct Params {
    rows: u32,
    row_first: u32, // first row, among the sample rows of the batch
    logits_first: u32, // first logits row of this run
    vocab: u32,
    parts: u32, // of a row
    part_fours: u32, // groups of four logits in a part
    parts_first: u32, // row_first, among the rows that have parts
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;

// The record of part `part` of row `index` of this dispatch.
fn part_at(index: u32, part: u32) -> u32 {
    return ((params.parts_first + index) * params.parts + part) * PART_WORDS;
}
