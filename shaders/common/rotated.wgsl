// The rotation of rope_store_kv: a vector of a head after norm and rotation. It uses the importer's `normed`,
// `frequency`, `position_of` and `params`. Variants: ROPE_VECTORS.

#import rope_angles

#ifdef ROPE_VECTORS
// Each half is a whole number of vectors, so the partner of a vector is a vector.
fn rotated(unit: Unit, vector: u32) -> vec4<f32> {
    let own = normed(unit, vector);
    let half = params.rotary_dim >> 3u;
    if vector >= 2u * half {
        return own;
    }
    let is_first = vector < half;
    let other = normed(unit, select(vector - half, vector + half, is_first));
    let pair = select(vector - half, vector, is_first) * 4u;
    let direction = select(params.rope_scale, -params.rope_scale, is_first);
    var result: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let turn = cos_sin(position_of(unit, pair + i), frequency(pair + i));
        result[i] = own[i] * (turn.x * params.rope_scale) + other[i] * (turn.y * direction);
    }
    return result;
}
#else
// The other element of the pair of `element`; for interleaved pairs, it is in the same vector.
fn partner_of(unit: Unit, element: u32, own: vec4<f32>) -> f32 {
    if params.interleaved != 0u {
        return own[(element & 3u) ^ 1u];
    }
    let half = params.rotary_dim >> 1u;
    let partner = select(element - half, element + half, element < half);
    return normed(unit, partner >> 2u)[partner & 3u];
}

fn rotated(unit: Unit, vector: u32) -> vec4<f32> {
    let own = normed(unit, vector);
    let half = params.rotary_dim >> 1u;
    var result = own;
    for (var i = 0u; i < 4u; i++) {
        let element = vector * 4u + i;
        if element < params.rotary_dim {
            var pair = element >> 1u;
            var is_first = (element & 1u) == 0u;
            if params.interleaved == 0u {
                is_first = element < half;
                pair = select(element - half, element, is_first);
            }
            let other = partner_of(unit, element, own);
            let turn = cos_sin(position_of(unit, pair), frequency(pair)) * params.rope_scale;
            result[i] = own[i] * turn.x + select(other, -other, is_first) * turn.y;
        }
    }
    return result;
}
#endif
