//! Matrix products of a mixture of experts.

use super::loaded::Loaded;
use super::matmul::multiply;
use super::memory::SharedSlice;
use super::product::{DOT_PANELS, Rows};
use super::scratch::ThreadScratch;
use super::simd::{LANES, Level};
use super::team::Team;
use super::weight::Matrix;
use crate::plan::inputs::BatchInputs;
use crate::plan::{MatMulExperts, Storage};
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;
use std::ops::Range;

/// Runs the step: the rows of all tokens of an expert are multiplied together.
pub(super) fn run(
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
