// A group of 32 quantized weights: codes in one or two planes, a * level(code) + b.
// Defines: CODES_1, CODES_2, CODES_4 or CODES_8; ONE_MORE_AT or TWO_MORE_AT (bit) for a second plane.
#import weight_levels
#import weight_scales

struct Group {
    codes: vec4<u32>,
    more: vec4<u32>,  // second plane; for byte codes, the second half
    scale: vec4<f32>, // a and b of the first 16 weights, a and b of the last
}

// Words 2 * index and 2 * index + 1 of a section.
fn section_pair(start: u32, index: u32) -> vec2<u32> {
    let both = weight_vector(start + (index >> 1u));
    return select(both.xy, both.zw, (index & 1u) != 0u);
}

fn weight_group(row: u32, group: u32) -> Group {
    var loaded: Group;
#ifdef CODES_8
    loaded.codes = weight_vector(row + 2u * group);
    loaded.more = weight_vector(row + 2u * group + 1u);
#endif
#ifdef CODES_4
    loaded.codes = weight_vector(row + group);
#endif
#ifdef CODES_2
    loaded.codes = vec4<u32>(section_pair(row, group), 0u, 0u);
#endif
#ifdef CODES_1
    loaded.codes.x = section_word(row, group);
#endif
#ifdef ONE_MORE_AT
    loaded.more.x = section_word(row + params.plane, group);
#endif
#ifdef TWO_MORE_AT
    loaded.more = vec4<u32>(section_pair(row + params.plane, group), 0u, 0u);
#endif
    loaded.scale = scale_of(scale_bits(row, group), super_units(row, group >> 3u));
    return loaded;
}

// Spreads four pairs of bits, the lowest of a word, over the bytes of a word.
fn spread_pairs(bits: u32) -> u32 {
    let halves = (bits | (bits << 12u)) & 0x000f000fu;
    return (halves | (halves << 6u)) & 0x03030303u;
}

// Spreads four bits, the lowest of a word, over the bytes of a word.
fn spread_bits(bits: u32) -> u32 {
    let halves = (bits | (bits << 14u)) & 0x00030003u;
    return (halves | (halves << 7u)) & 0x01010101u;
}

// Codes 8 * part to 8 * part + 7 of a group, one per byte. The sign bit of signed bytes is flipped, which gives an
// unsigned code and the OFFSET 128.
fn code_bytes(group: Group, part: u32) -> vec2<u32> {
#ifdef CODES_8
    let half = select(group.codes, group.more, part >= 2u);
    var bytes = select(half.xy, half.zw, (part & 1u) != 0u);
#ifdef LEVELS_SIGNED
    bytes ^= vec2<u32>(0x80808080u);
#endif
#endif
#ifdef CODES_4
    let word = group.codes[part];
    var bytes = vec2<u32>(word, word >> 4u) & vec2<u32>(0x0f0f0f0fu);
#endif
#ifdef CODES_2
    let word = select(group.codes.x, group.codes.y, part >= 2u) >> (16u * (part & 1u));
    var bytes = vec2<u32>(spread_pairs(word & 0xffu), spread_pairs((word >> 8u) & 0xffu));
#endif
#ifdef CODES_1
    let ones = group.codes.x >> (8u * part);
    var bytes = vec2<u32>(spread_bits(ones & 0xfu), spread_bits((ones >> 4u) & 0xfu));
#endif
#ifdef ONE_MORE_AT
    let bits = group.more.x >> (8u * part);
    bytes |= vec2<u32>(spread_bits(bits & 0xfu), spread_bits((bits >> 4u) & 0xfu)) << vec2<u32>(ONE_MORE_AT);
#endif
#ifdef TWO_MORE_AT
    let pairs = select(group.more.x, group.more.y, part >= 2u) >> (16u * (part & 1u));
    let more = vec2<u32>(spread_pairs(pairs & 0xffu), spread_pairs((pairs >> 8u) & 0xffu));
    bytes |= more << vec2<u32>(TWO_MORE_AT);
#endif
    return bytes;
}

// Codes 8 * part to 8 * part + 7 of a group as levels, before scaling.
fn group_levels(group: Group, part: u32) -> Eight {
    let bytes = code_bytes(group, part);
    let places = vec4<u32>(0u, 8u, 16u, 24u);
    let low = (vec4<u32>(bytes.x) >> places) & vec4<u32>(0xffu);
    let high = (vec4<u32>(bytes.y) >> places) & vec4<u32>(0xffu);
    return Eight(levels(low), levels(high));
}

// Weights 8 * part to 8 * part + 7 of a group.
fn group_eight(group: Group, part: u32) -> Eight {
    let scale = select(group.scale.xy, group.scale.zw, part >= 2u);
    let codes = group_levels(group, part);
    return Eight(codes.low * scale.x + scale.y, codes.high * scale.x + scale.y);
}

// The group with its halves exchanged.
fn other_half(group: Group) -> Group {
    var other = group;
#ifdef CODES_8
    other.codes = group.more;
    other.more = group.codes;
#endif
#ifdef CODES_4
    other.codes = group.codes.zwxy;
#endif
#ifdef CODES_2
    other.codes = group.codes.yxzw;
#endif
#ifdef CODES_1
    other.codes.x = (group.codes.x >> 16u) | (group.codes.x << 16u);
#endif
#ifdef ONE_MORE_AT
    other.more.x = (group.more.x >> 16u) | (group.more.x << 16u);
#endif
#ifdef TWO_MORE_AT
    other.more = group.more.yxzw;
#endif
    other.scale = group.scale.zwxy;
    return other;
}
