// How a run of 8 elements of K or V lies in the pool: one vector of packed halves (KV_F16), or two of f32 bits.
#ifdef KV_F16
#import half

const KV_VECTORS: u32 = 1u;

fn pack_kv(low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pack_halves(low.xy), pack_halves(low.zw), pack_halves(high.xy), pack_halves(high.zw));
}

fn kv_low(packed: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(unpack_halves(packed.x), unpack_halves(packed.y));
}

fn kv_high(packed: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(unpack_halves(packed.z), unpack_halves(packed.w));
}
#else
const KV_VECTORS: u32 = 2u;
#endif
