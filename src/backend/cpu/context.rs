//! Keys and values of one sequence and head as operands of products: decoded to memory, or into the sums of a few rows.

use super::group::e4m3_half;
use super::kv::KvStore;
use super::product::{BLOCK, Source};
use super::simd::{Kernel, LANES, Lanes, Simd, Words};
use crate::backend::KvHalf;
use crate::plan::KvFormat;
use crate::plan::format::GROUP;
use crate::plan::inputs::NONE;
use std::cell::Cell;
use std::ops::Range;

/// Columns that are written out without a loop. The sizes of heads and blocks are multiples of it.
pub(super) const EIGHT: usize = 8;
/// Stands for columns of a block that is not there.
static ZEROS: [Words; BLOCK] = [[0; LANES]; BLOCK];

/// The tiles of one sequence and head.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// Keys or values.
    pub(super) store: &'a KvStore,
    /// What they are read as: the values of a latent are its keys.
    pub(super) half: KvHalf,
    /// Block of each span of positions.
    pub(super) table: &'a [u32],
    /// Heads per block.
    pub(super) heads: usize,
    /// Which head.
    pub(super) head: usize,
    /// What is fetched while these are multiplied.
    pub(super) ahead: Option<&'a Ahead<'a>>,
}

impl<'a> Context<'a> {
    /// The block with this position, unless it is hidden.
    #[inline(always)]
    fn block(&self, position: usize) -> Option<usize> {
        let block = *self.table.get(position / self.store.layout.tile.slots)?;
        (block != NONE).then_some(block as usize)
    }

    /// The head's tile in this block.
    #[inline(always)]
    fn tile(&self, position: usize) -> Option<&'a [u32]> {
        let words = self.store.layout.words();
        Some(
            &self.store.words()[(self.block(position)? * self.heads + self.head) * words..]
                [..words],
        )
    }

    /// Columns of a panel, cut where tiles end.
    #[inline(always)]
    fn strips(&self, columns: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (size, end, mut next) = (self.store.layout.columns(), columns.end, columns.start);
        std::iter::from_fn(move || {
            let start = next;
            next = ((start / size + 1) * size).min(end);
            (start < end).then_some(start..next)
        })
    }

    /// Columns of consecutive panels that lie in one tile each; zeros, if it is hidden. `T` is as the layout says.
    #[inline(always)]
    fn take<T: Element, const P: usize>(
        &self,
        panel: usize,
        columns: Range<usize>,
    ) -> [Strip<'a, T>; P] {
        let (layout, count) = (self.store.layout, columns.len());
        let is_key = layout.half == KvHalf::Key;
        let mut strips = [Strip::zeros(count); P];
        let mut tile = if is_key {
            None
        } else {
            self.tile(columns.start)
        };
        for (panel, strip) in (panel..).zip(&mut strips) {
            let position = if is_key { panel * LANES } else { columns.start };
            if is_key {
                tile = self.tile(position);
            }
            let Some(tile) = tile else { continue };
            let (elements, scales) = tile.split_at(layout.element_words());
            let slot = position % layout.tile.slots;
            let panel = if is_key { slot / LANES } else { panel };
            let first = panel * layout.columns() + columns.start % layout.columns();
            strip.columns = &bytemuck::cast_slice(elements)[first..first + count];
            strip.scales = bytemuck::cast_slice(scales.get(slot..).unwrap_or_default());
        }
        strips
    }

    /// Whether keys are read as values.
    fn is_turned(&self) -> bool {
        self.half != self.store.layout.half
    }

    /// Decodes sixteen elements of the keys at the positions `columns`, as values: a vector per position.
    #[inline(always)]
    fn turn<S: Simd>(&self, s: S, panel: usize, columns: Range<usize>, out: &mut [Lanes]) {
        let elements = panel * LANES..((panel + 1) * LANES).min(self.store.layout.tile.head_dim);
        for (position, out) in columns.step_by(LANES).zip(out.chunks_mut(LANES)) {
            let mut keys = [[0.0; LANES]; LANES];
            let keys_out = &mut keys[..elements.len()];
            let (panel, columns) = (position / LANES, elements.clone());
            Widen {
                context: *self,
                panel,
                columns,
                out: keys_out,
            }
            .run(s);
            for (index, out) in out.iter_mut().enumerate() {
                *out = std::array::from_fn(|element| keys[element][index]);
            }
        }
    }

    /// Lines of the store that belong to sixteen positions: as large a part of the tile as they are of its slots.
    #[inline(always)]
    fn lines(&self, position: usize) -> Range<usize> {
        let (layout, block) = (self.store.layout, self.block(position));
        let (slots, lines) = (layout.tile.slots, layout.words() / LANES);
        let Some(block) = block else { return 0..0 };
        let (tile, slot) = ((block * self.heads + self.head) * lines, position % slots);
        tile + lines * slot / slots..tile + lines * (slot + LANES) / slots
    }

    /// Whether the keys from this position on, to the next multiple of 16, are visible.
    pub(super) fn is_visible(&self, position: usize) -> bool {
        self.tile(position).is_some()
    }
}

/// Keys or values that are fetched little by little while others are multiplied. They lie apart, which a processor's
/// own prefetching does not follow; and fetched many at a time, they would have to wait for each other.
pub(super) struct Ahead<'a> {
    context: Context<'a>,
    /// Those after the ones in `lines`.
    positions: Cell<(usize, usize)>,
    /// Lines of the store: the first one, and the end.
    lines: Cell<(usize, usize)>,
    /// Lines that are fetched at a time.
    count: usize,
}

impl<'a> Ahead<'a> {
    /// Those at `positions`, in so many calls of [`fetch`](Self::fetch).
    pub(super) fn new(context: Context<'a>, positions: Range<usize>, calls: usize) -> Self {
        let layout = context.store.layout;
        let lines = positions.len().div_ceil(LANES) * layout.words() / layout.tile.slots;
        let positions = Cell::new((positions.start, positions.end));
        Self {
            context,
            positions,
            lines: Cell::default(),
            count: lines.div_ceil(calls.max(1)),
        }
    }

    /// Starts to fetch the next lines, as many as for `calls` calls.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&self, s: S, calls: usize) {
        let mut count = self.count * calls;
        let ((mut line, mut line_end), (mut position, end)) =
            (self.lines.get(), self.positions.get());
        while count > 0 {
            if line == line_end {
                if position >= end {
                    break;
                }
                let lines = self.context.lines(position);
                (line, line_end, position) = (lines.start, lines.end, position + LANES);
            }
            let now = count.min(line_end - line);
            self.context.store.lines()[line..line + now]
                .iter()
                .for_each(|line| s.prefetch(line, 0));
            (line, count) = (line + now, count - now);
        }
        self.lines.set((line, line_end));
        self.positions.set((position, end));
    }
}

/// Keys: panels are sixteen positions, columns are elements. Values: panels are sixteen elements, columns positions.
impl Source for Context<'_> {
    const DOTS: bool = true;

    #[inline(always)]
    fn decode<S: Simd>(
        &self,
        s: S,
        panels: Range<usize>,
        columns: Range<usize>,
        out: &mut [Lanes],
    ) {
        for (panel, out) in panels.zip(out.chunks_exact_mut(columns.len())) {
            if self.is_turned() {
                self.turn(s, panel, columns.clone(), out);
            } else {
                s.vectorize(Widen {
                    context: *self,
                    panel,
                    columns: columns.clone(),
                    out,
                });
            }
        }
    }

    #[inline(always)]
    fn dot<S: Simd, const M: usize>(
        &self,
        s: S,
        panels: Range<usize>,
        columns: Range<usize>,
        x: &[[f32; M]],
        sums: &mut [Lanes],
    ) {
        if self.is_turned() {
            s.vectorize(DotTurned {
                context: *self,
                panels,
                columns,
                x,
                sums,
            });
        } else {
            s.vectorize(Dot {
                context: *self,
                panel: panels.start,
                columns,
                x,
                sums,
            });
        }
    }
}

/// Columns of a panel that lie in one tile.
#[derive(Clone, Copy)]
struct Strip<'a, T> {
    columns: &'a [[T; LANES]],
    /// What [`Element::value`] takes.
    scales: &'a [f32],
}

/// An element of the pool, as it is stored. (A type rather than a field, so that loops do not branch on it.)
trait Element: bytemuck::Pod {
    /// Decodes a column: number `at` of those that the scales belong to.
    fn value<S: Simd>(s: S, column: &[Self; LANES], scales: &[f32], at: usize) -> S::F;
}

impl Element for f32 {
    #[inline(always)]
    fn value<S: Simd>(s: S, column: &[Self; LANES], _: &[f32], _: usize) -> S::F {
        s.load(column)
    }
}

/// The bits of a half-precision float.
impl Element for u16 {
    #[inline(always)]
    fn value<S: Simd>(s: S, column: &[Self; LANES], _: &[f32], _: usize) -> S::F {
        s.load_halves(column)
    }
}

/// A byte of a format with scales.
trait Code: bytemuck::Pod {
    /// What a column of codes stands for, before the scales.
    fn level<S: Simd>(s: S, column: &[Self; LANES]) -> S::F;
}

impl Code for i8 {
    #[inline(always)]
    fn level<S: Simd>(s: S, column: &[Self; LANES]) -> S::F {
        s.load_bytes(column)
    }
}

/// See [`KvFormat::Fp8`].
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct E4m3(u8);

impl Code for E4m3 {
    #[inline(always)]
    fn level<S: Simd>(s: S, column: &[Self; LANES]) -> S::F {
        e4m3_half(s, s.load_words(&column.map(|code| u32::from(code.0))))
    }
}

/// Of keys: the scales are those of the lanes.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct KeyCode<C>(C);

/// Of values: the scales are those of the columns.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct ValueCode<C>(C);

impl<'a, T: Element> Strip<'a, T> {
    /// Zeros.
    #[inline(always)]
    fn zeros(count: usize) -> Self {
        let zeros = ZEROS.as_flattened();
        Self {
            columns: &bytemuck::cast_slice(zeros)[..count],
            scales: bytemuck::cast_slice(zeros),
        }
    }
}

impl<C: Code> Element for KeyCode<C> {
    #[inline(always)]
    fn value<S: Simd>(s: S, column: &[Self; LANES], scales: &[f32], _: usize) -> S::F {
        let scales = scales.first_chunk().expect("slots are whole panels");
        s.mul(C::level(s, bytemuck::cast_ref(column)), s.load(scales))
    }
}

impl<C: Code> Element for ValueCode<C> {
    #[inline(always)]
    fn value<S: Simd>(s: S, column: &[Self; LANES], scales: &[f32], at: usize) -> S::F {
        s.mul(C::level(s, bytemuck::cast_ref(column)), s.splat(scales[at]))
    }
}

/// Evaluates `$method::<S, T>(s)` of a kernel with the type of the context's elements.
macro_rules! for_element {
    ($kernel:ident.$method:ident::<$S:ident>($s:ident)) => {{
        let layout = $kernel.context.store.layout;
        match (layout.tile.format, layout.half) {
            (KvFormat::F32, _) => $kernel.$method::<$S, f32>($s),
            (KvFormat::F16, _) => $kernel.$method::<$S, u16>($s),
            (KvFormat::Q8, KvHalf::Key) => $kernel.$method::<$S, KeyCode<i8>>($s),
            (KvFormat::Q8, KvHalf::Value) => $kernel.$method::<$S, ValueCode<i8>>($s),
            (KvFormat::Fp8, KvHalf::Key) => $kernel.$method::<$S, KeyCode<E4m3>>($s),
            (KvFormat::Fp8, KvHalf::Value) => $kernel.$method::<$S, ValueCode<E4m3>>($s),
        }
    }};
}

/// Widens `columns` of a panel.
struct Widen<'a> {
    context: Context<'a>,
    panel: usize,
    columns: Range<usize>,
    /// One vector per column.
    out: &'a mut [Lanes],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for_element!(self.run_as::<S>(s));
    }
}

impl Widen<'_> {
    #[inline(always)]
    fn run_as<S: Simd, T: Element>(self, s: S) {
        let mut out = self.out;
        for columns in self.context.strips(self.columns) {
            let [strip] = self.context.take::<T, 1>(self.panel, columns);
            let (strip_out, rest) = out.split_at_mut(strip.columns.len());
            for (at, (column, out)) in strip.columns.iter().zip(strip_out).enumerate() {
                if let Some(ahead) = self.context.ahead
                    && at % EIGHT == 0
                {
                    ahead.fetch(s, 1);
                }
                s.store(T::value(s, column, strip.scales, at), out);
            }
            out = rest;
        }
    }
}

/// Adds the products of `M` rows with `columns` of consecutive panels to their sums, as the one of weights does: panels
/// take turns after every column.
struct Dot<'a, const M: usize> {
    context: Context<'a>,
    /// The first panel.
    panel: usize,
    columns: Range<usize>,
    /// `[column][row]`.
    x: &'a [[f32; M]],
    /// `[panel][row]`.
    sums: &'a mut [Lanes],
}

impl<const M: usize> Kernel for Dot<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for_element!(self.run_as::<S>(s));
    }
}

impl<const M: usize> Dot<'_, M> {
    #[inline(always)]
    fn run_as<S: Simd, T: Element>(mut self, s: S) {
        let mut left = std::mem::take(&mut self.sums).as_chunks_mut::<M>().0;
        while !left.is_empty() {
            let at_once = match left.len().min(S::ACCUMULATORS / M) {
                0 | 1 => 1,
                2 | 3 => 2,
                _ => 4,
            };
            let (sums, rest) = left.split_at_mut(at_once);
            match at_once {
                4 if const { S::ACCUMULATORS / M >= 4 } => self.turns::<S, T, 4>(s, sums),
                2 if const { S::ACCUMULATORS / M >= 2 } => self.turns::<S, T, 2>(s, sums),
                _ => self.turns::<S, T, 1>(s, sums),
            }
            self.panel += at_once;
            left = rest;
        }
    }

    /// With `P` panels.
    #[inline(always)]
    fn turns<S: Simd, T: Element, const P: usize>(&self, s: S, sums: &mut [[Lanes; M]]) {
        let sums: &mut [[Lanes; M]; P] = sums.try_into().expect("sums of as many panels");
        let mut totals = Totals {
            s,
            totals: [[s.splat(0.0); M]; P],
        };
        totals.load(sums);
        let mut x = self.x;
        for columns in self.context.strips(self.columns.clone()) {
            let (strip_x, rest) = x.split_at(columns.len());
            totals.add::<T>(
                &self.context.take(self.panel, columns),
                strip_x,
                self.context.ahead,
            );
            x = rest;
        }
        totals.store(sums);
    }
}

/// Like [`Dot`], where keys are read as values: their columns are first turned.
struct DotTurned<'a, const M: usize> {
    context: Context<'a>,
    panels: Range<usize>,
    columns: Range<usize>,
    x: &'a [[f32; M]],
    sums: &'a mut [Lanes],
}

impl<const M: usize> Kernel for DotTurned<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let sums = self.sums.as_chunks_mut::<M>().0;
        for (x, first) in self.x.chunks(GROUP).zip(self.columns.step_by(GROUP)) {
            for (panel, sums) in self.panels.clone().zip(&mut *sums) {
                let turned = &mut [[0.0; LANES]; GROUP][..x.len()];
                self.context.turn(s, panel, first..first + x.len(), turned);
                let mut totals = Totals {
                    s,
                    totals: [[s.splat(0.0); M]],
                };
                totals.load(std::array::from_ref(sums));
                totals.add::<f32>(
                    &[Strip {
                        columns: turned,
                        scales: &[],
                    }],
                    x,
                    None,
                );
                totals.store(std::array::from_mut(sums));
            }
        }
    }
}

/// Sums in registers.
struct Totals<S: Simd, const M: usize, const P: usize> {
    s: S,
    totals: [[S::F; M]; P],
}

impl<S: Simd, const M: usize, const P: usize> Totals<S, M, P> {
    #[inline(always)]
    fn load(&mut self, sums: &[[Lanes; M]; P]) {
        for (totals, sums) in self.totals.iter_mut().zip(sums) {
            totals
                .iter_mut()
                .zip(sums)
                .for_each(|(total, sum)| *total = self.s.load(sum));
        }
    }

    #[inline(always)]
    fn store(&self, sums: &mut [[Lanes; M]; P]) {
        for (totals, sums) in self.totals.iter().zip(sums) {
            totals
                .iter()
                .zip(sums)
                .for_each(|(total, sum)| self.s.store(*total, sum));
        }
    }

    /// Adds the products of the columns with `x`, of which there are as many.
    #[inline(always)]
    fn add<T: Element>(
        &mut self,
        strips: &[Strip<'_, T>; P],
        x: &[[f32; M]],
        ahead: Option<&Ahead<'_>>,
    ) {
        for (eight, x) in x.as_chunks::<EIGHT>().0.iter().enumerate() {
            let first = EIGHT * eight;
            let zeros = [[T::zeroed(); LANES]; EIGHT];
            let mut columns = [&zeros; P];
            for (strip, columns) in strips.iter().zip(&mut columns) {
                *columns = strip.columns[first..]
                    .first_chunk()
                    .expect("a strip has a column for each of x");
            }
            if let Some(ahead) = ahead {
                ahead.fetch(self.s, P);
            }
            for i in 0..EIGHT {
                for (panel, (columns, strip)) in columns.iter().zip(strips).enumerate() {
                    self.column(
                        panel,
                        T::value(self.s, &columns[i], strip.scales, first + i),
                        &x[i],
                    );
                }
            }
        }
        for (at, x) in x.iter().enumerate().skip(x.len() / EIGHT * EIGHT) {
            for (panel, strip) in strips.iter().enumerate() {
                self.column(
                    panel,
                    T::value(self.s, &strip.columns[at], strip.scales, at),
                    x,
                );
            }
        }
    }

    #[inline(always)]
    fn column(&mut self, panel: usize, values: S::F, x: &[f32; M]) {
        for (total, x) in self.totals[panel].iter_mut().zip(x) {
            *total = self.s.mul_add(self.s.splat(*x), values, *total);
        }
    }
}

#[cfg(test)]
mod tests;
