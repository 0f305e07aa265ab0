// Sums and maxima over 8 neighbouring lanes of a subgroup by shuffles: on CPU drivers a shuffle is one instruction,
// while subgroupAdd and subgroupMax loop over the lanes.

// Sums over lane pairs at `distance`: the lower lane of a pair gets the sum of `even`, the upper lane that of `odd`.
// Applied at distances 1, 2, 4 to 8, 4, 2 values, it gives lane i the total of value i.
fn halve(lane: u32, distance: u32, even: f32, odd: f32) -> f32 {
    let is_upper = (lane & distance) != 0u;
    return select(even, odd, is_upper) + subgroupShuffleXor(select(odd, even, is_upper), distance);
}

// Lane i gets the sum of value i over all lanes, for eight values: four in `low` and four in `high`.
fn lane_sum(lane: u32, low: vec4<f32>, high: vec4<f32>) -> f32 {
    let first = halve(lane, 2u, halve(lane, 1u, low.x, low.y), halve(lane, 1u, low.z, low.w));
    let second = halve(lane, 2u, halve(lane, 1u, high.x, high.y), halve(lane, 1u, high.z, high.w));
    return halve(lane, 4u, first, second);
}

fn lanes_sum(value: f32) -> f32 {
    let pairs = value + subgroupShuffleXor(value, 1u);
    let quads = pairs + subgroupShuffleXor(pairs, 2u);
    return quads + subgroupShuffleXor(quads, 4u);
}

fn lanes_max(value: f32) -> f32 {
    let pairs = max(value, subgroupShuffleXor(value, 1u));
    let quads = max(pairs, subgroupShuffleXor(pairs, 2u));
    return max(quads, subgroupShuffleXor(quads, 4u));
}
