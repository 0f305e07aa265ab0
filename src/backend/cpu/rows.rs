//! Functions of rows, element by element: what the norms, activations and scalings of steps are made of.

use super::memory::SharedSlice;
use super::simd::{Kernel, LANES, Level, Simd, with_simd};
use super::team::Team;
use crate::plan::Storage;

/// Elements below which a step takes less time than waking the other threads.
const ALONE: usize = 1 << 14;

/// Calls `work(row, elements)` for every row of `columns` elements, divided among the threads.
pub(super) fn each_row(
    team: &mut Team,
    rows: &mut [f32],
    columns: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    if rows.len() <= ALONE {
        return rows
            .chunks_exact_mut(columns)
            .enumerate()
            .for_each(|(row, values)| work(row, values));
    }
    let (count, rows) = (rows.len() / columns, SharedSlice::new(rows));
    team.run(count, 1, |parts, _| {
        for row in parts.flatten() {
            #[allow(unsafe_code, reason = "rows of different threads are disjoint")]
            // SAFETY: each row is in one part of one thread.
            work(row, unsafe {
                rows.part(row * columns..(row + 1) * columns)
            });
        }
    });
}

/// `out = f(a, b, out)`, sixteen elements at a time.
struct Map<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
    storage: Storage,
    f: F,
}

/// A function of vectors. (A closure cannot be generic.)
pub(super) trait Function {
    fn call<S: Simd>(&self, s: S, a: S::F, b: S::F, old: S::F) -> S::F;
}

impl<F: Function> Kernel for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(
            self.a.len() == self.out.len() && self.b.len() == self.out.len(),
            "operands have the same length"
        );
        let (a, a_rest) = self.a.as_chunks::<LANES>();
        let (b, b_rest) = self.b.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((a, b), out) in a.iter().zip(b).zip(out.iter_mut()) {
            s.store(self.f.call(s, s.load(a), s.load(b), s.load(out)), out);
        }
        if !out_rest.is_empty() {
            let padded = |values: &[f32]| {
                let mut lanes = [1.0; LANES];
                lanes[..values.len()].copy_from_slice(values);
                lanes
            };
            let mut last = padded(out_rest);
            s.store(
                self.f.call(
                    s,
                    s.load(&padded(a_rest)),
                    s.load(&padded(b_rest)),
                    s.load(&last),
                ),
                &mut last,
            );
            out_rest.copy_from_slice(&last[..out_rest.len()]);
        }
        if self.storage != Storage::F32 {
            self.out
                .iter_mut()
                .for_each(|value| *value = self.storage.round(*value));
        }
    }
}

pub(super) fn map(
    level: Level,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    storage: Storage,
    f: impl Function,
) {
    with_simd!(level, s => s.vectorize(Map { a, b, out, storage, f }));
}

/// `values = f(values)`, sixteen elements at a time.
struct Update<'a, F> {
    values: &'a mut [f32],
    storage: Storage,
    f: F,
}

impl<F: Function> Kernel for Update<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for part in self.values.chunks_mut(LANES) {
            let mut lanes = [1.0; LANES];
            lanes[..part.len()].copy_from_slice(part);
            let value = s.load(&lanes);
            s.store(self.f.call(s, value, value, value), &mut lanes);
            for (value, result) in part.iter_mut().zip(lanes) {
                *value = self.storage.round(result);
            }
        }
    }
}

pub(super) fn update(level: Level, values: &mut [f32], storage: Storage, f: impl Function) {
    with_simd!(level, s => s.vectorize(Update { values, storage, f }));
}

/// Sum of squares of the differences from a number.
struct Squares<'a> {
    row: &'a [f32],
    mean: f32,
}

impl Kernel for Squares<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (vectors, rest) = self.row.as_chunks::<LANES>();
        // Four sums, so that additions do not wait for each other.
        let mut sums = [s.splat(0.0); 4];
        for (index, vector) in vectors.iter().enumerate() {
            let value = s.sub(s.load(vector), s.splat(self.mean));
            sums[index % 4] = s.mul_add(value, value, sums[index % 4]);
        }
        let sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
        rest.iter()
            .map(|value| value - self.mean)
            .fold(sum, |sum, value| sum + value * value)
    }
}

/// The sum of squares.
pub(super) fn squares(level: Level, row: &[f32]) -> f32 {
    with_simd!(level, s => s.vectorize(Squares { row, mean: 0.0 }))
}

/// `1 / sqrt(mean((row − mean)²) + epsilon)`; with a mean of 0, the inverse of the root mean square.
pub(super) fn inverse_deviation(level: Level, row: &[f32], mean: f32, epsilon: f32) -> f32 {
    let squares = with_simd!(level, s => s.vectorize(Squares { row, mean }));
    1.0 / (squares / row.len() as f32 + epsilon).sqrt()
}

/// (a − mean) · inverse · (b, or 1 + b), added to the old value or instead of it, and scaled.
pub(super) struct Normalize {
    pub(super) mean: f32,
    pub(super) inverse: f32,
    pub(super) one_plus: bool,
    pub(super) accumulate: bool,
    pub(super) scale: f32,
}

impl Normalize {
    /// The norm of most models: by the root mean square.
    pub(super) fn new(level: Level, x: &[f32], epsilon: f32, one_plus: bool) -> Self {
        let inverse = inverse_deviation(level, x, 0.0, epsilon);
        Self {
            mean: 0.0,
            inverse,
            one_plus,
            accumulate: false,
            scale: 1.0,
        }
    }
}

impl Function for Normalize {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, b: S::F, old: S::F) -> S::F {
        let weight = if self.one_plus {
            s.add(b, s.splat(1.0))
        } else {
            b
        };
        let value = s.mul(
            s.mul(s.sub(a, s.splat(self.mean)), s.splat(self.inverse)),
            weight,
        );
        s.mul(
            if self.accumulate {
                s.add(old, value)
            } else {
                value
            },
            s.splat(self.scale),
        )
    }
}

/// a + old
pub(super) struct Add;

impl Function for Add {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, _: S::F, old: S::F) -> S::F {
        s.add(old, a)
    }
}

/// old · scale · (a, or 1 + a)
pub(super) struct Rescale {
    pub(super) scale: f32,
    pub(super) one_plus: bool,
}

impl Function for Rescale {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, _: S::F, old: S::F) -> S::F {
        let weight = if self.one_plus {
            s.add(a, s.splat(1.0))
        } else {
            a
        };
        s.mul(s.mul(old, s.splat(self.scale)), weight)
    }
}

/// Normalizes one run of elements.
pub(super) fn normalize(
    level: Level,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    one_plus: bool,
    out: &mut [f32],
) {
    map(
        level,
        x,
        weight,
        out,
        Storage::F32,
        Normalize::new(level, x, epsilon, one_plus),
    );
}

/// Normalizes one run of elements where it is.
pub(super) fn normalize_in_place(
    level: Level,
    x: &mut [f32],
    weight: &[f32],
    epsilon: f32,
    one_plus: bool,
) {
    let scale = inverse_deviation(level, x, 0.0, epsilon);
    map(
        level,
        weight,
        weight,
        x,
        Storage::F32,
        Rescale { scale, one_plus },
    );
}

/// Divides elements by their root mean square.
pub(super) fn scale_to_unit(level: Level, x: &mut [f32], epsilon: f32) {
    let scale = inverse_deviation(level, x, 0.0, epsilon);
    x.iter_mut().for_each(|x| *x *= scale);
}

/// x / (1 + e^(−factor · x))
#[inline(always)]
pub(super) fn swish<S: Simd>(s: S, x: S::F, factor: S::F) -> S::F {
    let e = s.exp(s.sub(s.splat(0.0), s.mul(x, factor)));
    s.div(x, s.add(s.splat(1.0), e))
}

struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::F, _: S::F, _: S::F) -> S::F {
        swish(s, x, s.splat(1.0))
    }
}

/// `values = silu(values)`, rounded.
pub(super) fn silu(level: Level, values: &mut [f32], storage: Storage) {
    update(level, values, storage, Silu);
}
