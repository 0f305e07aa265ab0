// Writes of K and V to the pool, at bindings 6 and 7. Variants: KV_F16, KV_CODES (the importer has THREADS), KV_FP8,
// TEXELS; LATENT: there are only keys, and binding 7 is the importer's.

#import kv_tile

#ifdef KV_CODES
// Stored as single words: a word of scales belongs to one slot, and adjacent slots are written at the same time.
@group(0) @binding(6) var<storage, read_write> k_pool: array<u32>;
#ifndef LATENT
@group(0) @binding(7) var<storage, read_write> v_pool: array<u32>;
#endif

// Bits of 1e-30: a row whose magnitudes are all below this is stored as zeros.
const ROW_MIN: u32 = 0x0da24260u;

// The largest magnitude of a run, as bits, which have the same order as the numbers, with NaN above everything.
fn magnitude(run: Run) -> u32 {
    let sign = vec4<u32>(0x7fffffffu);
    let four = max(bitcast<vec4<u32>>(run.low) & sign, bitcast<vec4<u32>>(run.high) & sign);
    return max(max(four.x, four.y), max(four.z, four.w));
}

#ifdef TEXELS
// Maximum over the 8 lanes of a unit.
fn unit_largest(own: u32, local: u32, lanes: u32) -> u32 {
    let pairs = max(own, subgroupShuffleXor(own, 1u));
    let quads = max(pairs, subgroupShuffleXor(pairs, 2u));
    return max(quads, subgroupShuffleXor(quads, 4u));
}
#else
var<workgroup> largests: array<u32, THREADS>;

// Maximum over the threads of a unit; `lanes` divides the workgroup size.
fn unit_largest(own: u32, local: u32, lanes: u32) -> u32 {
    largests[local] = own;
    workgroupBarrier();
    var largest = own;
    let first = local / lanes * lanes;
    for (var i = 0u; i < lanes; i++) {
        largest = max(largest, largests[first + i]);
    }
    return largest;
}
#endif

#ifdef KV_FP8
const CODE_MAX: f32 = 1.75;

// E4M3 with the exponent bias of half precision, rounded to nearest, ties to even.
fn codes_of(values: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(values);
    let magnitudes = bits & vec4<u32>(0x7fffffffu);
    // The exponent of 2^-14, the smallest normal magnitude, becomes 1, whose first code is 8.
    let odd = (magnitudes >> vec4<u32>(20u)) & vec4<u32>(1u);
    let normal = (magnitudes - vec4<u32>(0x38000000u) + vec4<u32>(0x7ffffu) + odd) >> vec4<u32>(20u);
    let subnormal = vec4<u32>(round(abs(values) * 131072.0));
    let codes = select(normal, subnormal, magnitudes < vec4<u32>(0x38800000u));
    return ((bits >> vec4<u32>(24u)) & vec4<u32>(0x80u)) | (codes & vec4<u32>(0x7fu));
}
#else
const CODE_MAX: f32 = 127.0;

fn codes_of(values: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(vec4<i32>(round(values))) & vec4<u32>(255u);
}
#endif

// The scale of a row, and the factor of its elements.
fn row_scale(largest: u32) -> vec2<f32> {
    let value = bitcast<f32>(max(largest, ROW_MIN));
    return select(vec2<f32>(value * (1.0 / CODE_MAX), CODE_MAX / value), vec2<f32>(), largest < ROW_MIN);
}

fn packed(four: vec4<f32>, inverse: f32) -> u32 {
    let codes = codes_of(four * inverse) << vec4<u32>(0u, 8u, 16u, 24u);
    return (codes.x | codes.y) | (codes.z | codes.w);
}

fn store(is_key: bool, at: u32, run: Run, inverse: f32) {
    let low = packed(run.low, inverse);
    let high = packed(run.high, inverse);
#ifdef LATENT
    k_pool[2u * at] = low;
    k_pool[2u * at + 1u] = high;
#else
    if is_key {
        k_pool[2u * at] = low;
        k_pool[2u * at + 1u] = high;
    } else {
        v_pool[2u * at] = low;
        v_pool[2u * at + 1u] = high;
    }
#endif
}

fn store_scale(is_key: bool, word: u32, scale: f32) {
#ifdef LATENT
    k_pool[word] = bitcast<u32>(scale);
#else
    if is_key {
        k_pool[word] = bitcast<u32>(scale);
    } else {
        v_pool[word] = bitcast<u32>(scale);
    }
#endif
}
#else
@group(0) @binding(6) var<storage, read_write> k_pool: array<vec4<u32>>;
#ifndef LATENT
@group(0) @binding(7) var<storage, read_write> v_pool: array<vec4<u32>>;
#endif

#ifdef KV_F16
#import half

fn store(is_key: bool, at: u32, run: Run) {
    let low = vec2<u32>(pack_halves(run.low.xy), pack_halves(run.low.zw));
    let words = vec4<u32>(low, pack_halves(run.high.xy), pack_halves(run.high.zw));
#ifdef LATENT
    k_pool[at] = words;
#else
    if is_key {
        k_pool[at] = words;
    } else {
        v_pool[at] = words;
    }
#endif
}
#else
fn store(is_key: bool, at: u32, run: Run) {
#ifdef LATENT
    k_pool[2u * at] = bitcast<vec4<u32>>(run.low);
    k_pool[2u * at + 1u] = bitcast<vec4<u32>>(run.high);
#else
    if is_key {
        k_pool[2u * at] = bitcast<vec4<u32>>(run.low);
        k_pool[2u * at + 1u] = bitcast<vec4<u32>>(run.high);
    } else {
        v_pool[2u * at] = bitcast<vec4<u32>>(run.low);
        v_pool[2u * at + 1u] = bitcast<vec4<u32>>(run.high);
    }
#endif
}
#endif
#endif
