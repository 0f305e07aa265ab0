// A list of a row's largest keys, in workgroup memory: all keys from a bound upwards. The n-th largest of the maxima of
// any subsets is never above the row's n-th largest key, so it is such a bound for n keys.

#import sample_parts
#import sample_shared
#import sample_threshold
#import share

var<workgroup> list_ids: array<u32, LIST>;
var<workgroup> list_count: atomic<u32>;
// Sums of weights, in two parts of 12 bits.
var<workgroup> weights_low: atomic<u32>;
var<workgroup> weights_high: atomic<u32>;
var<workgroup> listed_low: atomic<u32>;
var<workgroup> listed_high: atomic<u32>;

struct Listed {
    count: u32, // more than LIST if not all keys fit
    weights: vec2<u32>, // sum over the row
    weights_listed: vec2<u32>, // sum over the list
}

// Puts maxima of subsets of the row into list_keys: of a survey (RAW) or those of the invocations. Returns how many.
fn list_maxima(row: Row, local: u32, own: u32, source: u32) -> u32 {
    var maxima = select(params.parts * PART_MAXIMA, WORKGROUP, source == ADJUSTED);
    maxima = select(0u, maxima, row.vocab > 0u);
    workgroupBarrier();
    if source == ADJUSTED {
        list_keys[local] = own;
    } else {
        for (var i = local; i < maxima; i += WORKGROUP) {
            list_keys[i] = parts[row.part + i / PART_MAXIMA * PART_WORDS + 2u + i % PART_MAXIMA];
        }
    }
    workgroupBarrier();
    return maxima;
}

fn joined(low: u32, high: u32) -> vec2<u32> {
    return add_wide(vec2<u32>(high << 12u, high >> 20u), vec2<u32>(low, 0u));
}

// Lists the keys from `bound` upwards. is_weighted: also sums weights.
fn list_keys_from(row: Row, local: u32, bound: u32, source: u32, is_weighted: bool, scale: Scale) -> Listed {
    workgroupBarrier();
    if local == 0u {
        atomicStore(&list_count, 0u);
        atomicStore(&weights_low, 0u);
        atomicStore(&weights_high, 0u);
        atomicStore(&listed_low, 0u);
        atomicStore(&listed_high, 0u);
    }
    workgroupBarrier();
    var sums = vec4<u32>(); // of the row and of the list, low and high
    for (var four = local; four * 4u < row.vocab; four += WORKGROUP) {
        let keys = keys_of(row, four, source == RAW);
#for i 4
        {
            let key = keys[i];
            let is_listed = key >= bound;
            if is_listed {
                let at = atomicAdd(&list_count, 1u);
                if at < LIST {
                    list_keys[at] = key;
                    list_ids[at] = 4u * four + i;
                }
            }
            if is_weighted {
                let weight = weight_of(max(key, KEY_LOWEST + 1u), KEY_LOWEST + 1u, scale);
                let kept = select(0u, weight, key > KEY_LOWEST);
                let both = vec2<u32>(kept & 0xfffu, kept >> 12u);
                sums += vec4<u32>(both, select(vec2<u32>(), both, is_listed));
            }
        }
#endfor
    }
    atomicAdd(&weights_low, sums.x);
    atomicAdd(&weights_high, sums.y);
    atomicAdd(&listed_low, sums.z);
    atomicAdd(&listed_high, sums.w);
    workgroupBarrier();
    let row_sums = share(local, vec4<u32>(
        atomicLoad(&weights_low), atomicLoad(&weights_high), atomicLoad(&listed_low), atomicLoad(&listed_high),
    ));
    let count = share(local, vec4<u32>(atomicLoad(&list_count), 0u, 0u, 0u)).x;
    return Listed(count, joined(row_sums.x, row_sums.y), joined(row_sums.z, row_sums.w));
}
