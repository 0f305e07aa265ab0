// Reads of the pool, which the importer binds as k_pool and v_pool and reads by k_vector and v_vector (KV_CODES without
// TEXELS: the pools are array<vec2<u32>>, one run per element). A coded run consists of its codes: the scale of a row
// multiplies the row's score, or its probability, instead of every element. Variants: KV_F16, KV_CODES, KV_FP8, TEXELS.

#import kv_tile

#ifdef KV_CODES
#ifdef TEXELS
fn half_of(vector: vec4<u32>, run: u32) -> vec2<u32> {
    return select(vector.xy, vector.zw, (run & 1u) != 0u);
}

fn k_words(run: u32) -> vec2<u32> {
    return half_of(k_vector(run >> 1u), run);
}

fn v_words(run: u32) -> vec2<u32> {
    return half_of(v_vector(run >> 1u), run);
}
#else
fn k_words(run: u32) -> vec2<u32> {
    return k_pool[run];
}

fn v_words(run: u32) -> vec2<u32> {
    return v_pool[run];
}
#endif

// A run as it lies in the pool.
alias Packed = vec2<u32>;

fn packed_k(at: u32) -> Packed {
    return k_words(at);
}

fn packed_v(at: u32) -> Packed {
    return v_words(at);
}

#ifdef KV_FP8
#import half

// Two codes in the upper bytes of a word's halves: their sign, exponent and mantissa are the first bits of a half's.
fn widened_pair(codes: u32) -> vec2<f32> {
    return unpack_halves((codes & 0x80008000u) | ((codes & 0x7f007f00u) >> 1u));
}

fn widened(word: u32) -> vec4<f32> {
    let first = ((word << 8u) & 0xff00u) | ((word << 16u) & 0xff000000u);
    let last = ((word >> 8u) & 0xff00u) | (word & 0xff000000u);
    return vec4<f32>(widened_pair(first), widened_pair(last));
}
#else
fn widened(word: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}
#endif

fn unpacked(run: Packed) -> Run {
    return Run(widened(run.x), widened(run.y));
}

// The scale of a slot's row, in the tile that starts at run `tile`.
fn k_scale(tile: u32, slot: u32) -> f32 {
    let word = scale_word(tile, HEAD_CHUNKS, params.block_shift, slot);
    let pair = k_words(word >> 1u);
    return bitcast<f32>(select(pair.x, pair.y, (word & 1u) != 0u));
}

fn v_scale(tile: u32, slot: u32) -> f32 {
    let word = scale_word(tile, HEAD_CHUNKS, params.block_shift, slot);
    let pair = v_words(word >> 1u);
    return bitcast<f32>(select(pair.x, pair.y, (word & 1u) != 0u));
}
#else
#ifdef KV_F16
#import half

alias Packed = vec4<u32>;

fn packed_k(at: u32) -> Packed {
    return k_vector(at);
}

fn packed_v(at: u32) -> Packed {
    return v_vector(at);
}

fn unpacked(run: Packed) -> Run {
    let low = vec4<f32>(unpack_halves(run.x), unpack_halves(run.y));
    return Run(low, vec4<f32>(unpack_halves(run.z), unpack_halves(run.w)));
}
#else
alias Packed = Run;

fn packed_k(at: u32) -> Packed {
    return Run(bitcast<vec4<f32>>(k_vector(2u * at)), bitcast<vec4<f32>>(k_vector(2u * at + 1u)));
}

fn packed_v(at: u32) -> Packed {
    return Run(bitcast<vec4<f32>>(v_vector(2u * at)), bitcast<vec4<f32>>(v_vector(2u * at + 1u)));
}

fn unpacked(run: Packed) -> Run {
    return run;
}
#endif

// Without scales, the factor is 1, which compilers remove.
fn k_scale(tile: u32, slot: u32) -> f32 {
    return 1.0;
}

fn v_scale(tile: u32, slot: u32) -> f32 {
    return 1.0;
}
#endif

fn load_k(at: u32) -> Run {
    return unpacked(packed_k(at));
}

fn load_v(at: u32) -> Run {
    return unpacked(packed_v(at));
}
