//! `RouteExperts` → one dispatch; `MatMulExperts` → one per shard of the weight and, for many routes, one that sums the
//! products in scratch.
//!
//! A shard holds whole experts, or a part of one if an expert exceeds the binding limit. A route whose expert is in
//! another shard costs next to nothing.

use super::super::super::{BackendError, Capacity, FEW_ROWS_MAX};
use super::super::arena::Shard;
use super::super::device::{Class, Profile, Tier};
use super::super::matrices::Matrices;
use super::super::pipelines::Kernel;
use super::matmul::{self, LANE_WORKGROUP, TILE_OUTPUTS, for_matrices, for_tile};
use super::{Recorder, RowParams, Variant, for_weight, params};
use crate::plan::{ExpertShape, MatMulExperts, Plan, RouteExperts, Step, WeightFormat, WeightId};

params! {
    RouteParams {
        tokens: u32,
        experts: u32,
        per_token: u32,
        renormalize: u32,
        has_bias: u32,
        groups: u32,
        kept: u32,
        has_scale: u32,
        factor: f32,
    }
}

params! {
    Params {
        units: u32,
        routes_each: u32,
        x_routes: u32,
        eights: u32,
        outputs: u32,
        output_start: u32,
        columns: u32,
        expert_first: u32,
        expert_count: u32,
        accumulate: u32,
        segment: u32,
        x_vectors: u32,
        heads: u32,
        row_vectors: u32,
        plane: u32,
        scales: u32,
        supers: u32,
    }
}

params! {
    MergeParams { tokens: u32, per_token: u32, columns: u32, accumulate: u32 }
}

fn route_kernel(sigmoid: bool, scaled: bool) -> Kernel {
    Kernel::new("route_experts")
        .define_if(sigmoid, "SIGMOID")
        .define_if(scaled && !sigmoid, "SCALED")
}

/// Records the dispatch of `RouteExperts`.
pub(super) fn encode_routes(
    recorder: &mut Recorder<'_>,
    step: &RouteExperts,
) -> Result<(), BackendError> {
    let RouteExperts {
        logits,
        routing,
        routes,
    } = *step;
    let params = RouteParams {
        tokens: recorder.rows(logits),
        experts: recorder.columns(logits),
        per_token: recorder.plan.buffer_spec(routes).rows.count(1, 0),
        renormalize: u32::from(routing.renormalize),
        has_bias: u32::from(routing.bias.is_some()),
        groups: routing.groups.map_or(0, |groups| groups.count),
        kept: routing.groups.map_or(0, |groups| groups.kept),
        has_scale: u32::from(routing.expert_scale.is_some()),
        factor: routing.factor,
    };
    debug_assert!(
        (1..=params.experts).contains(&params.per_token),
        "each route of a token is to another expert"
    );
    let mut bindings = vec![
        recorder.row_buffer(logits).read(),
        recorder.row_buffer(routes).read_write(),
    ];
    let scaled = routing.factor != 1.0 || routing.expert_scale.is_some();
    // What is absent is bound to something that is not read.
    let absent = recorder.arena.metadata.read();
    let vector =
        |weight: Option<WeightId>| weight.map_or(absent, |weight| recorder.vector(weight).read());
    if routing.sigmoid || scaled {
        bindings.push(vector(routing.expert_scale));
    }
    if routing.sigmoid {
        bindings.push(vector(routing.bias));
    }
    recorder.dispatch(
        &route_kernel(routing.sigmoid, scaled),
        &params,
        &bindings,
        params.tokens,
    )
}

/// The experts in a shard, and which rows of each.
struct Part {
    outputs: u32,
    output_start: u32,
    expert_first: u32,
    expert_count: u32,
}

impl Part {
    fn of(shard: &Shard, expert_rows: u32) -> Self {
        let (expert_first, output_start) =
            (shard.row_start / expert_rows, shard.row_start % expert_rows);
        let outputs = shard.rows.min(expert_rows);
        let whole = shard.rows.is_multiple_of(outputs) && output_start + outputs <= expert_rows;
        debug_assert!(
            whole,
            "a shard has whole experts, or rows of a single expert"
        );
        Self {
            outputs,
            output_start,
            expert_first,
            expert_count: shard.rows / outputs,
        }
    }
}

/// The kernel, which determines the grid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Lane,
    Vec,
    Tile,
    Matrices(Matrices),
}

/// Lanes that share the outputs of a slot of `matmul_experts_vec`, and these outputs.
const VEC_LANES: u32 = 16;
const VEC_OUTPUTS: u32 = 4;
/// Slots of its workgroup.
const VEC_SLOTS: u32 = 64 / VEC_LANES;
/// Rows of a tile of `matmul_experts_tile`.
const TILE_ROWS: u32 = 32;

impl Shape {
    /// The tile table: class and routes per expert → kernel. A tile reads each matrix once, so it pays off as soon as
    /// experts are chosen twice. In deterministic plans, a row's sums must not depend on the number of rows.
    fn choose(profile: &Profile, deterministic: bool, routes: u32, experts: u32) -> Self {
        match profile.class {
            Class::Software => Self::Lane,
            _ if !deterministic && routes >= 2 * experts => Self::Tile,
            _ => Self::Vec,
        }
    }

    /// Number of workgroups for `units` rows of out and the rows of a shard.
    fn workgroups(self, units: u32, part: &Part) -> u32 {
        match self {
            Self::Lane => (units * part.outputs.div_ceil(4)).div_ceil(LANE_WORKGROUP),
            Self::Vec => units * part.outputs.div_ceil(VEC_SLOTS * VEC_OUTPUTS),
            Self::Tile | Self::Matrices(_) => {
                part.expert_count * part.outputs.div_ceil(TILE_OUTPUTS)
            }
        }
    }

    fn kernel(
        self,
        profile: &Profile,
        format: WeightFormat,
        eights: u32,
        combine: bool,
        bias: bool,
    ) -> Kernel {
        let kernel = match self {
            Self::Lane => Kernel::new("matmul_experts_lane"),
            Self::Vec => Kernel::new("matmul_experts_vec")
                .number("ROWS", 1)
                .define("ONE_ROW")
                .number("OUTPUTS", VEC_OUTPUTS)
                .number("LANES", VEC_LANES)
                .define_if(
                    format.is_quantised() && !eights.is_multiple_of(4),
                    "PARTIAL",
                ),
            Self::Tile => for_tile(Kernel::new("matmul_experts_tile"), TILE_ROWS),
            Self::Matrices(matrices) => {
                for_matrices(Kernel::new("matmul_experts_tile"), TILE_ROWS, matrices)
            }
        };
        for_weight(kernel, format, profile)
            .define_if(combine, "COMBINE")
            .define_if(bias, "BIAS")
    }
}

/// Tokens whose routes `matmul_experts_tile` searches at once: the maximum number of routes it can hold per expert.
const SEGMENT_TOKENS: u32 = 512;

/// Bytes of scratch for products before they are summed per token; one buffer, reused by every layer.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let bytes = plan.body.iter().filter_map(|step| match step {
        Step::MatMulExperts(step) if step.shape(plan).combine => {
            let shape = step.shape(plan);
            Some(u64::from(shape.routes(capacity.tokens_max)) * u64::from(shape.outputs) * 4)
        }
        _ => None,
    });
    let used = profile.class != Class::Software && !capacity.deterministic;
    bytes
        .filter(|bytes| used && *bytes <= profile.binding_bytes_max)
        .max()
        .unwrap_or(0)
}

/// Records the dispatches of `MatMulExperts`.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &MatMulExperts,
) -> Result<(), BackendError> {
    let (arena, plan) = (recorder.arena, recorder.plan);
    let weight = recorder.weight(step.weight);
    if !weight.columns.is_multiple_of(8) {
        return Err(BackendError::columns("matmul_experts", weight.columns, 8));
    }
    let rows = step.shape(plan);
    let ExpertShape {
        per_token,
        combine,
        outputs: columns,
        ..
    } = rows;
    let (routes, has_routes) = (rows.routes(recorder.shape.tokens), step.routes.is_some());
    let experts = plan.weight_spec(step.weight).experts;
    debug_assert_eq!(
        plan.weight_spec(step.weight).rows,
        experts * columns,
        "each expert gives a row of out"
    );
    let mut shape = Shape::choose(
        recorder.profile,
        recorder.capacity.deterministic,
        routes,
        experts,
    );
    let scratch_fits = u64::from(routes) * u64::from(columns) * 4 <= arena.expert_scratch.bytes;
    if shape == Shape::Tile && combine && !scratch_fits {
        shape = Shape::Vec;
    }
    let merged = shape == Shape::Tile && combine;
    let x_rows = recorder.rows(step.x);
    // Heads are parts of a row, of which each would need a scale of its own.
    if let Some(matrices) = recorder.profile.matrices
        && shape == Shape::Tile
        && has_routes
        && x_rows > FEW_ROWS_MAX
        && matmul::can_narrow(recorder, step.x)
    {
        shape = Shape::Matrices(matrices);
        matmul::narrow(recorder, step.x)?;
    }
    let x = match shape {
        Shape::Matrices(_) => arena.narrow_rows.read(),
        _ => recorder.row_buffer(step.x).read(),
    };
    let out = if merged {
        &arena.expert_scratch
    } else {
        recorder.row_buffer(step.out)
    };
    let in_kernel = combine && !merged;
    let units = if in_kernel {
        recorder.rows(step.out)
    } else {
        routes
    };
    let list = step.routes.map_or(arena.metadata.read(), |routes| {
        recorder.row_buffer(routes).read()
    });
    for shard in &weight.shards {
        let kernel = shape.kernel(
            recorder.profile,
            shard.format,
            weight.columns / 8,
            in_kernel,
            step.bias.is_some(),
        );
        let kernel = kernel.define_if(!has_routes, "HEADS");
        let RowParams {
            row_vectors,
            plane,
            scales,
            supers,
        } = RowParams::new(shard.format, weight.columns);
        let part = Part::of(shard, columns);
        let params = Params {
            units,
            routes_each: if in_kernel { per_token } else { 1 },
            x_routes: rows.x_routes,
            eights: weight.columns / 8,
            outputs: part.outputs,
            output_start: part.output_start,
            columns,
            expert_first: part.expert_first,
            expert_count: part.expert_count,
            // Experts of later shards add to the output of earlier ones.
            accumulate: u32::from(step.accumulate || part.expert_first > 0),
            segment: SEGMENT_TOKENS * per_token,
            x_vectors: rows.x_stride / 4,
            heads: experts,
            row_vectors,
            plane,
            scales,
            supers,
        };
        let mut bindings = vec![x, list, shard.buffer.read()];
        bindings.extend(step.bias.map(|bias| recorder.vector(bias).read()));
        bindings.push(out.read_write());
        recorder.dispatch(&kernel, &params, &bindings, shape.workgroups(units, &part))?;
    }
    if merged {
        merge(recorder, step, per_token)
    } else {
        Ok(())
    }
}

/// Records the dispatch that sums the products in scratch.
fn merge(
    recorder: &mut Recorder<'_>,
    step: &MatMulExperts,
    per_token: u32,
) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let (tokens, columns) = (recorder.rows(step.out), recorder.columns(step.out));
    let products_bytes = u64::from(tokens * per_token) * u64::from(columns) * 4;
    debug_assert!(
        products_bytes <= arena.expert_scratch.bytes,
        "the products fit the scratch"
    );
    let params = MergeParams {
        tokens,
        per_token,
        columns,
        accumulate: u32::from(step.accumulate),
    };
    let out = recorder.row_buffer(step.out).read_write();
    let routes = step.routes.expect("only the products of routes are summed");
    let bindings = [
        arena.expert_scratch.read(),
        recorder.row_buffer(routes).read(),
        out,
    ];
    recorder.dispatch(
        &Kernel::new("matmul_experts_merge"),
        &params,
        &bindings,
        (tokens * columns).div_ceil(64),
    )
}

/// Every variant that [`encode`] and [`encode_routes`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let kinds = [(false, false), (false, true), (true, false)];
    let kernels = kinds.map(|(sigmoid, scaled)| route_kernel(sigmoid, scaled));
    let mut variants: Vec<Variant> = kernels
        .into_iter()
        .map(|kernel| Variant::new::<RouteParams>(kernel, RouteParams::FIELDS))
        .collect();
    variants.push(Variant::new::<MergeParams>(
        Kernel::new("matmul_experts_merge"),
        MergeParams::FIELDS,
    ));
    // The others share their tiles with `matmul_tile`.
    let matrices =
        [Matrices::USUAL, Matrices::EIGHT].map(|matrices| (Shape::Matrices(matrices), 4));
    let shapes = [
        (Shape::Lane, 4),
        (Shape::Vec, 4),
        (Shape::Vec, 5),
        (Shape::Tile, 4),
    ];
    for (shape, eights) in shapes.into_iter().chain(matrices) {
        for (combine, bias) in [(false, false), (false, true), (true, false), (true, true)] {
            let is_tile = matches!(shape, Shape::Tile | Shape::Matrices(_));
            if combine && is_tile || !bias && matches!(shape, Shape::Matrices(_)) {
                continue;
            }
            variants.extend(super::weight_variants(|format, profile| {
                let class = if shape == Shape::Lane {
                    Class::Software
                } else {
                    Class::Discrete
                };
                let profile = super::test_profile(class, Tier::T0, profile.half_conversion);
                Variant::new::<Params>(
                    shape.kernel(&profile, format, eights, combine, bias),
                    Params::FIELDS,
                )
            }));
        }
        if matches!(shape, Shape::Matrices(_)) {
            continue;
        }
        variants.extend(super::weight_variants(|format, profile| {
            let class = if shape == Shape::Lane {
                Class::Software
            } else {
                Class::Discrete
            };
            let profile = super::test_profile(class, Tier::T0, profile.half_conversion);
            let kernel = shape
                .kernel(&profile, format, eights, false, false)
                .define("HEADS");
            Variant::new::<Params>(kernel, Params::FIELDS)
        }));
    }
    variants
}
