//! Test cases for the steps of a mixture of experts: RouteExperts and MatMulExperts.

use super::compare::{HALVES, PRODUCTS, ROUTES};
use super::dense::{DENSE, expect_rows};
use super::fixture::{Check, Fixture, Mutant, Noise, Run, each, plain_batch, relative, unwritten};
use super::{RowKind, Shapes};
use crate::backend::FEW_ROWS_MAX;
use crate::plan::{
    BufferId, ExpertGroups, MatMulExperts, RouteExperts, Routing, Rows, Section, Step, Storage,
    WeightFormat, WeightId,
};

/// All fixtures of these steps, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = routers(shapes);
    for format in DENSE {
        let plain = Product {
            format,
            other_rows: 0,
            experts: 5,
            per_token: 2,
            columns: 40,
            outputs: 33,
            bias: false,
            combine: false,
            accumulate: false,
        };
        for bias in [false, true] {
            fixtures.push(matmul_experts(
                kind,
                Product { bias, ..plain },
                &[1, 3, 17, 70],
            ));
            let combined = Product {
                bias,
                combine: true,
                ..plain
            };
            fixtures.push(matmul_experts(kind, combined, &[1, 3, 17, 70]));
            let added = Product {
                accumulate: true,
                columns: 8,
                outputs: 1,
                ..combined
            };
            fixtures.push(matmul_experts(kind, added, &[1, 5, 66, 1100]));
        }
        if shapes == Shapes::One {
            continue;
        }
        let wide = Product {
            experts: 16,
            per_token: 4,
            columns: 1032,
            outputs: 131,
            ..plain
        };
        fixtures.push(matmul_experts(kind, wide, &[1, 2, 35]));
        fixtures.push(matmul_experts(
            kind,
            Product {
                combine: true,
                accumulate: true,
                ..wide
            },
            &[1, 2, 35],
        ));
    }
    // Summing of products is independent of the weight format, so each format runs either with it or without it.
    let packed = WeightFormat::ALL
        .into_iter()
        .filter(|format| format.is_quantised());
    for (format, combine) in packed.zip([false, true].into_iter().cycle()) {
        let product = Product {
            format,
            other_rows: if combine { 12 } else { 0 },
            experts: 5,
            per_token: 2,
            columns: 296,
            outputs: 35,
            bias: true,
            combine,
            accumulate: combine,
        };
        fixtures.push(matmul_experts(kind, product, &[1, 17]));
    }
    for format in WeightFormat::ALL {
        for &(heads, stride, columns, outputs) in
            shapes.of(&[(5, 72, 64, 35), (20, 24, 16, 9), (1, 40, 40, 33)])
        {
            fixtures.push(heads_product(
                kind.storage,
                format,
                [heads, stride, columns, outputs],
            ));
        }
    }
    // Sharded under a limit of 8 MiB: between experts, and within each expert.
    let cut = Product {
        format: WeightFormat::F32,
        other_rows: 0,
        experts: 5,
        per_token: 2,
        columns: 1024,
        outputs: 1000,
        bias: true,
        combine: true,
        accumulate: true,
    };
    if kind.storage == Storage::F32 && shapes == Shapes::All {
        for (experts, outputs) in [(5, 1000), (2, 2500)] {
            let cut = Product {
                experts,
                outputs,
                ..cut
            };
            fixtures.push(matmul_experts(kind, cut, &[3]));
            fixtures.push(matmul_experts(
                kind,
                Product {
                    combine: false,
                    accumulate: false,
                    ..cut
                },
                &[3],
            ));
        }
    }
    fixtures
}

/// Every kind of router.
fn routers(shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for &(experts, per_token) in shapes.of(&[(1, 1), (4, 2), (8, 8), (33, 3), (128, 8), (512, 32)])
    {
        let softmax = [false, true].map(|renormalize| Router {
            renormalize,
            ..Router::default()
        });
        fixtures.extend(softmax.map(|router| route_experts(experts, per_token, router)));
    }
    for &(experts, per_token, groups) in shapes.of(&[(6, 2, 3), (160, 6, 8), (64, 6, 32)]) {
        fixtures.push(route_experts(
            experts,
            per_token,
            Router {
                groups,
                ..Router::default()
            },
        ));
    }
    for &(experts, per_token, groups) in
        shapes.of(&[(1, 1, 0), (33, 3, 0), (128, 8, 8), (64, 6, 32)])
    {
        let sigmoid = Router {
            sigmoid: true,
            ..Router::default()
        };
        let chosen = Router {
            renormalize: true,
            biased: true,
            groups,
            ..sigmoid
        };
        let scaled = Router {
            renormalize: true,
            scaled: true,
            ..Router::default()
        };
        fixtures.extend(
            [sigmoid, chosen, scaled].map(|router| route_experts(experts, per_token, router)),
        );
    }
    fixtures
}

/// Options of `RouteExperts`.
#[derive(Clone, Copy, Default)]
struct Router {
    sigmoid: bool,
    renormalize: bool,
    biased: bool,
    /// Number of groups, of which half are kept; 0: none.
    groups: u32,
    scaled: bool,
}

fn route_experts(experts: u32, per_token: u32, router: Router) -> Fixture {
    let Router {
        sigmoid,
        renormalize,
        biased,
        groups,
        scaled,
    } = router;
    let weights = if renormalize {
        "weights of the chosen"
    } else {
        "weights of all"
    };
    let names = [
        (sigmoid, ", sigmoid"),
        (biased, ", bias"),
        (groups > 0, ", groups"),
        (scaled, ", scaled"),
    ];
    let names: String = names
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    let mut fixture = Fixture::new("route_experts", format!("{weights}{names}"));
    let mut noise = Noise::new(&format!("route {experts} {per_token}"));
    let logits = fixture.buffer("logits", Rows::Tokens, experts, Storage::F32);
    let routes = fixture.buffer("routes", Rows::Routes(per_token), 2, Storage::F32);
    // Apart by more than devices differ, so that all choose the same experts.
    let apart: Vec<f32> = (0..experts)
        .map(|id| (id * 37 % experts) as f32 * 0.25)
        .collect();
    let scales: Vec<f32> = (0..experts).map(|id| 0.5 + id as f32 / 64.0).collect();
    let routing = Routing {
        sigmoid,
        renormalize,
        bias: biased.then(|| fixture.weight("bias", 1, WeightFormat::F32, &apart)),
        groups: (groups > 0).then_some(ExpertGroups {
            count: groups,
            kept: groups / 2,
        }),
        // Weights as large as ids: the tolerance for mutants is a share of the largest value.
        factor: if biased || scaled {
            1.5 * experts as f32
        } else {
            1.0
        },
        expert_scale: scaled.then(|| fixture.weight("scale", 1, WeightFormat::F32, &scales)),
    };
    fixture.push(Step::RouteExperts(RouteExperts {
        logits,
        routing,
        routes,
    }));
    for rows in [1, 3, 67] {
        let mut run = Run::new(
            format!("{per_token} of {experts} experts, {rows} rows"),
            plain_batch(rows),
        );
        let mut values = noise.values((rows * experts) as usize);
        // All logits are tied: only ids decide.
        values[..experts as usize]
            .iter_mut()
            .for_each(|value| *value = value.round());
        run.buffers.push((logits, values));
        run.mutants.extend(
            (rows > 1 && experts > per_token).then_some(Mutant::SwapRows(logits, 0, rows - 1)),
        );
        expect_rows(
            &fixture,
            &mut run,
            routes,
            rows * per_token,
            relative(ROUTES),
        );
        fixture.runs.push(run);
    }
    fixture
}

/// A product with experts to check.
#[derive(Clone, Copy)]
struct Product {
    format: WeightFormat,
    /// Number of last rows of each expert that are bf16 instead.
    other_rows: u32,
    experts: u32,
    per_token: u32,
    columns: u32,
    outputs: u32,
    bias: bool,
    combine: bool,
    accumulate: bool,
}

fn matmul_experts(kind: RowKind, product: Product, all_tokens: &[u32]) -> Fixture {
    let Product {
        format,
        other_rows,
        experts,
        per_token,
        columns,
        outputs,
        bias,
        combine,
        accumulate,
    } = product;
    let storage = kind.storage;
    let others = (other_rows > 0, " and Bf16");
    let flags = [
        others,
        (bias, ", bias"),
        (combine, ", combine"),
        (accumulate, ", accumulate"),
    ];
    let options = flags.map(|(on, name)| if on { name } else { "" }).concat();
    let mut fixture = Fixture::new("matmul_experts", format!("{storage:?} · {format}{options}"));
    let mut noise = Noise::new(&format!(
        "matmul_experts {}{experts}{columns}{outputs}",
        fixture.option
    ));
    let stacked = experts * outputs;
    let of_expert = [
        (outputs - other_rows, format),
        (other_rows, WeightFormat::Bf16),
    ];
    let of_expert = of_expert.map(|(rows, format)| Section { rows, format });
    let sections = if other_rows > 0 {
        &of_expert[..]
    } else {
        &of_expert[..1]
    };
    let values = noise.values((columns * stacked) as usize);
    let weight = fixture.weight_in_sections("weight", &sections.repeat(experts as usize), &values);
    fixture.plan.stack_experts(weight, experts);
    let bias = bias.then(|| fixture.weight("bias", 1, format, &noise.values(stacked as usize)));
    // Up projection: one row for all experts of a token. Down projection: one row per expert, combined.
    let of_routes = Rows::Routes(per_token);
    let (x_rows, out_rows) = if combine {
        (of_routes, Rows::Tokens)
    } else {
        (Rows::Tokens, of_routes)
    };
    let x = fixture.buffer("x", x_rows, columns, storage);
    let routes = fixture.buffer("routes", of_routes, 2, Storage::F32);
    let out = fixture.buffer(
        "out",
        out_rows,
        outputs,
        if accumulate { Storage::F32 } else { storage },
    );
    fixture.push(Step::MatMulExperts(MatMulExperts {
        x,
        routes: Some(routes),
        weight,
        bias,
        accumulate,
        out,
    }));
    for &tokens in all_tokens {
        let shape = format!("{tokens} × {columns} × {outputs}, {per_token} of {experts} experts");
        let mut run = Run::new(shape, plain_batch(tokens));
        let values = noise.values((x_rows.count(tokens, 0) * columns) as usize);
        let x_values: Vec<f32> = values
            .into_iter()
            .map(|value| storage.round(value))
            .collect();
        let chosen: Vec<f32> = (0..tokens)
            .flat_map(|_| choose(&mut noise, experts, per_token))
            .collect();
        let rows = out_rows.count(tokens, 0);
        let start = accumulate.then(|| noise.values((rows * outputs) as usize));
        let case = Case {
            x: &x_values,
            routes: &chosen,
            start: start.as_deref(),
        };
        let mut allowed = case.allowed(&fixture, &product, weight, bias);
        if kind.halves && x_rows.count(tokens, 0) > FEW_ROWS_MAX {
            allowed
                .iter_mut()
                .for_each(|allowed| *allowed *= HALVES / PRODUCTS);
        }
        run.buffers.push((x, x_values));
        run.buffers.push((routes, chosen));
        run.buffers.push((
            out,
            start.unwrap_or_else(|| unwritten((rows * outputs) as usize)),
        ));
        run.checks.push(Check::Rows {
            buffer: out,
            rows,
            allowed: each(allowed),
        });
        run.mutants.extend(mutants(
            x,
            routes,
            weight,
            &product,
            x_rows.count(tokens, 0),
        ));
        fixture.runs.push(run);
    }
    fixture
}

/// A product of heads: `stride` elements of x each, of which `columns` are multiplied.
fn heads_product(
    storage: Storage,
    format: WeightFormat,
    [heads, stride, columns, outputs]: [u32; 4],
) -> Fixture {
    let mut fixture = Fixture::new("matmul_experts", format!("{storage:?} · {format}, heads"));
    let mut noise = Noise::new(&format!(
        "matmul_heads {}{heads}{columns}{outputs}",
        fixture.option
    ));
    let weight = fixture.weight(
        "weight",
        heads * outputs,
        format,
        &noise.values((heads * outputs * columns) as usize),
    );
    fixture.plan.stack_experts(weight, heads);
    let x = fixture.buffer("x", Rows::Tokens, heads * stride, storage);
    let out = fixture.buffer("out", Rows::Tokens, heads * outputs, storage);
    let (bias, accumulate) = (None, false);
    fixture.push(Step::MatMulExperts(MatMulExperts {
        x,
        routes: None,
        weight,
        bias,
        accumulate,
        out,
    }));
    let weights = fixture.weight_values(weight);
    for tokens in [1, 3, 17, 70] {
        let mut run = Run::new(
            format!("{tokens} × {columns} × {outputs}, {heads} heads"),
            plain_batch(tokens),
        );
        let values = noise.values((tokens * heads * stride) as usize);
        let values: Vec<f32> = values
            .into_iter()
            .map(|value| storage.round(value))
            .collect();
        // Tolerance: 1e-5 · Σ |x·w|.
        let product = |head: usize, output: usize| {
            let row = (head % heads as usize * outputs as usize + output) * columns as usize;
            let pairs = values[head * stride as usize..]
                .iter()
                .zip(&weights[row..][..columns as usize]);
            PRODUCTS * pairs.map(|(x, w)| f64::from((x * w).abs())).sum::<f64>()
        };
        let all = (0..(tokens * heads) as usize)
            .flat_map(|head| (0..outputs as usize).map(move |n| (head, n)));
        let allowed = all.map(|(head, output)| product(head, output)).collect();
        run.checks.push(Check::Rows {
            buffer: out,
            rows: tokens,
            allowed: each(allowed),
        });
        run.buffers.push((x, values));
        run.buffers
            .push((out, unwritten((tokens * heads * outputs) as usize)));
        run.mutants
            .extend((heads > 1).then_some(Mutant::SwapHeads(x, stride, 0, heads - 1)));
        run.mutants
            .extend((heads > 1).then_some(Mutant::SwapWeightRows(
                weight,
                0,
                outputs * (heads - 1),
            )));
        run.mutants
            .extend((tokens > 1).then_some(Mutant::SwapRows(x, 0, tokens - 1)));
        fixture.runs.push(run);
    }
    fixture
}

/// Mutants that swap rows of x, rows within one expert and across two, and the experts of two routes.
fn mutants(
    x: BufferId,
    routes: BufferId,
    weight: WeightId,
    product: &Product,
    x_rows: u32,
) -> Vec<Mutant> {
    let mut mutants = vec![Mutant::SwapRows(routes, 0, 1)];
    // If a token's routes are summed, their order does not matter, but the order of x does.
    if product.combine {
        mutants[0] = Mutant::SwapRows(x, 0, 1);
    } else if x_rows > 1 {
        mutants.push(Mutant::SwapRows(x, 0, x_rows - 1));
    }
    if x_rows > product.experts * product.per_token {
        mutants.push(Mutant::SwapWeightRows(
            weight,
            0,
            product.outputs * (product.experts - 1),
        ));
    }
    mutants
}

/// Routes of one token: distinct experts in random order, with weights that do not sum to 1.
fn choose(noise: &mut Noise, experts: u32, per_token: u32) -> Vec<f32> {
    let ids = noise.shuffled(experts);
    ids.into_iter()
        .take(per_token as usize)
        .flat_map(|id| [id as f32, 0.1 + noise.uniform().abs()])
        .collect()
}

/// Inputs of one run.
struct Case<'a> {
    x: &'a [f32],
    routes: &'a [f32],
    start: Option<&'a [f32]>,
}

impl Case<'_> {
    /// Tolerance: 1e-5 · (Σ |x·w| + |bias|) for every product; if products are combined, the weighted sum of these;
    /// plus 1e-5 of the old value.
    fn allowed(
        &self,
        fixture: &Fixture,
        product: &Product,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Vec<f64> {
        let (columns, outputs) = (product.columns as usize, product.outputs as usize);
        let weights = fixture.weight_values(weight);
        let bias = bias.map(|bias| fixture.weight_values(bias));
        let of_route = |route: usize, output: usize| {
            let row = route
                / if product.combine {
                    1
                } else {
                    product.per_token as usize
                };
            let at = self.routes[2 * route] as usize * outputs + output;
            let pairs = self.x[row * columns..][..columns]
                .iter()
                .zip(&weights[at * columns..][..columns]);
            let products: f64 = pairs.map(|(x, w)| f64::from((x * w).abs())).sum();
            products + bias.as_ref().map_or(0.0, |bias| f64::from(bias[at].abs()))
        };
        let routes = self.routes.len() / 2;
        if !product.combine {
            let all = (0..routes).flat_map(|route| (0..outputs).map(move |output| (route, output)));
            return all
                .map(|(route, output)| PRODUCTS * of_route(route, output))
                .collect();
        }
        let per_token = product.per_token as usize;
        let all = (0..routes / per_token)
            .flat_map(|token| (0..outputs).map(move |output| (token, output)));
        let combined = all.map(|(token, output)| {
            let routes = token * per_token..(token + 1) * per_token;
            let sum: f64 = routes
                .map(|r| f64::from(self.routes[2 * r + 1]) * of_route(r, output))
                .sum();
            PRODUCTS
                * (sum
                    + self.start.map_or(0.0, |start| {
                        f64::from(start[token * outputs + output].abs())
                    }))
        });
        combined.collect()
    }
}
