// out[t] (=, +=) table[id(t)] * scale. id(t) is the token id, where one with the FEED bit is looked up in the feed
// slots; or, by params, the position, which text of a pair the token belongs to, or the row of an image that it stands
// for. Rows without such an id are left as they are.
// One dispatch per shard of the table; a row is written by the shard that contains it. Invocation: 8 elements.
// An id outside the table (sampled by the device from a failed row) gives zeros, written by the first shard.
// Variants: weight format, TEXELS (metadata and table are read as images). Twin: backend/reference/embed.rs
#import invocation
#import metadata
#import weight

struct Params {
    tokens: u32,
    eights: u32,      // columns / 8
    row_start: u32,   // first table row of this shard
    rows: u32,        // table rows of this shard
    vocab: u32,       // table rows of all shards
    scale: f32,
    id: u32,          // ID_POSITION, ID_TEXT, ID_IMAGE, or 0 for the token
    id_first: u32,    // table row of position 0
    accumulate: u32,
    row_vectors: u32, // of the table; this and the following fields: see weight.wgsl
    plane: u32,
    scales: u32,
    supers: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
#ifdef TEXELS
@group(0) @binding(1) var metadata: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(3) var weight: texture_storage_2d<rgba32uint, read>;
#else
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(3) var<storage, read> weight: array<vec4<u32>>;
#endif
@group(0) @binding(2) var<storage, read> feed: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

const ID_POSITION: u32 = 1u;
const ID_TEXT: u32 = 2u;
const ID_IMAGE: u32 = 3u;

@compute @workgroup_size(64)
fn main(at: Invocation) {
    fill_levels(at.local);
    let item = flat_workgroup(at) * 64u + at.local;
    let token = item / params.eights;
    let eight = item - token * params.eights;
    if token >= params.tokens {
        return;
    }
    var id = metadata_at(META_TOKEN_IDS, token);
    let is_fed = (id & FEED) != 0u;
    let is_image = (id & (FEED | IMAGE_ROW)) == IMAGE_ROW;
    if (is_image && params.id == 0u) || (!is_image && params.id == ID_IMAGE) {
        return;
    }
    if params.id == ID_IMAGE {
        id &= ~IMAGE_ROW;
    } else if params.id == ID_POSITION {
        id = metadata_at(META_POSITIONS, token) + params.id_first;
    } else if params.id == ID_TEXT {
        id = select(0u, 1u, !is_fed && (id & SECOND_TEXT) != 0u);
    } else if is_fed {
        id = feed[id & ~FEED];
    } else {
        id &= ~SECOND_TEXT;
    }
    if id >= params.vocab {
        if params.row_start == 0u && params.accumulate == 0u {
            out[2u * item] = vec4<f32>(0.0);
            out[2u * item + 1u] = vec4<f32>(0.0);
        }
        return;
    }
    let row = id - params.row_start; // wraps for rows of earlier shards
    if row >= params.rows {
        return;
    }
    let values = weight_eight(weight_row(row), eight);
    var low = values.low * params.scale;
    var high = values.high * params.scale;
    if params.accumulate != 0u {
        low += out[2u * item];
        high += out[2u * item + 1u];
    }
    out[2u * item] = low;
    out[2u * item + 1u] = high;
}
