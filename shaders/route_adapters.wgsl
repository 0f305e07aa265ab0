// Routes each token to the slot of its sequence's adapter: (slot · experts + expert, weight) for each route to an
// expert, or (slot, 1) if the products have no experts.
// expert_routes: [tokens, per_token] of (expert, weight); routes: [tokens, per_token] of (matrix, weight).
// Invocation: one route.
// Variants: EXPERTS. Twin: backend/reference/route_adapters.rs
#import invocation
#import metadata

struct Params {
    routes: u32,
    per_token: u32,
    experts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read_write> routes: array<vec2<f32>>;
#ifdef EXPERTS
@group(0) @binding(3) var<storage, read> expert_routes: array<vec2<f32>>;
#endif

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let route = flat_workgroup(at) * 64u + at.local;
    if route >= params.routes {
        return;
    }
    let slot = metadata_at(META_ADAPTERS, route / params.per_token);
#ifdef EXPERTS
    let chosen = expert_routes[route];
#else
    let chosen = vec2(0.0, 1.0);
#endif
    routes[route] = vec2(f32(slot * params.experts) + chosen.x, chosen.y);
}
