//! `MatMulExperts`: few routes → `matmul_experts_vec`, one launch per part of the experts. Many routes →
//! `matmul_experts_group` and `matmul_experts_tile`, one launch each per part, then `matmul_experts_merge` if products
//! are combined. Tokens are processed in slices, so that scratch stays small.

use super::super::super::{BackendError, Capacity};
use super::super::arena::DeviceWeight;
use super::super::kernel::Kernel;
use super::tile::{Size, Tile};
use super::{Recorder, eights_of, params};
use crate::plan::{ExpertShape, MatMulExperts, Plan, Step, Storage, WeightFormat};

params! {
    GroupParams {
        routes: u64, order: u64, starts: u64, metadata: u64,
        per_token: u32,
        experts: u32,
        first_route: u32,
        routes_max: u32,
    }
}

params! {
    TileParams {
        x: u64, weight: u64, bias: u64, out: u64, order: u64, starts: u64, expert_stride: u64,
        experts: u32,
        expert_first: u32,
        expert_count: u32,
        x_routes: u32,
        columns: u32,
        outputs: u32,
        output_start: u32,
        output_stride: u32,
    }
}

params! {
    MergeParams {
        products: u64, routes: u64, out: u64, metadata: u64,
        per_token: u32,
        columns: u32,
        accumulate: u32,
        first_token: u32,
        tokens_max: u32,
        padding: u32,
    }
}

params! {
    VecParams {
        x: u64, routes: u64, weight: u64, bias: u64, out: u64, metadata: u64, expert_stride: u64,
        per_token: u32,
        expert_first: u32,
        expert_count: u32,
        x_routes: u32,
        columns: u32,
        outputs: u32,
        output_start: u32,
        output_stride: u32,
        accumulate: u32,
        x_stride: u32,
    }
}

/// Maximum bytes of products that wait to be combined.
const PRODUCTS_BYTES_MAX: u64 = 64 << 20;
/// Threads per block of `matmul_experts_group` and `matmul_experts_merge`.
const THREADS: u32 = 256;
/// Threads per block of `matmul_experts_vec`.
const VEC_THREADS: u32 = 128;
/// Outputs per block of `matmul_experts_vec`.
const VEC_OUTPUTS: u32 = 16;

/// The same rows of consecutive experts, in one format and at a constant distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    output_start: u32,
    outputs: u32,
    format: WeightFormat,
    expert_first: u32,
    expert_count: u32,
    address: u64,
    /// Bytes from one expert to the next.
    stride: u64,
}

/// Cuts a weight at expert boundaries, and merges what repeats from expert to expert.
fn parts(weight: &DeviceWeight, expert_rows: u32) -> Vec<Part> {
    debug_assert!(expert_rows > 0, "an expert has rows");
    let mut parts: Vec<Part> = Vec::new();
    for section in &weight.sections {
        let row_bytes = section.format.row_bytes(weight.columns);
        let (mut row, end) = (section.row_start, section.row_start + section.rows);
        while row < end {
            let (expert, output_start) = (row / expert_rows, row % expert_rows);
            let outputs = (end - row).min(expert_rows - output_start);
            let address = section.address + u64::from(row - section.row_start) * row_bytes;
            let (format, stride) = (section.format, 0);
            let new = Part {
                output_start,
                outputs,
                format,
                expert_first: expert,
                expert_count: 1,
                address,
                stride,
            };
            match parts
                .iter()
                .rposition(|part| part.output_start == output_start)
            {
                Some(at) if parts[at].continues_with(&new) => {
                    let part = &mut parts[at];
                    part.stride = (address - part.address) / u64::from(part.expert_count);
                    part.expert_count += 1;
                }
                _ => parts.push(new),
            }
            row += outputs;
        }
    }
    parts
}

impl Part {
    fn continues_with(&self, next: &Self) -> bool {
        let same = self.outputs == next.outputs && self.format == next.format;
        let follows = next.expert_first == self.expert_first + self.expert_count;
        let distance = u64::from(self.expert_count) * self.stride;
        same && follows && (self.expert_count == 1 || next.address == self.address + distance)
    }
}

/// What all launches of a step share.
struct Call<'a> {
    step: &'a MatMulExperts,
    parts: Vec<Part>,
    experts: u32,
    /// Columns of the weight.
    columns: u32,
    /// Where rows are.
    shape: ExpertShape,
}

/// Bytes of the lists of `matmul_experts_group` for the largest step of the plan.
fn lists_bytes(plan: &Plan, capacity: &Capacity) -> u64 {
    let bytes = plan.body.iter().filter_map(|step| match step {
        Step::MatMulExperts(step) if step.routes.is_some() => {
            let routes = step.shape(plan).routes(capacity.tokens_max);
            Some(u64::from(routes) * 4 + u64::from(plan.weight_spec(step.weight).experts + 1) * 4)
        }
        _ => None,
    });
    bytes.max().unwrap_or(0).next_multiple_of(256)
}

/// Bytes of scratch for lists and for products to be combined; one buffer, reused by every layer.
pub(in super::super) fn scratch_bytes(plan: &Plan, capacity: &Capacity) -> u64 {
    let bytes = plan.body.iter().filter_map(|step| match step {
        Step::MatMulExperts(step) if step.shape(plan).combine => {
            let shape = step.shape(plan);
            let token = u64::from(shape.per_token) * u64::from(shape.outputs) * 4;
            Some((token * u64::from(capacity.tokens_max)).min(PRODUCTS_BYTES_MAX.max(token)))
        }
        _ => None,
    });
    lists_bytes(plan, capacity) + bytes.max().unwrap_or(0)
}

/// Records the launches.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &MatMulExperts,
) -> Result<(), BackendError> {
    let plan = recorder.plan;
    let weight = recorder.weight(step.weight);
    eights_of("matmul_experts", weight.columns)?;
    let shape = step.shape(plan);
    let outputs = shape.outputs;
    debug_assert!(
        weight.columns <= shape.x_stride,
        "a row of x is as long as a row of the weight"
    );
    debug_assert_eq!(
        plan.weight_spec(step.weight).rows,
        plan.weight_spec(step.weight).experts * outputs,
        "whole experts"
    );
    let call = Call {
        step,
        parts: parts(weight, outputs),
        experts: plan.weight_spec(step.weight).experts,
        columns: weight.columns,
        shape,
    };
    // Tiles read each matrix once: worthwhile as soon as some experts are chosen more than once. Heads have no lists
    // of routes to make tiles of.
    let many = step
        .routes
        .is_some_and(|routes| recorder.rows(routes) >= call.experts);
    let many = many && !recorder.capacity.deterministic;
    let narrow = recorder.storage(step.x) == Storage::Bf16;
    if many
        && narrow
        && call
            .parts
            .iter()
            .all(|part| part.format.has_narrow_levels())
    {
        call.tiles(recorder)
    } else {
        call.parts
            .iter()
            .try_for_each(|part| call.vec(recorder, part))
    }
}

impl Call<'_> {
    fn routes(&self, recorder: &Recorder<'_>) -> u64 {
        recorder.row_buffer(self.step.routes.expect("tiles are made of routes"))
    }

    fn vec(&self, recorder: &mut Recorder<'_>, part: &Part) -> Result<(), BackendError> {
        let (arena, step) = (recorder.arena, self.step);
        let kernel = Kernel::new("matmul_experts_vec")
            .define("WEIGHT", format!("{:?}", part.format))
            .define_type("X_TYPE", recorder.storage(step.x))
            .define_type("OUT_TYPE", recorder.storage(step.out))
            .flag_if(self.shape.combine, "COMBINE")
            .flag_if(step.routes.is_none(), "HEADS");
        let params = VecParams {
            x: recorder.row_buffer(step.x),
            routes: step.routes.map_or(0, |routes| recorder.row_buffer(routes)),
            weight: part.address,
            bias: recorder.optional(step.bias),
            out: recorder.row_buffer(step.out),
            metadata: arena.metadata,
            expert_stride: part.stride,
            per_token: self.shape.per_token,
            expert_first: part.expert_first,
            expert_count: part.expert_count,
            x_routes: self.shape.x_routes,
            columns: self.columns,
            outputs: part.outputs,
            output_start: part.output_start,
            output_stride: self.shape.outputs,
            // Later parts add to what the first part has written.
            accumulate: u32::from(step.accumulate || self.shape.combine && part.expert_first > 0),
            x_stride: self.shape.x_stride,
        };
        let tokens = recorder.shape.tokens;
        let units = if self.shape.combine {
            tokens
        } else {
            self.shape.routes(tokens)
        };
        let grid = [units, part.outputs.div_ceil(VEC_OUTPUTS), 1];
        recorder.launch(&kernel, &params, grid, VEC_THREADS, 0)
    }

    fn tiles(&self, recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
        let tokens = recorder.shape.tokens;
        if !self.shape.combine {
            let out = (
                recorder.row_buffer(self.step.out),
                recorder.storage(self.step.out),
            );
            return self.tiles_of(recorder, 0, tokens, out);
        }
        let token_bytes = u64::from(self.shape.per_token) * u64::from(self.shape.outputs) * 4;
        let at_once =
            (PRODUCTS_BYTES_MAX / token_bytes.max(1)).clamp(1, u64::from(tokens.max(1))) as u32;
        let products =
            recorder.arena.expert_scratch + lists_bytes(recorder.plan, recorder.capacity);
        for first in (0..tokens).step_by(at_once as usize) {
            let some = at_once.min(tokens - first);
            // The address that the products of token 0 would have.
            let base = products.wrapping_sub(u64::from(first) * token_bytes);
            self.tiles_of(recorder, first, some, (base, Storage::F32))?;
            self.merge(recorder, first, some, base)?;
        }
        Ok(())
    }

    /// Launches for the products of some tokens, written to each route's row of `out`.
    fn tiles_of(
        &self,
        recorder: &mut Recorder<'_>,
        first_token: u32,
        tokens: u32,
        (out, storage): (u64, Storage),
    ) -> Result<(), BackendError> {
        let arena = recorder.arena;
        let routes_max = tokens * self.shape.per_token;
        let lists_max = lists_bytes(recorder.plan, recorder.capacity);
        debug_assert!(
            u64::from(routes_max + self.experts + 1) * 4 <= lists_max,
            "the lists fit the scratch"
        );
        debug_assert!(
            first_token + tokens <= recorder.shape.tokens,
            "a slice has tokens of the batch"
        );
        let order = arena.expert_scratch;
        let starts = order + u64::from(routes_max) * 4;
        let group = GroupParams {
            routes: self.routes(recorder),
            order,
            starts,
            metadata: arena.metadata,
            per_token: self.shape.per_token,
            experts: self.experts,
            first_route: first_token * self.shape.per_token,
            routes_max,
        };
        recorder.launch(
            &Kernel::new("matmul_experts_group"),
            &group,
            [self.experts, 1, 1],
            THREADS,
            0,
        )?;
        for part in &self.parts {
            let tile = self.tile(recorder, part.format, routes_max);
            let params = TileParams {
                x: recorder.row_buffer(self.step.x),
                weight: part.address,
                bias: recorder.optional(self.step.bias),
                out,
                order,
                starts,
                expert_stride: part.stride,
                experts: self.experts,
                expert_first: part.expert_first,
                expert_count: part.expert_count,
                x_routes: self.shape.x_routes,
                columns: self.columns,
                outputs: part.outputs,
                output_start: part.output_start,
                output_stride: self.shape.outputs,
            };
            let row_tiles = routes_max / tile.rows + self.experts.min(routes_max);
            let grid = [row_tiles, part.outputs.div_ceil(tile.outputs), 1];
            // Shared memory also holds the rows of out and the tile's description.
            let shared_bytes = tile.shared_bytes(part.format) + 4 * tile.rows + 16;
            let kernel = tile.kernel("matmul_experts_tile", part.format, storage);
            recorder.launch(&kernel, &params, grid, tile.threads(), shared_bytes)?;
        }
        Ok(())
    }

    /// A tile for the average number of routes per expert plus a margin, since routes are never evenly distributed.
    fn tile(&self, recorder: &Recorder<'_>, format: WeightFormat, routes: u32) -> Tile {
        let size = match routes.div_ceil(self.experts) {
            0..=8 => Size::Tiny,
            9..=24 => Size::Small,
            25..=96 => Size::Middle,
            _ => Size::Large,
        };
        Tile::new(size, format, recorder.device.shared_bytes_max)
    }

    fn merge(
        &self,
        recorder: &mut Recorder<'_>,
        first_token: u32,
        tokens_max: u32,
        products: u64,
    ) -> Result<(), BackendError> {
        let (arena, step) = (recorder.arena, self.step);
        let kernel =
            Kernel::new("matmul_experts_merge").define_type("OUT_TYPE", recorder.storage(step.out));
        let params = MergeParams {
            products,
            routes: self.routes(recorder),
            out: recorder.row_buffer(step.out),
            metadata: arena.metadata,
            per_token: self.shape.per_token,
            columns: self.shape.outputs,
            accumulate: u32::from(step.accumulate),
            first_token,
            tokens_max,
            padding: 0,
        };
        let threads = tokens_max * self.shape.outputs.div_ceil(4);
        recorder.launch(
            &kernel,
            &params,
            [threads.div_ceil(THREADS), 1, 1],
            THREADS,
            0,
        )
    }
}

#[cfg(test)]
mod tests;
