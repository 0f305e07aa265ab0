// The batch: `metadata` is bound by the importing shader as array<u32>, or with TEXELS as an image of four words a
// texel. Header words; see backend/wgpu/metadata.rs.
const META_TOKEN_IDS: u32 = 4u;
const META_POSITIONS: u32 = 5u;
const META_SEQUENCES: u32 = 6u;
const META_LOGITS_ROWS: u32 = 7u;
const META_SAMPLES: u32 = 8u;
const META_HISTORY: u32 = 9u;
const META_BIAS: u32 = 10u;
const META_MASKS: u32 = 11u;
const META_POOLS: u32 = 12u;
// Relative to the header of a KV group, GROUP_HEADER + group * GROUP_WORDS, which arrives in the params.
const GROUP_TABLES: u32 = 0u;
const GROUP_TABLE_STARTS: u32 = 1u;
const GROUP_SLOTS: u32 = 2u;
const GROUP_COPIES: u32 = 3u;
const GROUP_COPY_COUNT: u32 = 4u;
const GROUP_WORK: u32 = 5u;

const NONE: u32 = 0xffffffffu;
const FEED: u32 = 0x80000000u;

#ifdef TEXELS
#import texel
fn metadata_word(index: u32) -> u32 {
    let words = textureLoad(metadata, texel(index >> 2u));
    let pair = select(words.xy, words.zw, (index & 2u) != 0u);
    return select(pair.x, pair.y, (index & 1u) != 0u);
}
#else
fn metadata_word(index: u32) -> u32 {
    return metadata[index];
}
#endif

// Element `index` of the array whose offset is in header word `header`.
fn metadata_at(header: u32, index: u32) -> u32 {
    return metadata_word(metadata_word(header) + index);
}
