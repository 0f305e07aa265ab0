//! Test cases for the steps of a mixture of experts: RouteExperts and MatMulExperts.

use super::compare::{HALVES, PRODUCTS, ROUTES};
use super::dense::DENSE;
use super::fixture::{
    Check, Fixture, Mutant, Noise, Run, each, expect_rows, names_of, plain_batch, relative,
    sections, unwritten,
};
use super::{RowKind, Shapes};
use crate::backend::FEW_ROWS_MAX;
use crate::plan::{
    BufferId, ExpertGroups, MatMulExperts, RouteExperts, Routing, Rows, Step, Storage,
    WeightFormat, WeightId,
};

/// All fixtures of these steps, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = routers(shapes);
    for product in dense_products(shapes).into_iter().chain(packed_products()) {
        fixtures.push(matmul_experts(kind, &product));
    }
    for format in WeightFormat::ALL {
        for heads in shapes.of(&HEADS) {
            fixtures.push(heads_product(kind.storage, format, heads));
        }
    }
    if kind.storage == Storage::F32 && shapes == Shapes::All {
        for product in &SHARDED {
            fixtures.push(matmul_experts(kind, product));
        }
    }
    fixtures
}

/// Experts and routes of a token, for routers of a few kinds each.
const SOFTMAX: [(u32, u32); 6] = [(1, 1), (4, 2), (8, 8), (33, 3), (128, 8), (512, 32)];
/// The same with a number of groups.
const GROUPED: [(u32, u32, u32); 3] = [(6, 2, 3), (160, 6, 8), (64, 6, 32)];
const SIGMOID: [(u32, u32, u32); 4] = [(1, 1, 0), (33, 3, 0), (128, 8, 8), (64, 6, 32)];

/// Every kind of router.
fn routers(shapes: Shapes) -> Vec<Fixture> {
    let softmax = Router::default();
    let renormalized = Router {
        renormalize: true,
        ..softmax
    };
    let scaled = Router {
        scaled: true,
        ..renormalized
    };
    let sigmoid = Router {
        sigmoid: true,
        ..softmax
    };
    let mut fixtures = Vec::new();
    for &(experts, per_token) in shapes.of(&SOFTMAX) {
        let biased = Router {
            biased: true,
            ..renormalized
        };
        let mixer = Router {
            mixer: true,
            ..softmax
        };
        for router in [softmax, renormalized, biased, mixer] {
            fixtures.push(route_experts(experts, per_token, router));
        }
    }
    for &(experts, per_token, groups) in shapes.of(&GROUPED) {
        let router = Router { groups, ..softmax };
        fixtures.push(route_experts(experts, per_token, router));
    }
    for &(experts, per_token, groups) in shapes.of(&SIGMOID) {
        let chosen = Router {
            renormalize: true,
            biased: true,
            groups,
            ..sigmoid
        };
        let capped = Router {
            softcap: true,
            ..chosen
        };
        for router in [sigmoid, chosen, scaled, capped] {
            fixtures.push(route_experts(experts, per_token, router));
        }
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
    mixer: bool,
    softcap: bool,
}

impl Router {
    /// The options as a name.
    fn name(&self) -> String {
        let weights = if self.renormalize {
            "weights of the chosen"
        } else {
            "weights of all"
        };
        let options = names_of(&[
            (self.sigmoid, ", sigmoid"),
            (self.biased, ", bias"),
            (self.groups > 0, ", groups"),
            (self.scaled, ", scaled"),
            (self.mixer, ", sparse mixer"),
            (self.softcap, ", softcap"),
        ]);
        format!("{weights}{options}")
    }

    /// The options of the step, with their weights.
    fn routing(&self, fixture: &mut Fixture, experts: u32) -> Routing {
        // Apart by more than devices differ, so that all choose the same experts.
        let apart: Vec<f32> = (0..experts)
            .map(|id| (id * 37 % experts) as f32 * 0.25)
            .collect();
        let scales: Vec<f32> = (0..experts).map(|id| 0.5 + id as f32 / 64.0).collect();
        let vector = |fixture: &mut Fixture, name, values: &[f32]| {
            fixture.weight(name, 1, WeightFormat::F32, values)
        };
        let has_factor = self.biased || self.scaled;
        Routing {
            sigmoid: self.sigmoid,
            renormalize: self.renormalize,
            bias: self.biased.then(|| vector(fixture, "bias", &apart)),
            groups: (self.groups > 0).then_some(ExpertGroups {
                count: self.groups,
                kept: self.groups / 2,
            }),
            // Weights as large as ids: the tolerance for mutants is a share of the largest value.
            factor: if has_factor {
                1.5 * experts as f32
            } else {
                1.0
            },
            expert_scale: self.scaled.then(|| vector(fixture, "scale", &scales)),
            softcap: self.softcap.then_some(1.5),
            mixer: self.mixer.then_some(0.7),
        }
    }
}

fn route_experts(experts: u32, per_token: u32, router: Router) -> Fixture {
    let mut fixture = Fixture::new("route_experts", router.name());
    let mut noise = Noise::new(&format!("route {experts} {per_token}"));
    let logits = fixture.buffer("logits", Rows::Tokens, experts, Storage::F32);
    let routes = fixture.buffer("routes", Rows::Routes(per_token), 2, Storage::F32);
    let routing = router.routing(&mut fixture, experts);
    fixture.push(Step::RouteExperts(RouteExperts {
        logits,
        routing,
        routes,
    }));
    for rows in [1, 3, 67] {
        let shape = format!("{per_token} of {experts} experts, {rows} rows");
        let mut run = Run::new(shape, plain_batch(rows));
        let mut values = noise.values((rows * experts) as usize);
        // All logits are tied: only ids decide.
        for value in &mut values[..experts as usize] {
            *value = value.round();
        }
        run.buffers.push((logits, values));
        if rows > 1 && experts > per_token {
            run.mutants.push(Mutant::SwapRows(logits, 0, rows - 1));
        }
        let chosen = rows * per_token;
        expect_rows(&fixture, &mut run, routes, chosen, relative(ROUTES));
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
    /// Numbers of tokens of the runs.
    tokens: &'static [u32],
}

const PLAIN: Product = Product {
    format: WeightFormat::F32,
    other_rows: 0,
    experts: 5,
    per_token: 2,
    columns: 40,
    outputs: 33,
    bias: false,
    combine: false,
    accumulate: false,
    tokens: &[1, 3, 17, 70],
};
const COMBINED: Product = Product {
    combine: true,
    ..PLAIN
};
const ADDED: Product = Product {
    accumulate: true,
    columns: 8,
    outputs: 1,
    tokens: &[1, 5, 66, 1100],
    ..COMBINED
};
const WIDE: Product = Product {
    experts: 16,
    per_token: 4,
    columns: 1032,
    outputs: 131,
    tokens: &[1, 2, 35],
    ..PLAIN
};
const WIDE_ADDED: Product = Product {
    combine: true,
    accumulate: true,
    ..WIDE
};
const PACKED: Product = Product {
    columns: 296,
    outputs: 35,
    bias: true,
    tokens: &[1, 17],
    ..PLAIN
};
const PACKED_ADDED: Product = Product {
    other_rows: 12,
    combine: true,
    accumulate: true,
    ..PACKED
};
/// Sharded under a limit of 8 MiB: between experts, and within each expert.
const SHARDED: [Product; 4] = [
    Product {
        combine: true,
        accumulate: true,
        ..BETWEEN_EXPERTS
    },
    BETWEEN_EXPERTS,
    Product {
        combine: true,
        accumulate: true,
        ..WITHIN_EXPERTS
    },
    WITHIN_EXPERTS,
];
const BETWEEN_EXPERTS: Product = Product {
    columns: 1024,
    outputs: 1000,
    bias: true,
    tokens: &[3],
    ..PLAIN
};
const WITHIN_EXPERTS: Product = Product {
    experts: 2,
    outputs: 2500,
    ..BETWEEN_EXPERTS
};

/// Every option with weights that are not quantized.
fn dense_products(shapes: Shapes) -> Vec<Product> {
    let mut products = Vec::new();
    for format in DENSE {
        for bias in [false, true] {
            for product in [PLAIN, COMBINED, ADDED] {
                products.push(Product {
                    format,
                    bias,
                    ..product
                });
            }
        }
        if shapes == Shapes::All {
            products.extend([WIDE, WIDE_ADDED].map(|product| Product { format, ..product }));
        }
    }
    products
}

/// Summing of products is independent of the weight format, so each quantized format runs either with it or without it.
fn packed_products() -> impl Iterator<Item = Product> {
    let formats = WeightFormat::ALL
        .into_iter()
        .filter(|format| format.is_quantised());
    formats
        .zip([PACKED, PACKED_ADDED].into_iter().cycle())
        .map(|(format, product)| Product { format, ..product })
}

fn matmul_experts(kind: RowKind, product: &Product) -> Fixture {
    let mut fixture = Fixture::new("matmul_experts", product.name(kind.storage));
    let mut noise = Noise::new(&format!(
        "matmul_experts {}{}{}{}",
        fixture.option, product.experts, product.columns, product.outputs
    ));
    let step = product.step(&mut fixture, kind.storage, &mut noise);
    fixture.push(Step::MatMulExperts(step));
    for &tokens in product.tokens {
        let run = product.run(&fixture, &step, kind, tokens, &mut noise);
        fixture.runs.push(run);
    }
    fixture
}

impl Product {
    /// The options as a name.
    fn name(&self, storage: Storage) -> String {
        let options = names_of(&[
            (self.other_rows > 0, " and Bf16"),
            (self.bias, ", bias"),
            (self.combine, ", combine"),
            (self.accumulate, ", accumulate"),
        ]);
        format!("{storage:?} · {}{options}", self.format)
    }

    /// The step, with its weights and buffers.
    fn step(&self, fixture: &mut Fixture, storage: Storage, noise: &mut Noise) -> MatMulExperts {
        let stacked = self.experts * self.outputs;
        let values = noise.values((self.columns * stacked) as usize);
        let sections = sections(self.format, self.outputs, self.other_rows);
        let weight =
            fixture.weight_in_sections("weight", &sections.repeat(self.experts as usize), &values);
        fixture.plan.stack_experts(weight, self.experts);
        let bias = self.bias.then(|| {
            let values = noise.values(stacked as usize);
            fixture.weight("bias", 1, self.format, &values)
        });
        // Up projection: one row for all experts of a token. Down projection: one row per expert, combined.
        let of_routes = Rows::Routes(self.per_token);
        let (x_rows, out_rows) = if self.combine {
            (of_routes, Rows::Tokens)
        } else {
            (Rows::Tokens, of_routes)
        };
        let out_storage = if self.accumulate {
            Storage::F32
        } else {
            storage
        };
        MatMulExperts {
            x: fixture.buffer("x", x_rows, self.columns, storage),
            routes: Some(fixture.buffer("routes", of_routes, 2, Storage::F32)),
            weight,
            bias,
            accumulate: self.accumulate,
            out: fixture.buffer("out", out_rows, self.outputs, out_storage),
        }
    }

    fn run(
        &self,
        fixture: &Fixture,
        step: &MatMulExperts,
        kind: RowKind,
        tokens: u32,
        noise: &mut Noise,
    ) -> Run {
        let shape = format!(
            "{tokens} × {} × {}, {} of {} experts",
            self.columns, self.outputs, self.per_token, self.experts
        );
        let routes = step.routes.expect("the products are those of routes");
        let [x_rows, out_rows] =
            [step.x, step.out].map(|id| fixture.plan.buffer_spec(id).rows.count(tokens, 0));
        let mut case = Case {
            product: self,
            weights: fixture.weight_values(step.weight),
            bias: step.bias.map(|bias| fixture.weight_values(bias)),
            x: noise.rounded(kind.storage, (x_rows * self.columns) as usize),
            routes: Vec::new(),
            start: None,
        };
        for _ in 0..tokens {
            case.routes
                .extend(choose(noise, self.experts, self.per_token));
        }
        let outputs = (out_rows * self.outputs) as usize;
        case.start = self.accumulate.then(|| noise.values(outputs));
        let mut allowed = case.allowed();
        if kind.halves && x_rows > FEW_ROWS_MAX {
            for allowed in &mut allowed {
                *allowed *= HALVES / PRODUCTS;
            }
        }
        let mut run = Run::new(shape, plain_batch(tokens));
        run.buffers.push((step.x, case.x));
        run.buffers.push((routes, case.routes));
        let start = case.start.unwrap_or_else(|| unwritten(outputs));
        run.buffers.push((step.out, start));
        run.checks.push(Check::Rows {
            buffer: step.out,
            rows: out_rows,
            allowed: each(allowed),
        });
        run.mutants
            .extend(self.mutants(step.x, routes, step.weight, x_rows));
        run
    }

    /// Mutants that swap rows of x, rows within one expert and across two, and the experts of two routes.
    fn mutants(&self, x: BufferId, routes: BufferId, weight: WeightId, x_rows: u32) -> Vec<Mutant> {
        let mut mutants = Vec::new();
        // If a token's routes are summed, their order does not matter, but the order of x does.
        if self.combine {
            mutants.push(Mutant::SwapRows(x, 0, 1));
        } else {
            mutants.push(Mutant::SwapRows(routes, 0, 1));
            if x_rows > 1 {
                mutants.push(Mutant::SwapRows(x, 0, x_rows - 1));
            }
        }
        if x_rows > self.experts * self.per_token {
            let last_expert = self.outputs * (self.experts - 1);
            mutants.push(Mutant::SwapWeightRows(weight, 0, last_expert));
        }
        mutants
    }
}

/// Routes of one token: distinct experts in random order, with weights that do not sum to 1.
fn choose(noise: &mut Noise, experts: u32, per_token: u32) -> Vec<f32> {
    let ids = noise.shuffled(experts);
    ids.into_iter()
        .take(per_token as usize)
        .flat_map(|id| [id as f32, 0.1 + noise.uniform().abs()])
        .collect()
}

/// Weights and inputs of one run, from which its tolerances follow.
struct Case<'a> {
    product: &'a Product,
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    x: Vec<f32>,
    /// Id and weight of each route.
    routes: Vec<f32>,
    /// Old values of out.
    start: Option<Vec<f32>>,
}

impl Case<'_> {
    /// Tolerance: 1e-5 · (Σ |x·w| + |bias|) for every product; if products are combined, the weighted sum of these;
    /// plus 1e-5 of the old value.
    fn allowed(&self) -> Vec<f64> {
        let outputs = self.product.outputs as usize;
        let routes = self.routes.len() / 2;
        let mut allowed = Vec::new();
        if !self.product.combine {
            for route in 0..routes {
                for output in 0..outputs {
                    allowed.push(PRODUCTS * self.summands(route, output));
                }
            }
            return allowed;
        }
        let per_token = self.product.per_token as usize;
        for token in 0..routes / per_token {
            for output in 0..outputs {
                let sum: f64 = (token * per_token..(token + 1) * per_token)
                    .map(|route| {
                        f64::from(self.routes[2 * route + 1]) * self.summands(route, output)
                    })
                    .sum();
                let old = self.start.as_ref().map_or(0.0, |start| {
                    f64::from(start[token * outputs + output].abs())
                });
                allowed.push(PRODUCTS * (sum + old));
            }
        }
        allowed
    }

    /// Σ |x·w| + |bias| of one output of a route.
    fn summands(&self, route: usize, output: usize) -> f64 {
        let columns = self.product.columns as usize;
        let x_routes = if self.product.combine {
            1
        } else {
            self.product.per_token as usize
        };
        let x = &self.x[route / x_routes * columns..][..columns];
        let at = self.routes[2 * route] as usize * self.product.outputs as usize + output;
        let weights = &self.weights[at * columns..][..columns];
        let bias = self
            .bias
            .as_ref()
            .map_or(0.0, |bias| f64::from(bias[at].abs()));
        magnitude(x, weights) + bias
    }
}

/// Σ |x·w|.
fn magnitude(x: &[f32], weights: &[f32]) -> f64 {
    x.iter()
        .zip(weights)
        .map(|(x, w)| f64::from((x * w).abs()))
        .sum()
}

/// A product of heads: `stride` elements of x each, of which `columns` are multiplied.
struct Heads {
    count: u32,
    stride: u32,
    columns: u32,
    outputs: u32,
}

const HEADS: [Heads; 3] = [
    Heads {
        count: 5,
        stride: 72,
        columns: 64,
        outputs: 35,
    },
    Heads {
        count: 20,
        stride: 24,
        columns: 16,
        outputs: 9,
    },
    Heads {
        count: 1,
        stride: 40,
        columns: 40,
        outputs: 33,
    },
];

fn heads_product(storage: Storage, format: WeightFormat, heads: &Heads) -> Fixture {
    let Heads {
        count,
        stride,
        columns,
        outputs,
    } = *heads;
    let mut fixture = Fixture::new("matmul_experts", format!("{storage:?} · {format}, heads"));
    let mut noise = Noise::new(&format!(
        "matmul_heads {}{count}{columns}{outputs}",
        fixture.option
    ));
    let values = noise.values((count * outputs * columns) as usize);
    let weight = fixture.weight("weight", count * outputs, format, &values);
    fixture.plan.stack_experts(weight, count);
    let step = MatMulExperts {
        x: fixture.buffer("x", Rows::Tokens, count * stride, storage),
        routes: None,
        weight,
        bias: None,
        accumulate: false,
        out: fixture.buffer("out", Rows::Tokens, count * outputs, storage),
    };
    fixture.push(Step::MatMulExperts(step));
    let weights = fixture.weight_values(weight);
    for tokens in [1, 3, 17, 70] {
        let shape = format!("{tokens} × {columns} × {outputs}, {count} heads");
        let mut run = Run::new(shape, plain_batch(tokens));
        let x = noise.rounded(storage, (tokens * count * stride) as usize);
        let allowed = heads.allowed(&x, &weights);
        run.buffers.push((step.x, x));
        expect_rows(&fixture, &mut run, step.out, tokens, each(allowed));
        if count > 1 {
            run.mutants.extend([
                Mutant::SwapHeads(step.x, stride, 0, count - 1),
                Mutant::SwapWeightRows(weight, 0, outputs * (count - 1)),
            ]);
        }
        if tokens > 1 {
            run.mutants.push(Mutant::SwapRows(step.x, 0, tokens - 1));
        }
        fixture.runs.push(run);
    }
    fixture
}

impl Heads {
    /// Tolerance: 1e-5 · Σ |x·w|.
    fn allowed(&self, x: &[f32], weights: &[f32]) -> Vec<f64> {
        let (columns, outputs) = (self.columns as usize, self.outputs as usize);
        let mut allowed = Vec::new();
        for (head, x) in x.chunks_exact(self.stride as usize).enumerate() {
            let expert = head % self.count as usize;
            let weights = &weights[expert * outputs * columns..][..outputs * columns];
            for weights in weights.chunks_exact(columns) {
                allowed.push(PRODUCTS * magnitude(x, weights));
            }
        }
        allowed
    }
}
