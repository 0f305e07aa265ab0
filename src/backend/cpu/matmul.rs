//! Matrix products: a thread computes its panels for all rows.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::product::{DOT_PANELS, Rows, prepare, product};
use super::scratch::ThreadScratch;
use super::simd::{LANES, Lanes, Level, with_simd};
use super::team::Team;
use super::weight::{Matrix, Section};
use crate::plan::inputs::BatchInputs;
use crate::plan::{ExpertGroups, MatMul, MatMulExperts, RouteExperts, Storage};
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;
use std::ops::Range;

/// Runs the step.
pub(super) fn run(step: &MatMul, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, values, storage| {
        let matrix = loaded.matrix(step.weight);
        let (columns, count) = (
            matrix.spec().columns as usize,
            loaded.row_count(step.x, inputs),
        );
        let rows = Rows {
            values: loaded.rows(step.x, inputs),
            stride: columns,
            count,
            list: None,
        };
        let (bias, outputs) = (
            step.bias.map(|id| loaded.vector(id)),
            matrix.spec().rows as usize,
        );
        let values = SharedSlice::new(values);
        let panels = matrix.sections().iter().map(Section::panel_count).sum();
        team.run(panels, DOT_PANELS, |parts, scratch| {
            multiply(
                loaded.level,
                rows,
                matrix.sections(),
                parts,
                scratch,
                |row: usize, first: usize, found: &[f32]| {
                    #[allow(unsafe_code, reason = "panels of different threads are disjoint")]
                    // SAFETY: a panel is in one part of one thread.
                    let out = unsafe {
                        values.part(row * outputs + first..row * outputs + first + found.len())
                    };
                    for (index, (out, value)) in out.iter_mut().zip(found).enumerate() {
                        let bias = bias.map_or(0.0, |bias| bias[first + index]);
                        let old = if step.accumulate { *out } else { 0.0 };
                        *out = storage.round(value + bias + old);
                    }
                },
            );
        });
    });
}

/// Multiplies the rows with parts of the panels; `emit(row, first output, outputs)` takes the products.
fn multiply(
    level: Level,
    rows: Rows<'_>,
    sections: &[Section],
    parts: impl Iterator<Item = Range<usize>>,
    scratch: &mut ThreadScratch,
    mut emit: impl FnMut(usize, usize, &[f32]),
) {
    let scratch = &mut scratch.product;
    let first = sections[0].panels();
    let columns = 0..first.columns;
    with_simd!(level, s => prepare(s, rows, &first, columns.len(), scratch));
    for part in parts {
        let mut before = 0;
        for section in sections {
            let count = section.panel_count();
            let [start, end] =
                [part.start, part.end].map(|panel| panel.clamp(before, before + count) - before);
            before += count;
            if start == end {
                continue;
            }
            let panels = section.panels();
            let mut emit = |row: usize, panel: usize, lanes: &Lanes| {
                let found = (section.rows - panel * LANES).min(LANES);
                emit(row, section.first_row + panel * LANES, &lanes[..found]);
            };
            with_simd!(level, s => product(s, rows, &panels, start..end, columns.clone(), scratch, &mut emit));
        }
    }
}

/// Runs the step: the rows of all tokens of an expert are multiplied together.
pub(super) fn run_experts(
    step: &MatMulExperts,
    loaded: &mut Loaded,
    team: &mut Team,
    arena: &Bump,
    inputs: &BatchInputs,
) {
    let shape = step.shape(&loaded.plan);
    loaded.write(step.out, inputs, |loaded, values, storage| {
        let experts = Experts {
            level: loaded.level,
            matrix: loaded.matrix(step.weight),
            bias: step.bias.map(|id| loaded.vector(id)),
            routes: match step.routes {
                Some(routes) => loaded.rows(routes, inputs),
                None => arena
                    .alloc_slice_fill_iter(shape.head_routes(inputs.positions.len() as u32))
                    .as_flattened(),
            },
            per_token: shape.per_token as usize,
            x: loaded.rows(step.x, inputs),
            x_routes: shape.x_routes as usize,
            x_stride: shape.x_stride as usize,
            combine: shape.combine,
            accumulate: step.accumulate,
            storage,
        };
        experts.run(values, team, arena);
    });
}

/// An expert with its routes.
struct Chosen<'a> {
    expert: usize,
    routes: &'a [usize],
    /// The row of x that each route reads.
    rows: &'a [usize],
}

/// Operands of a product with experts.
struct Experts<'a> {
    level: Level,
    matrix: &'a Matrix,
    bias: Option<&'a [f32]>,
    /// (expert id, weight) per route.
    routes: &'a [f32],
    per_token: usize,
    x: &'a [f32],
    /// Routes that read the same row of x.
    x_routes: usize,
    /// Elements from one row of x to the next.
    x_stride: usize,
    /// Whether the products of a token are weighted and added.
    combine: bool,
    accumulate: bool,
    storage: Storage,
}

impl Experts<'_> {
    fn run(&self, values: &mut [f32], team: &mut Team, arena: &Bump) {
        let (chosen, values) = (self.chosen(arena), SharedSlice::new(values));
        team.run(
            self.outputs().div_ceil(LANES),
            DOT_PANELS,
            |parts, scratch| {
                parts.for_each(|panels| self.run_part(panels, chosen, &values, scratch));
            },
        );
    }

    /// The experts that have routes.
    fn chosen<'a>(&self, arena: &'a Bump) -> &'a [Chosen<'a>] {
        let experts = self.matrix.spec().experts as usize;
        let expert = |route: usize| (self.routes[2 * route] as usize).min(experts - 1);
        let routes: &[usize] = {
            let routes = arena.alloc_slice_fill_with(self.routes.len() / 2, |route| route);
            routes.sort_unstable_by_key(|&route| (expert(route), route));
            routes
        };
        let rows: &[usize] =
            arena.alloc_slice_fill_with(routes.len(), |at| routes[at] / self.x_routes);
        let (mut chosen, mut first) = (ArenaVec::new_in(arena), 0);
        for routes in routes.chunk_by(|&a, &b| expert(a) == expert(b)) {
            chosen.push(Chosen {
                expert: expert(routes[0]),
                routes,
                rows: &rows[first..][..routes.len()],
            });
            first += routes.len();
        }
        chosen.into_bump_slice()
    }

    /// Outputs of an expert.
    fn outputs(&self) -> usize {
        (self.matrix.spec().rows / self.matrix.spec().experts) as usize
    }

    /// Some panels of all experts.
    fn run_part(
        &self,
        panels: Range<usize>,
        chosen: &[Chosen<'_>],
        values: &SharedSlice<'_, f32>,
        scratch: &mut ThreadScratch,
    ) {
        let outputs = self.outputs();
        let place = |row: usize, range: &Range<usize>| {
            #[allow(unsafe_code, reason = "panels of different threads are disjoint")]
            // SAFETY: a panel is in one part of one thread, for all experts.
            unsafe {
                values.part(row * outputs + range.start..row * outputs + range.end)
            }
        };
        if self.combine && !self.accumulate {
            let tokens = self.routes.len() / 2 / self.per_token;
            let own = panels.start * LANES..(panels.end * LANES).min(outputs);
            (0..tokens).for_each(|token| place(token, &own).fill(0.0));
        }
        for Chosen {
            expert,
            routes,
            rows,
        } in chosen
        {
            let sections = self.matrix.sections_of(*expert);
            let rows = Rows {
                values: self.x,
                stride: self.x_stride,
                count: rows.len(),
                list: Some(rows),
            };
            multiply(
                self.level,
                rows,
                sections,
                std::iter::once(panels.clone()),
                scratch,
                |row, first, found| {
                    let (route, own) = (routes[row], first - expert * outputs);
                    let (target, weight) = match self.combine {
                        true => (route / self.per_token, self.routes[2 * route + 1]),
                        false => (route, 1.0),
                    };
                    let out = place(target, &(own..own + found.len()));
                    for (index, (out, value)) in out.iter_mut().zip(found).enumerate() {
                        let value = value + self.bias.map_or(0.0, |bias| bias[first + index]);
                        let old = if self.combine { *out } else { 0.0 };
                        *out = self.storage.round(old + weight * value);
                    }
                },
            );
        }
    }
}

/// Chooses the experts of each token.
pub(super) fn route(step: &RouteExperts, loaded: &mut Loaded, arena: &Bump, inputs: &BatchInputs) {
    loaded.write(step.routes, inputs, |loaded, routes, _| {
        let (experts, per_token) = (loaded.columns(step.logits), loaded.per_token(step.routes));
        let routing = step.routing;
        let (ids, keys) = (
            arena.alloc_slice_fill_copy(experts, 0),
            arena.alloc_slice_fill_copy(experts, 0),
        );
        let values = arena.alloc_slice_fill_copy(experts, 0.0);
        let [bias, scales] =
            [routing.bias, routing.expert_scale].map(|weight| weight.map(|id| loaded.vector(id)));
        let logits = loaded.rows(step.logits, inputs).chunks_exact(experts);
        for (logits, routes) in logits.zip(routes.chunks_exact_mut(2 * per_token)) {
            ids.iter_mut().enumerate().for_each(|(at, id)| *id = at);
            choice_keys(logits, bias, routing.groups, values, keys);
            ids.sort_unstable_by_key(|&id| (std::cmp::Reverse(keys[id]), id));
            let share = |id: usize| match routing.sigmoid {
                true => sigmoid(logits[id]),
                false => (logits[id] - logits[ids[0]]).exp(),
            };
            let counted = if routing.renormalize {
                &ids[..per_token]
            } else {
                &ids[..]
            };
            let sum: f32 = counted.iter().map(|&id| share(id)).sum();
            let sum = match (routing.sigmoid, routing.renormalize) {
                (true, true) => sum + 1e-20,
                (true, false) => 1.0,
                (false, _) => sum,
            };
            for (route, &id) in routes.chunks_exact_mut(2).zip(&*ids) {
                let scale = routing.factor * scales.map_or(1.0, |scales| scales[id]);
                (route[0], route[1]) = (id as f32, share(id) / sum * scale);
            }
        }
    });
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// What experts are ordered by; 0 for those of groups that are not kept. `values` is a buffer.
fn choice_keys(
    logits: &[f32],
    bias: Option<&[f32]>,
    groups: Option<ExpertGroups>,
    values: &mut [f32],
    keys: &mut [u32],
) {
    values.copy_from_slice(logits);
    if let Some(bias) = bias {
        values
            .iter_mut()
            .zip(bias)
            .for_each(|(value, bias)| *value = sigmoid(*value) + bias);
    }
    keys.iter_mut()
        .zip(&*values)
        .for_each(|(key, &value)| *key = order(value));
    let Some(ExpertGroups { count, kept }) = groups else {
        return;
    };
    let size = logits.len() / count as usize;
    // A group's value is its first element from here on.
    for group in values.chunks_exact_mut(size) {
        group.select_nth_unstable_by(1, |a, b| b.total_cmp(a));
        if bias.is_some() {
            group[0] += group[1];
        }
    }
    let value = |group: usize| (order(values[group * size]), std::cmp::Reverse(group));
    for group in 0..count as usize {
        let better = (0..count as usize)
            .filter(|&other| value(other) > value(group))
            .count();
        if better >= kept as usize {
            keys[group * size..][..size].fill(0);
        }
    }
}

/// Maps a logit to an integer with the same order: −0 is below 0, and NaN above everything.
fn order(logit: f32) -> u32 {
    let bits = logit.to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}
