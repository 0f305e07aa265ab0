// Levels of the codes of a quantized weight, for codes below 256.
// LEVEL_TABLE: a table in workgroup memory, for GPUs; every kernel calls fill_levels before its first weight.
// COMPUTED_LEVELS: without that table, from LEVEL_BYTES, LEVEL_FLOATS or bits.
#ifdef LEVEL_TABLE
var<workgroup> level_table: array<f32, 16>;

fn levels(codes: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(level_table[codes.x], level_table[codes.y], level_table[codes.z], level_table[codes.w]);
}
#else
#ifdef COMPUTED_LEVELS
fn levels(codes: vec4<u32>) -> vec4<f32> {
    return computed_levels(codes);
}
#else
#ifdef LEVELS_E4M3
// The bias of the exponent is changed from 7 to 127. That makes 2^-6 + m / 512 of a subnormal m / 512: twice that,
// minus 2^-5, is the smaller one of the two only for subnormals.
fn levels(codes: vec4<u32>) -> vec4<f32> {
    let bits = (codes & vec4<u32>(0x7fu)) << vec4<u32>(20u);
    let normal = bitcast<vec4<f32>>(bits + vec4<u32>(0x3c000000u));
    let magnitude = min(normal, fma(normal, vec4<f32>(2.0), vec4<f32>(-0.015625)));
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(magnitude) | ((codes & vec4<u32>(0x80u)) << vec4<u32>(24u)));
}
#else
fn levels(codes: vec4<u32>) -> vec4<f32> {
#ifdef BYTE_CONVERSION
    return vec4<f32>(codes);
#else
    return vec4<f32>(bitcast<vec4<i32>>(codes));
#endif
}
#endif
#endif
#endif

// Levels as four signed bytes per word; plan/format/weight.rs lists them.
#ifdef LEVELS_IQ4
const LEVEL_WORDS = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
#endif
#ifdef LEVELS_SIGN
const LEVEL_WORDS = vec4<u32>(0x000001ffu, 0x00000000u, 0x00000000u, 0x00000000u);
#endif
#ifdef LEVELS_IQ1
const LEVEL_WORDS = vec4<u32>(0x01fff9f7u, 0x00000907u, 0x00000000u, 0x00000000u);
#endif
#ifdef LEVELS_IQ2
const LEVEL_WORDS = vec4<u32>(0x08f8e7d5u, 0x00002b19u, 0x00000000u, 0x00000000u);
#endif
#ifdef LEVELS_IQ3_XXS
const LEVEL_WORDS = vec4<u32>(0xeeeae6e1u, 0xfefaf6f2u, 0x0e0a0602u, 0x1f1a1612u);
#endif
#ifdef LEVELS_IQ3_S
const LEVEL_WORDS = vec4<u32>(0xf7f5f3f1u, 0xfffdfbf9u, 0x07050301u, 0x0f0d0b09u);
#endif
#ifdef LEVEL_BYTES
fn computed_levels(codes: vec4<u32>) -> vec4<f32> {
    let second = (codes & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(LEVEL_WORDS.x), vec4<u32>(LEVEL_WORDS.y), second);
    let high = select(vec4<u32>(LEVEL_WORDS.z), vec4<u32>(LEVEL_WORDS.w), second);
    let word = select(low, high, codes >= vec4<u32>(8u));
    let place = vec4<u32>(24u) - ((codes & vec4<u32>(3u)) << vec4<u32>(3u));
    return vec4<f32>(bitcast<vec4<i32>>(word << place) >> vec4<u32>(24u));
}
#endif
#ifdef LEVELS_NF4
var<private> float_levels: array<f32, 16> = array<f32, 16>(
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
);
#endif
#ifdef LEVELS_FP4
var<private> float_levels: array<f32, 16> = array<f32, 16>(
    0.0, 0.0052083334885537624, 0.6666666865348816, 1.0,
    0.3333333432674408, 0.5, 0.1666666716337204, 0.25,
    0.0, -0.0052083334885537624, -0.6666666865348816, -1.0,
    -0.3333333432674408, -0.5, -0.1666666716337204, -0.25,
);
#endif
#ifdef LEVEL_FLOATS
fn computed_levels(codes: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(float_levels[codes.x], float_levels[codes.y], float_levels[codes.z], float_levels[codes.w]);
}
#endif
#ifdef LEVELS_E2M1
// Twice 0 0.5 1 1.5 2 3 4 6, four bits each; bit 3 of a code is the sign.
fn computed_levels(codes: vec4<u32>) -> vec4<f32> {
    let place = (codes & vec4<u32>(7u)) << vec4<u32>(2u);
    let magnitude = vec4<f32>((vec4<u32>(0xc8643210u) >> place) & vec4<u32>(15u));
    return select(magnitude, -magnitude, codes >= vec4<u32>(8u));
}
#endif

// Fills the table, if there is one. In uniform control flow; a barrier comes before the first weight.
fn fill_levels(local: u32) {
#ifdef LEVEL_TABLE
    if local < 4u {
        let first = 4u * local;
        let four = computed_levels(vec4<u32>(first, first + 1u, first + 2u, first + 3u));
        level_table[first] = four.x;
        level_table[first + 1u] = four.y;
        level_table[first + 2u] = four.z;
        level_table[first + 3u] = four.w;
    }
    workgroupBarrier();
#endif
}
