// Position of vector `index` of a buffer in its image; see backend/wgpu/texels.rs.
fn texel(index: u32) -> vec2<u32> {
    return vec2<u32>(index & 4095u, index >> 12u);
}
