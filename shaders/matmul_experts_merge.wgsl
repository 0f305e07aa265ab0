// out (=, +=) sum over a token's routes of weight * product, where matmul_experts_tile has written the products to
// scratch. products: [routes, columns] f32; out: [tokens, columns] f32. Invocation: one element.
// Twin: backend/reference/matmul_experts.rs
#import invocation

struct Params {
    tokens: u32,
    per_token: u32, // routes per token
    columns: u32,
    accumulate: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> products: array<f32>;
@group(0) @binding(2) var<storage, read> routes: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let token = item / params.columns;
    if token >= params.tokens {
        return;
    }
    let column = item - token * params.columns;
    var sum = 0.0;
    for (var j = 0u; j < params.per_token; j++) {
        let route = token * params.per_token + j;
        sum += routes[route].y * products[route * params.columns + column];
    }
    if params.accumulate != 0u {
        sum += out[item];
    }
    out[item] = sum;
}
