// Reads and widens weights of a row, eight at a time. The importing shader binds `weight` as array<vec4<u32>>, or with
// TEXELS as an image of such vectors. Its params have row_vectors and, for quantized formats, plane, scales and supers:
// the starts of the sections of a row (defined by plan/format/weight.rs), in vectors.
struct Eight {
    low: vec4<f32>,
    high: vec4<f32>,
}

#ifdef TEXELS
#import texel
fn weight_vector(index: u32) -> vec4<u32> {
    return textureLoad(weight, texel(index));
}
#else
fn weight_vector(index: u32) -> vec4<u32> {
    return weight[index];
}
#endif

// First vector of a row.
fn weight_row(row: u32) -> u32 {
    return row * params.row_vectors;
}

// 32 columns of a row as they are stored: `Columns`, loaded by weight_columns and widened eight at a time.
#ifdef GROUPS
#import weight_group
alias Columns = Group;

fn weight_columns(row: u32, index: u32) -> Columns {
    return weight_group(row, index);
}

fn columns_eight(columns: Columns, part: u32) -> Eight {
    return group_eight(columns, part);
}

fn weight_eight(row: u32, k: u32) -> Eight {
    return group_eight(weight_group(row, k >> 2u), k & 3u);
}
#else
#ifdef WEIGHT_F32
alias EightWords = array<vec4<u32>, 2>;

fn eight_words(row: u32, k: u32) -> EightWords {
    return EightWords(weight_vector(row + 2u * k), weight_vector(row + 2u * k + 1u));
}

fn widened(words: EightWords) -> Eight {
    return Eight(bitcast<vec4<f32>>(words[0]), bitcast<vec4<f32>>(words[1]));
}
#else
alias EightWords = vec4<u32>;

fn eight_words(row: u32, k: u32) -> EightWords {
    return weight_vector(row + k);
}
#endif
#ifdef WEIGHT_F16
#import half
fn widened(words: EightWords) -> Eight {
    let low = vec4<f32>(unpack_halves(words.x), unpack_halves(words.y));
    return Eight(low, vec4<f32>(unpack_halves(words.z), unpack_halves(words.w)));
}
#endif
#ifdef WEIGHT_BF16
fn widened(words: EightWords) -> Eight {
    let even = bitcast<vec4<f32>>(words << vec4<u32>(16u));
    let odd = bitcast<vec4<f32>>(words & vec4<u32>(0xffff0000u));
    return Eight(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}
#endif

alias Columns = array<EightWords, 4>;

// Columns past the end repeat the last eight.
fn weight_columns(row: u32, index: u32) -> Columns {
    let first = 4u * index;
    let last = params.eights - 1u;
    return Columns(
        eight_words(row, min(first, last)),
        eight_words(row, min(first + 1u, last)),
        eight_words(row, min(first + 2u, last)),
        eight_words(row, min(first + 3u, last)),
    );
}

fn columns_eight(columns: Columns, part: u32) -> Eight {
    return widened(columns[part]);
}

fn weight_eight(row: u32, k: u32) -> Eight {
    return widened(eight_words(row, k));
}

fn fill_levels(local: u32) {}
#endif
