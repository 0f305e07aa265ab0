// Exact thresholds by radix search: a histogram of 256 bins per byte of the key, from the highest byte down.

#import sample_row
#import share
#import wide

// Sums per bin of weights of at most 2²⁴, in two parts of 12 bits, so that 2¹⁹ of them fit a word.
var<workgroup> bins_low: array<atomic<u32>, 256>;
var<workgroup> bins_high: array<atomic<u32>, 256>;
var<workgroup> bin_groups: array<vec2<u32>, 16>;

// Where keys come from.
const ADJUSTED: u32 = 0u; // the row
const RAW: u32 = 1u; // the row, without bias, penalties and mask
const LISTED: u32 = 2u; // list_keys, whatever they are
var<workgroup> list_keys: array<u32, LIST>;

// The input and target of a threshold search.
struct Selection {
    source: u32,
    listed: u32, // number of listed keys
    floor: u32, // keys below this are excluded
    is_weighted: bool, // sum exp(d) · 2²⁴, else count keys
    share: u32, // if not 0: the sum must reach share / 2²⁰ of the total
    sum: vec2<u32>, // otherwise, the sum to reach
}

// A search for the key that `count` keys, whatever they weigh, are not below.
fn any_of(source: u32, listed: u32, count: u32) -> Selection {
    return Selection(source, listed, KEY_LOWEST + 1u, false, 0u, vec2<u32>(count, 0u));
}

fn add_wide(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn is_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn subtract_wide(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn bin_sum(bin: u32) -> vec2<u32> {
    let high = atomicLoad(&bins_high[bin]);
    return add_wide(vec2<u32>(high << 12u, high >> 20u), vec2<u32>(atomicLoad(&bins_low[bin]), 0u));
}

// ⌈total · share / 2²⁰⌉ for total < 2⁴⁴, share ≤ 2²⁰.
fn part_of(total: vec2<u32>, share: u32) -> vec2<u32> {
    let low = wide_mul(total.x, share);
    let product = add_wide(vec2<u32>(low.x, low.y + total.y * share), vec2<u32>(0xfffffu, 0u));
    return vec2<u32>((product.x >> 20u) | (product.y << 12u), product.y >> 20u);
}

// The weight of a key in sums; 0 if it is not kept.
fn weight_of(key: u32, floor: u32, scale: Scale) -> u32 {
    let d = distance_of(key, scale);
    let weight = u32(round(exp(min(d, 0.0)) * 16777216.0));
    return select(0u, weight, key >= floor && d >= scale.lowest);
}

fn add_to_bins(key: u32, selection: Selection, scale: Scale, shift: u32, prefix: u32) {
    // All bytes above this one must equal the threshold's.
    let is_near = shift == 24u || (key >> ((shift + 8u) & 31u)) == prefix;
    if key >= selection.floor && is_near {
        var weight = 1u;
        if selection.is_weighted {
            weight = weight_of(key, selection.floor, scale);
        }
        let bin = (key >> shift) & 255u;
        atomicAdd(&bins_low[bin], weight & 0xfffu);
        if weight > 0xfffu {
            atomicAdd(&bins_high[bin], weight >> 12u);
        }
    }
}

fn fill_bins(row: Row, local: u32, selection: Selection, scale: Scale, shift: u32, prefix: u32) {
    if selection.source == LISTED {
        for (var i = local; i < selection.listed; i += WORKGROUP) {
            add_to_bins(list_keys[i], selection, scale, shift, prefix);
        }
        return;
    }
    for (var four = local; four * 4u < row.vocab; four += WORKGROUP) {
        let keys = keys_of(row, four, selection.source == RAW);
        for (var i = 0u; i < 4u; i++) {
            add_to_bins(keys[i], selection, scale, shift, prefix);
        }
    }
}

// The bin in which the sum from the top reaches `target`, and the rest of the target in that bin.
fn find_bin(target_sum: vec2<u32>) -> vec3<u32> {
    var left = target_sum;
    var group = 15u;
    while group > 0u && is_less(bin_groups[group], left) {
        left = subtract_wide(left, bin_groups[group]);
        group--;
    }
    var bin = group * 16u + 15u;
    while bin > group * 16u && is_less(bin_sum(bin), left) {
        left = subtract_wide(left, bin_sum(bin));
        bin--;
    }
    return vec3<u32>(bin, left);
}

// The largest key such that the sum over it and all larger keys reaches the target; the floor if there is none.
fn threshold(row: Row, local: u32, selection: Selection, scale: Scale) -> u32 {
    var prefix = 0u;
    var left = selection.sum;
    var is_reached = true;
    for (var shift = 32u; shift > 0u;) {
        shift -= 8u;
        for (var bin = local; bin < 256u; bin += WORKGROUP) {
            atomicStore(&bins_low[bin], 0u);
            atomicStore(&bins_high[bin], 0u);
        }
        workgroupBarrier();
        fill_bins(row, local, selection, scale, shift, prefix);
        workgroupBarrier();
        for (var group = local; group < 16u; group += WORKGROUP) {
            var sum = vec2<u32>();
            for (var bin = group * 16u; bin < group * 16u + 16u; bin++) {
                sum = add_wide(sum, bin_sum(bin));
            }
            bin_groups[group] = sum;
        }
        workgroupBarrier();
        if local == 0u && shift == 24u {
            var total = vec2<u32>();
            for (var group = 0u; group < 16u; group++) {
                total = add_wide(total, bin_groups[group]);
            }
            if selection.share != 0u {
                left = part_of(total, selection.share);
            }
            is_reached = !is_less(total, left);
        }
        var found = vec3<u32>();
        if local == 0u {
            found = find_bin(left);
        }
        let shared_found = share(local, vec4<u32>(found, select(0u, 1u, is_reached)));
        prefix = (prefix << 8u) | shared_found.x;
        left = shared_found.yz;
        is_reached = shared_found.w == 1u;
    }
    return select(selection.floor, max(prefix, selection.floor), is_reached);
}
