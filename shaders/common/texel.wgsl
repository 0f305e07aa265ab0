// Where vector `index` of a buffer stands in its view as an image; see backend/wgpu/texels.rs.
fn texel(index: u32) -> vec2<u32> {
    return vec2<u32>(index & 4095u, index >> 12u);
}
