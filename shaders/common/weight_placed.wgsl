// Codes of a group left at their bit positions, for CPU cores, where a shift costs as much as a multiplication: code i
// of eight is 2^place times too large, and the matching element of x is multiplied by PLACES_*, which is exact.
// Codes of other formats than these cannot be extracted by a mask alone; they use group_levels.
#import weight_group

#ifdef PLACED_NIBBLES
const PLACES_LOW = vec4<f32>(1.0, 0.00390625, 0.0000152587890625, 0.000000059604644775390625);
const PLACES_HIGH = vec4<f32>(0.0625, 0.000244140625, 0.00000095367431640625, 1.0);

fn placed_levels(group: Group, part: u32) -> Eight {
    let word = group.codes[part];
    let low = vec4<u32>(word) & vec4<u32>(0xfu, 0xf00u, 0xf0000u, 0xf000000u);
    // The last code would become the sign of an integer.
    let high = vec4<u32>(vec3<u32>(word) & vec3<u32>(0xf0u, 0xf000u, 0xf00000u), word >> 28u);
    return Eight(vec4<f32>(bitcast<vec4<i32>>(low)), vec4<f32>(bitcast<vec4<i32>>(high)));
}
#else
#ifdef PLACED_BYTES
const PLACES_LOW = vec4<f32>(1.0, 0.00390625, 0.0000152587890625, 1.0);
const PLACES_HIGH = PLACES_LOW;

fn placed_levels(group: Group, part: u32) -> Eight {
    let words = code_bytes(group, part);
    let masks = vec3<u32>(0xffu, 0xff00u, 0xff0000u);
    let low = vec4<u32>(vec3<u32>(words.x) & masks, words.x >> 24u);
    let high = vec4<u32>(vec3<u32>(words.y) & masks, words.y >> 24u);
    return Eight(vec4<f32>(bitcast<vec4<i32>>(low)), vec4<f32>(bitcast<vec4<i32>>(high)));
}
#else
const PLACES_LOW = vec4<f32>(1.0);
const PLACES_HIGH = PLACES_LOW;

fn placed_levels(group: Group, part: u32) -> Eight {
    return group_levels(group, part);
}
#endif
#endif
