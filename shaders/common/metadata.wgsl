// The batch metadata. The importing shader binds `metadata` as array<u32>, or with TEXELS as an image of four words per
// texel. The table in backend/metadata.rs defines its layout; the table's numbers are constants here.
#constants

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
