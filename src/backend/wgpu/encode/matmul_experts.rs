//! `MatMulExperts` → one dispatch per shard of the weight and, for many routes, one that sums the products in scratch.
//!
//! A shard holds whole experts, or a part of one if an expert exceeds the binding limit. A route whose expert is in
//! another shard costs next to nothing.

use super::super::super::{BackendError, Capacity, FEW_ROWS_MAX};
use super::super::arena::{Binding, Shard};
use super::super::device::{Class, Profile, Tier};
use super::super::matrices::Matrices;
use super::super::pipelines::Kernel;
use super::matmul::{self, LANE_WORKGROUP, TILE_OUTPUTS, for_matrices, for_tile};
use super::{Recorder, RowParams, Variant, for_weight, params, test_profile, weight_variants};
use crate::plan::{ExpertShape, MatMulExperts, Plan, Step, WeightFormat};

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

/// Lanes that share the outputs of a slot of `matmul_experts_vec`, and these outputs.
const VEC_LANES: u32 = 16;
const VEC_OUTPUTS: u32 = 4;
/// Slots of its workgroup.
const VEC_SLOTS: u32 = 64 / VEC_LANES;
/// Rows of a tile of `matmul_experts_tile`.
const TILE_ROWS: u32 = 32;

/// Tokens whose routes `matmul_experts_tile` searches at once: the maximum number of routes it can hold per expert.
const SEGMENT_TOKENS: u32 = 512;

/// The experts in a shard, and which rows of each.
struct Part {
    /// Rows of each expert, and the first of them.
    outputs: u32,
    output_start: u32,
    /// The first expert, and their number.
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

/// The kernel and its tile, which determine the grid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tiling {
    /// `matmul_experts_lane`: an invocation has four outputs of a row.
    Lane,
    /// `matmul_experts_vec`: [`VEC_LANES`] invocations share [`VEC_OUTPUTS`] outputs of a row.
    Vec,
    /// `matmul_experts_tile`: a workgroup has [`TILE_OUTPUTS`] outputs of all routes to an expert.
    Tile,
    /// The same by cooperative matrices.
    Matrices(Matrices),
}

impl Tiling {
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

    fn is_tile(self) -> bool {
        matches!(self, Self::Tile | Self::Matrices(_))
    }
}

/// What the kernel of a product with experts is compiled for.
struct ExpertsVariant {
    tiling: Tiling,
    format: WeightFormat,
    /// Columns of the weight, in units of 8.
    eights: u32,
    options: ExpertsOptions,
}

#[derive(Clone, Copy, Default)]
struct ExpertsOptions {
    /// The kernel weights and sums the products of a token.
    combine: bool,
    bias: bool,
    /// The experts are the heads of a token: there are no routes.
    heads: bool,
}

impl ExpertsVariant {
    fn kernel(&self, profile: &Profile) -> Kernel {
        let ExpertsOptions {
            combine,
            bias,
            heads,
        } = self.options;
        for_weight(self.tiled(), self.format, profile)
            .define_if(combine, "COMBINE")
            .define_if(bias, "BIAS")
            .define_if(heads, "HEADS")
    }

    /// The kernel with its tile.
    fn tiled(&self) -> Kernel {
        let has_partial_group = self.format.is_quantised() && !self.eights.is_multiple_of(4);
        match self.tiling {
            Tiling::Lane => Kernel::new("matmul_experts_lane"),
            Tiling::Vec => Kernel::new("matmul_experts_vec")
                .number("ROWS", 1)
                .define("ONE_ROW")
                .number("OUTPUTS", VEC_OUTPUTS)
                .number("LANES", VEC_LANES)
                .define_if(has_partial_group, "PARTIAL"),
            Tiling::Tile => for_tile(Kernel::new("matmul_experts_tile"), TILE_ROWS),
            Tiling::Matrices(matrices) => {
                for_matrices(Kernel::new("matmul_experts_tile"), TILE_ROWS, matrices)
            }
        }
    }
}

/// Bytes of scratch for products before they are summed per token; one buffer, reused by every layer.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let bytes = plan.body.iter().filter_map(|step| match step {
        Step::MatMulExperts(step) if step.shape(plan).combine => {
            Some(products_bytes(&step.shape(plan), capacity.tokens_max))
        }
        _ => None,
    });
    let used = profile.class != Class::Software && !capacity.deterministic;
    bytes
        .filter(|bytes| used && *bytes <= profile.binding_bytes_max)
        .max()
        .unwrap_or(0)
}

/// Bytes of the products of some routes.
fn products_bytes(shape: &ExpertShape, tokens: u32) -> u64 {
    u64::from(shape.routes(tokens)) * u64::from(shape.outputs) * 4
}

/// Records the dispatches.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &MatMulExperts,
) -> Result<(), BackendError> {
    let weight = recorder.weight(step.weight);
    if !weight.columns.is_multiple_of(8) {
        return Err(BackendError::columns("matmul_experts", weight.columns, 8));
    }
    let products = ExpertProducts::new(recorder, step);
    if matches!(products.tiling, Tiling::Matrices(_)) {
        matmul::narrow(recorder, step.x)?;
    }
    for shard in &weight.shards {
        products.record(recorder, shard)?;
    }
    if products.are_summed_later() {
        products.record_sums(recorder)?;
    }
    Ok(())
}

/// The products of a step: what they are, and how they are computed.
struct ExpertProducts<'a> {
    step: &'a MatMulExperts,
    shape: ExpertShape,
    tiling: Tiling,
    /// Columns of the weight.
    columns: u32,
    experts: u32,
}

impl<'a> ExpertProducts<'a> {
    fn new(recorder: &Recorder<'_>, step: &'a MatMulExperts) -> Self {
        let weight = recorder.plan.weight_spec(step.weight);
        let shape = step.shape(recorder.plan);
        debug_assert_eq!(
            weight.rows,
            weight.experts * shape.outputs,
            "each expert gives a row of out"
        );
        Self {
            step,
            tiling: choose(recorder, step, &shape),
            shape,
            columns: recorder.weight(step.weight).columns,
            experts: weight.experts,
        }
    }

    /// Whether the products go to scratch, from where another dispatch sums them.
    fn are_summed_later(&self) -> bool {
        self.shape.combine && self.tiling.is_tile()
    }

    fn options(&self) -> ExpertsOptions {
        ExpertsOptions {
            combine: self.shape.combine && !self.tiling.is_tile(),
            bias: self.step.bias.is_some(),
            heads: self.step.routes.is_none(),
        }
    }

    /// Records the products with the experts of a shard.
    fn record(&self, recorder: &mut Recorder<'_>, shard: &Shard) -> Result<(), BackendError> {
        let variant = ExpertsVariant {
            tiling: self.tiling,
            format: shard.format,
            eights: self.columns / 8,
            options: self.options(),
        };
        let kernel = variant.kernel(recorder.profile);
        let part = Part::of(shard, self.shape.outputs);
        let params = self.params(recorder, shard.format, &part);
        let bindings = self.bindings(recorder, shard);
        let workgroups = self.tiling.workgroups(params.units, &part);
        recorder.dispatch(&kernel, &params, &bindings, workgroups)
    }

    fn params(&self, recorder: &Recorder<'_>, format: WeightFormat, part: &Part) -> Params {
        let shape = &self.shape;
        let (units, routes_each) = if self.options().combine {
            (recorder.rows(self.step.out), shape.per_token)
        } else {
            (shape.routes(recorder.shape.tokens), 1)
        };
        let row = RowParams::new(format, self.columns);
        Params {
            units,
            routes_each,
            x_routes: shape.x_routes,
            eights: self.columns / 8,
            outputs: part.outputs,
            output_start: part.output_start,
            columns: shape.outputs,
            expert_first: part.expert_first,
            expert_count: part.expert_count,
            // Experts of later shards add to the output of earlier ones.
            accumulate: u32::from(self.step.accumulate || part.expert_first > 0),
            segment: SEGMENT_TOKENS * shape.per_token,
            x_vectors: shape.x_stride / 4,
            heads: self.experts,
            row_vectors: row.row_vectors,
            plane: row.plane,
            scales: row.scales,
            supers: row.supers,
        }
    }

    /// x, the routes, the weight, the bias and out, or the scratch in its place.
    fn bindings<'b>(&self, recorder: &Recorder<'b>, shard: &'b Shard) -> Vec<Binding<'b>> {
        let arena = recorder.arena;
        let x = match self.tiling {
            Tiling::Matrices(_) => &arena.narrow_rows,
            _ => recorder.row_buffer(self.step.x),
        };
        // What is absent is bound to something that is not read.
        let routes = match self.step.routes {
            Some(routes) => recorder.row_buffer(routes),
            None => &arena.metadata,
        };
        let out = if self.are_summed_later() {
            &arena.expert_scratch
        } else {
            recorder.row_buffer(self.step.out)
        };
        let mut bindings = vec![x.read(), routes.read(), shard.buffer.read()];
        bindings.extend(self.step.bias.map(|bias| recorder.vector(bias).read()));
        bindings.push(out.read_write());
        bindings
    }

    /// Records the dispatch that sums the products in scratch.
    fn record_sums(&self, recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
        let params = MergeParams {
            tokens: recorder.rows(self.step.out),
            per_token: self.shape.per_token,
            columns: self.shape.outputs,
            accumulate: u32::from(self.step.accumulate),
        };
        let routes = self
            .step
            .routes
            .expect("only the products of routes are summed");
        let bindings = [
            recorder.arena.expert_scratch.read(),
            recorder.row_buffer(routes).read(),
            recorder.row_buffer(self.step.out).read_write(),
        ];
        let workgroups = (params.tokens * params.columns).div_ceil(64);
        recorder.dispatch(&merge_kernel(), &params, &bindings, workgroups)
    }
}

/// The tiling of a step: that of the table, if scratch has room for what it needs.
fn choose(recorder: &Recorder<'_>, step: &MatMulExperts, shape: &ExpertShape) -> Tiling {
    let (profile, tokens) = (recorder.profile, recorder.shape.tokens);
    let deterministic = recorder.capacity.deterministic;
    let experts = recorder.plan.weight_spec(step.weight).experts;
    let tiling = Tiling::choose(profile, deterministic, shape.routes(tokens), experts);
    if tiling != Tiling::Tile {
        return tiling;
    }
    if shape.combine && products_bytes(shape, tokens) > recorder.arena.expert_scratch.bytes {
        return Tiling::Vec;
    }
    // Heads are parts of a row, of which each would need a scale of its own.
    let can_be_narrow = step.routes.is_some()
        && recorder.rows(step.x) > FEW_ROWS_MAX
        && matmul::can_narrow(recorder, step.x);
    match profile.matrices() {
        Some(matrices) if can_be_narrow => Tiling::Matrices(matrices),
        _ => Tiling::Tile,
    }
}

fn merge_kernel() -> Kernel {
    Kernel::new("matmul_experts_merge")
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = vec![Variant::new::<MergeParams>(
        merge_kernel(),
        MergeParams::FIELDS,
    )];
    for (tiling, eights) in [
        (Tiling::Lane, 4),
        (Tiling::Vec, 4),
        (Tiling::Vec, 5),
        (Tiling::Tile, 4),
        // The others share their tiles with `matmul_tile`.
        (Tiling::Matrices(Matrices::USUAL), 4),
        (Tiling::Matrices(Matrices::EIGHT), 4),
    ] {
        let class = match tiling {
            Tiling::Lane => Class::Software,
            _ => Class::Discrete,
        };
        for options in listed_options(tiling) {
            variants.extend(weight_variants(|format, half| {
                let variant = ExpertsVariant {
                    tiling,
                    format,
                    eights,
                    options,
                };
                let profile = test_profile(class, Tier::T0, half.half_conversion);
                Variant::new::<Params>(variant.kernel(&profile), Params::FIELDS)
            }));
        }
    }
    variants
}

/// Options that are listed with a tiling. A tile never combines.
fn listed_options(tiling: Tiling) -> Vec<ExpertsOptions> {
    let plain = ExpertsOptions::default();
    let bias = ExpertsOptions {
        bias: true,
        ..plain
    };
    let heads = ExpertsOptions {
        heads: true,
        ..plain
    };
    match tiling {
        Tiling::Lane | Tiling::Vec => {
            let [combine, both] = [plain, bias].map(|options| ExpertsOptions {
                combine: true,
                ..options
            });
            vec![plain, bias, combine, both, heads]
        }
        Tiling::Tile => vec![plain, bias, heads],
        Tiling::Matrices(_) => vec![bias],
    }
}
