// Bindings and epilogue shared by the kernels of MatMulExperts, for one shard of W: `outputs` rows of each of
// `expert_count` experts.
// x: [rows, 8 * eights] f32; routes: [routes] of (expert, weight); W: [experts * outputs, 8 * eights] in its format;
// bias: [all experts * columns]; out: [units, columns] f32.
// HEADS: there are no routes; the experts are the heads of a token, which have their own rows of x.
// A unit is a row of out: a route or, with COMBINE, a token, whose products are weighted and summed.

struct Params {
    units: u32,
    routes_each: u32,  // routes per unit: 1, or those of a token with COMBINE
    x_routes: u32,     // routes that share a row of x: 1, or those of a token
    eights: u32,       // columns of x and W / 8
    outputs: u32,      // rows of an expert in this shard of W
    output_start: u32, // column of out of the first of these rows
    columns: u32,      // columns of out: rows of an expert in all shards
    expert_first: u32, // first expert of this shard
    expert_count: u32,
    accumulate: u32,
    segment: u32,      // routes that matmul_experts_tile searches at once
    x_vectors: u32,    // vectors from one row of x to the next
    heads: u32,        // with HEADS: experts, each of which every token has a route to, in order
    row_vectors: u32,  // of W; this and the following fields: see weight.wgsl
    plane: u32,
    scales: u32,
    supers: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
#ifdef MATRICES
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;
#else
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#endif
@group(0) @binding(2) var<storage, read> routes: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> weight: array<vec4<u32>>;
#ifdef BIAS
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
#else
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#endif

// Index of a route's expert in this shard; expert_count or more if the expert is in another shard.
fn expert_of(route: u32) -> u32 {
#ifdef HEADS
    return route % params.heads - params.expert_first;
#else
    return u32(routes[route].x) - params.expert_first;
#endif
}

// First vector of the row of x that a route reads.
fn x_row_of(route: u32) -> u32 {
    return route / params.x_routes * params.x_vectors;
}

// Factor of the product of a route.
fn factor_of(route: u32) -> f32 {
#ifdef COMBINE
    return routes[route].y;
#else
    return 1.0;
#endif
}

fn emit(unit: u32, output: u32, product: f32) {
    if unit >= params.units || output >= params.outputs {
        return;
    }
    let column = params.output_start + output;
    let index = unit * params.columns + column;
    var value = product;
    var is_here = false;
    for (var j = 0u; j < params.routes_each; j++) {
        let route = unit * params.routes_each + j;
        let expert = expert_of(route);
        if expert < params.expert_count {
            is_here = true;
#ifdef BIAS
            value += factor_of(route) * bias[(params.expert_first + expert) * params.columns + column];
#endif
        }
    }
#ifdef COMBINE
    if params.accumulate != 0u {
        value += out[index];
    }
    out[index] = value;
#else
    if is_here {
        out[index] = value;
    }
#endif
}
