// Chooses the experts of each token: those with the largest logits, largest first, ties by lowest id; with the softmax
// probability of each over all logits, or over the chosen ones. Logits are compared by their bits as integers, so NaN
// is above everything.
// logits: [tokens, experts] f32; routes: [tokens, per_token] of (expert, weight).
// Workgroup: one token; each invocation counts the experts that come before its own. SERIAL, for shaders that run on
// CPU cores: one token per invocation, without workgroup memory.
// Variants: SERIAL. Twin: backend/reference/route_experts.rs
#import invocation

struct Params {
    tokens: u32,
    experts: u32,
    per_token: u32,
    renormalize: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<u32>;
@group(0) @binding(2) var<storage, read_write> routes: array<vec2<f32>>;

// Maps a logit to an integer with the same order.
fn order(bits: u32) -> u32 {
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
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

#ifdef SERIAL
@compute @workgroup_size(64)
fn main(at: Invocation) {
    let token = flat_workgroup(at) * 64u + at.local;
    if token >= params.tokens {
        return;
    }
    let base = token * params.experts;
    let first = token * params.per_token;
    let top = largest(base);
    var chosen_sum = 0.0;
    var last_key = 0u;
    var last_id = 0u;
    for (var j = 0u; j < params.per_token; j++) {
        var best_key = 0u;
        var best_id = params.experts;
        for (var id = 0u; id < params.experts; id++) {
            let key = order(logits[base + id]);
            let is_open = j == 0u || key < last_key || (key == last_key && id > last_id);
            if is_open && (best_id == params.experts || key > best_key) {
                best_key = key;
                best_id = id;
            }
        }
        let part = share(base, best_id, top);
        routes[first + j] = vec2<f32>(f32(best_id), part);
        chosen_sum += part;
        last_key = best_key;
        last_id = best_id;
    }
    let sum = select(sum_of_all(base, top), chosen_sum, params.renormalize != 0u);
    for (var j = 0u; j < params.per_token; j++) {
        routes[first + j].y /= sum;
    }
}
#else
var<workgroup> chosen: array<vec2<f32>, 32>;

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let token = flat_workgroup(at);
    // Excess workgroups of a grid spread over x and y repeat a token and write nothing, but reach every barrier.
    let base = min(token, params.tokens - 1u) * params.experts;
    let top = largest(base);
    for (var own = at.local; own < params.experts; own += 64u) {
        let key = order(logits[base + own]);
        var rank = 0u;
        for (var id = 0u; id < params.experts; id++) {
            let other = order(logits[base + id]);
            rank += select(0u, 1u, other > key || (other == key && id < own));
        }
        if rank < params.per_token {
            chosen[rank] = vec2<f32>(f32(own), share(base, own, top));
        }
    }
    workgroupBarrier();
    var sum = 0.0;
    if params.renormalize != 0u {
        for (var j = 0u; j < params.per_token; j++) {
            sum += chosen[j].y;
        }
    } else {
        sum = sum_of_all(base, top);
    }
    if at.local < params.per_token && token < params.tokens {
        let route = chosen[at.local];
        routes[token * params.per_token + at.local] = vec2<f32>(route.x, route.y / sum);
    }
}
#endif
