// The norms of rope_store_kv: of a head of q, k or v, or of all heads of a row. They use the importer's `Unit`,
// `qkv_vector` and `weight_vector`. Variants: NORM, TEXELS.
#ifdef TEXELS
#import lanes
#endif

fn inverse_rms(base: u32, vectors: u32, epsilon: f32, lane: u32) -> f32 {
    var sum = 0.0;
#ifdef TEXELS
    for (var i = lane & 7u; i < vectors; i += 8u) {
        let x = qkv_vector(base + i);
        sum += dot(x, x);
    }
    sum = lanes_sum(sum);
#else
    for (var i = 0u; i < vectors; i++) {
        let x = qkv[base + i];
        sum += dot(x, x);
    }
#endif
    return inverseSqrt(sum / f32(vectors * 4u) + epsilon);
}

#ifdef NORM
fn norm_weight(unit: Unit, vector: u32) -> vec4<f32> {
    return weight_vector(unit.norm_vector + vector, unit.is_key) + unit.offset;
}
#endif

// A vector of a head after its norm, or with the right length only if the norm's weights follow the rotation.
fn normed(unit: Unit, vector: u32) -> vec4<f32> {
    let x = qkv_vector(unit.base + vector);
#ifdef NORM
    if unit.is_normed {
        return x * unit.inverse * select(norm_weight(unit, vector), vec4<f32>(1.0), params.norm_after != 0u);
    }
#endif
    return x;
}
