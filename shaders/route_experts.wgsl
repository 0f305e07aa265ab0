// Chooses the experts of each token: those with the largest logits, largest first, ties by lowest id; with the softmax
// probability of each over all logits, or over the chosen ones. With params.groups, only experts of the `kept` groups
// with the largest logits are chosen. Numbers are compared by their bits as integers, so NaN is above everything.
// SIGMOID: a weight is sigmoid(logit), of a logit capped by params.softcap, divided by the sum of the chosen if
// params.renormalize. With params.has_bias, experts are chosen by sigmoid(logit) + bias; with params.groups, only
// those of the `kept` groups with the largest sums of two. SIGMOID or SCALED: weights are multiplied by params.factor
// and, with params.has_scale, the expert's scale. BIASED, which is SCALED: experts are chosen by their probability +
// bias. MIXER: a weight is the softmax among the experts that come after the chosen one and are near: the logit l
// with m - l <= params.mixer * max(|l|, m), where m is the chosen one's.
// logits: [tokens, experts] f32; bias, scale: [experts]; routes: [tokens, per_token] of (expert, weight).
// Workgroup: one token; each invocation counts the experts that come before its own.
// Variants: SIGMOID, SCALED, BIASED, MIXER. Twin: backend/reference/route_experts.rs
#import invocation

struct Params {
    tokens: u32,
    experts: u32,
    per_token: u32,
    renormalize: u32,
    has_bias: u32,
    groups: u32, // 0: none
    kept: u32,
    has_scale: u32,
    factor: f32,
    softcap: f32, // 0: none
    mixer: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<u32>;
@group(0) @binding(2) var<storage, read_write> routes: array<vec2<f32>>;
#ifdef SIGMOID
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
#else
#ifdef SCALED
@group(0) @binding(3) var<storage, read> scale: array<f32>;
#endif
#ifdef BIASED
@group(0) @binding(4) var<storage, read> bias: array<f32>;

// The largest logit of the token, and the sum of all shares.
var<private> most: f32;
var<private> whole: f32;
#endif
#endif

// Maps a number to an integer with the same order.
fn order(bits: u32) -> u32 {
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

#ifdef SIGMOID
fn score(base: u32, id: u32) -> f32 {
    var logit = bitcast<f32>(logits[base + id]);
    if params.softcap > 0.0 {
        // tanh overflows on some devices beyond 44.
        logit = params.softcap * tanh(clamp(logit / params.softcap, -20.0, 20.0));
    }
    return 1.0 / (1.0 + exp(min(-logit, 87.0)));
}

fn biased(base: u32, id: u32) -> f32 {
    return score(base, id) + bias[id];
}

// The sum of the two largest biased scores of a group, in order.
fn group_key(base: u32, group: u32) -> u32 {
    let size = params.experts / params.groups;
    var first = biased(base, group * size);
    var second = biased(base, group * size + 1u);
    if second > first {
        let swapped = first;
        first = second;
        second = swapped;
    }
    for (var id = group * size + 2u; id < (group + 1u) * size; id++) {
        let value = biased(base, id);
        second = max(second, min(first, value));
        first = max(first, value);
    }
    return order(bitcast<u32>(first + second));
}

// What experts are ordered by; 0 for those of groups that are not kept.
fn key_of(base: u32, id: u32, kept: u32) -> u32 {
    if params.has_bias == 0u {
        return order(logits[base + id]);
    }
    let group = id / (params.experts / max(params.groups, 1u));
    return select(0u, order(bitcast<u32>(biased(base, id))), ((kept >> group) & 1u) != 0u);
}

fn largest(base: u32) -> f32 {
    return 0.0;
}

fn share(base: u32, id: u32, top: f32) -> f32 {
    return score(base, id);
}

// What weights are divided by if they are not renormalized.
fn sum_of_all(base: u32, top: f32) -> f32 {
    return 1.0;
}
#else
// The largest logit of a group, in order.
fn group_key(base: u32, group: u32) -> u32 {
    let size = params.experts / params.groups;
    var key = 0u;
    for (var id = group * size; id < (group + 1u) * size; id++) {
        key = max(key, order(logits[base + id]));
    }
    return key;
}

// What experts are ordered by; 0 for those of groups that are not kept.
fn key_of(base: u32, id: u32, kept: u32) -> u32 {
#ifdef BIASED
    return order(bitcast<u32>(share(base, id, most) / whole + bias[id]));
#else
    let group = id / (params.experts / max(params.groups, 1u));
    return select(0u, order(logits[base + id]), ((kept >> group) & 1u) != 0u);
#endif
}

fn largest(base: u32) -> f32 {
    var key = 0u;
    for (var id = 0u; id < params.experts; id++) {
        key = max(key, order(logits[base + id]));
    }
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) != 0u));
}

fn share(base: u32, id: u32, top: f32) -> f32 {
    return exp(bitcast<f32>(logits[base + id]) - top);
}

fn sum_of_all(base: u32, top: f32) -> f32 {
    var sum = 0.0;
    for (var id = 0u; id < params.experts; id++) {
        sum += share(base, id, top);
    }
    return sum;
}
#endif

// A bit for each group whose experts may be chosen.
fn kept_groups(base: u32) -> u32 {
    if params.groups == 0u {
        return ~0u;
    }
    var kept = 0u;
    for (var group = 0u; group < params.groups; group++) {
        let key = group_key(base, group);
        var rank = 0u;
        for (var other = 0u; other < params.groups; other++) {
            let theirs = group_key(base, other);
            rank += select(0u, 1u, theirs > key || (theirs == key && other < group));
        }
        kept |= select(0u, 1u << group, rank < params.kept);
    }
    return kept;
}

#ifdef MIXER
// What an expert adds to the sum of a chosen one of logit `top`.
fn near_share(base: u32, id: u32, top: f32) -> f32 {
    let logit = bitcast<f32>(logits[base + id]);
    let is_near = top - logit <= params.mixer * max(abs(logit), top);
    return select(0.0, exp(min(logit - top, 0.0)), is_near);
}
#endif

fn weight_of(id: u32, part: f32, sum: f32) -> f32 {
#ifdef SIGMOID
    return part / (sum + 1e-20) * params.factor * select(1.0, scale[id], params.has_scale != 0u);
#else
#ifdef SCALED
    return part / sum * params.factor * select(1.0, scale[id], params.has_scale != 0u);
#else
    return part / sum;
#endif
#endif
}

var<workgroup> chosen: array<vec2<f32>, 32>;

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let token = flat_workgroup(at);
    // Excess workgroups of a grid spread over x and y repeat a token and write nothing, but reach every barrier.
    let base = min(token, params.tokens - 1u) * params.experts;
    let top = largest(base);
#ifdef BIASED
    most = top;
    whole = sum_of_all(base, top);
#endif
    let kept = kept_groups(base);
    for (var own = at.local; own < params.experts; own += 64u) {
        let key = key_of(base, own, kept);
        var rank = 0u;
#ifdef MIXER
        var near = 0.0;
        let own_logit = bitcast<f32>(logits[base + own]);
#endif
        for (var id = 0u; id < params.experts; id++) {
            let other = key_of(base, id, kept);
            let is_before = other > key || (other == key && id < own);
            rank += select(0u, 1u, is_before);
#ifdef MIXER
            near += select(near_share(base, id, own_logit), 0.0, is_before);
#endif
        }
        if rank < params.per_token {
#ifdef MIXER
            chosen[rank] = vec2<f32>(f32(own), 1.0 / near);
#else
            chosen[rank] = vec2<f32>(f32(own), share(base, own, top));
#endif
        }
    }
    workgroupBarrier();
    var sum = 0.0;
    if params.renormalize != 0u {
        for (var j = 0u; j < params.per_token; j++) {
            sum += chosen[j].y;
        }
    } else {
#ifdef MIXER
        sum = 1.0;
#else
        sum = sum_of_all(base, top);
#endif
    }
    if at.local < params.per_token && token < params.tokens {
        let route = chosen[at.local];
        let weight = weight_of(u32(route.x), route.y, sum);
        routes[token * params.per_token + at.local] = vec2<f32>(route.x, weight);
    }
}
