//! Decodes panels of weights to f32: to memory, or into the sums of a few rows.

use super::group::{Group, Interleaved, Panel, Visit, visit};
use super::simd::{Kernel, LANES, Lanes, Simd};
use super::weight::{Panels, WordLayout};
use crate::plan::WeightFormat;
use crate::plan::format::GROUP;
use std::ops::Range;

/// Runs a kernel over weights with their format as a constant, so that its loops do not branch on it. Each format is a
/// function of its own: one function of all of them takes the compiler several times as long.
macro_rules! for_format {
    ($s:ident, $kernel:expr, $format:expr) => {
        for_format!(
            $s, $kernel, $format,
            F32 F16 Bf16 Q8 Q4 Q4Zero Q5 Iq4 Mxfp4 E4m3 Q2K Q3K Q4K Q5K Q6K Iq4K
            Q2 Q3 Q6 Q8Min Q2Zero Q3Zero Q8Zero Int8 Mxfp8 Nvfp4 Nf4 Fp4 Iq1 Iq2 Iq3Xxs Iq3S Q1 Ternary
        )
    };
    ($s:ident, $kernel:expr, $format:expr, $($name:ident)+) => {
        match $format {
            $(WeightFormat::$name => $s.vectorize(OfFormat::<_, { WeightFormat::$name as usize }>($kernel)),)+
        }
    };
}

/// A kernel over weights of a format.
trait FormatKernel {
    /// Runs the loop for weights of this format. Implementations are `#[inline(always)]`.
    fn run_as<S: Simd>(self, s: S, format: WeightFormat);
}

/// A kernel for the format with this index in [`WeightFormat::ALL`].
struct OfFormat<K, const FORMAT: usize>(K);

impl<K: FormatKernel, const FORMAT: usize> Kernel for OfFormat<K, FORMAT> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.run_as(s, const { WeightFormat::ALL[FORMAT] });
    }
}

/// Decodes `columns` of consecutive panels: `out` is `[panel][column]`. The first column is a multiple of 32.
pub(super) struct Decode<'a> {
    /// The weights.
    pub(super) weights: Panels<'a>,
    /// Which panels.
    pub(super) panels: Range<usize>,
    /// Which columns.
    pub(super) columns: Range<usize>,
    /// One vector per panel and column.
    pub(super) out: &'a mut [Lanes],
}

impl Decode<'_> {
    /// Runs the loop.
    pub(super) fn run<S: Simd>(self, s: S) {
        for_format!(s, self, self.weights.format);
    }
}

impl FormatKernel for Decode<'_> {
    #[inline(always)]
    fn run_as<S: Simd>(self, s: S, format: WeightFormat) {
        let layout = word_layout(format, self.weights.columns);
        for (panel, out) in self
            .panels
            .zip(self.out.chunks_exact_mut(self.columns.len()))
        {
            for (group, out) in (self.columns.start / GROUP..).zip(out.chunks_mut(GROUP)) {
                let (count, mut rest) = (out.len(), [[0.0; LANES]; GROUP]);
                let whole = out.first_chunk_mut();
                let is_whole = whole.is_some();
                let group = Group {
                    s,
                    layout,
                    lines: self.weights.panel(panel),
                    group,
                };
                visit(
                    format,
                    count,
                    &mut Panel::new(
                        group,
                        0,
                        Store {
                            s,
                            out: whole.unwrap_or(&mut rest),
                        },
                    ),
                );
                if !is_whole {
                    out.copy_from_slice(&rest[..count]);
                }
            }
        }
    }
}

/// Stores the values.
pub(super) struct Store<'a, S> {
    pub(super) s: S,
    pub(super) out: &'a mut [Lanes],
}

impl<S: Simd> Visit<S> for Store<'_, S> {
    #[inline(always)]
    fn visit(&mut self, column: usize, values: S::F) {
        // The last group of a row may be visited beyond its end.
        if let Some(out) = self.out.get_mut(column) {
            self.s.store(values, out);
        }
    }
}

/// Adds the products of `M` rows with `columns` of consecutive panels to their sums. The first column is a multiple of
/// 32.
///
/// A sum is a chain of multiply-adds, each of which waits for the one before. Panels take turns after every 32 columns,
/// and if there are enough registers, after every column, so that a processor works on several chains at once.
pub(super) struct Dot<'a, const M: usize> {
    /// The weights.
    pub(super) weights: Panels<'a>,
    /// Which panels.
    pub(super) panels: Range<usize>,
    /// Which columns.
    pub(super) columns: Range<usize>,
    /// The rows' elements in these columns, `[column][row]`: one pointer for all rows, which all levels have a register
    /// for.
    pub(super) x: &'a [[f32; M]],
    /// `[panel][row]`.
    pub(super) sums: &'a mut [Lanes],
}

impl<const M: usize> FormatKernel for Dot<'_, M> {
    #[inline(always)]
    fn run_as<S: Simd>(self, s: S, format: WeightFormat) {
        // Products with zeros change no sum, and loops over whole groups need no checks.
        let mut rest = [[0.0; M]; GROUP];
        let tail = self.x.as_chunks::<GROUP>().1;
        rest[..tail.len()].copy_from_slice(tail);
        match S::ACCUMULATORS / (TURN_REGISTERS * M) {
            0 | 1 => self.run_with::<S, One<'_, S, M>>(s, format, &rest),
            2 | 3 => self.run_with::<S, Two<'_, S, M>>(s, format, &rest),
            _ => self.run_with::<S, (Two<'_, S, M>, Two<'_, S, M>)>(s, format, &rest),
        }
    }
}

impl<'a, const M: usize> Dot<'a, M> {
    /// Runs the loop.
    pub(super) fn run<S: Simd>(self, s: S) {
        for_format!(s, self, self.weights.format);
    }

    /// With the rows' elements in the last group, if it is not whole.
    #[inline(always)]
    fn run_with<S: Simd, T: InterleavedDots<'a, S, M>>(
        self,
        s: S,
        format: WeightFormat,
        rest: &'a [[f32; M]; GROUP],
    ) {
        let layout = word_layout(format, self.weights.columns);
        let sums = self.sums.as_chunks_mut::<M>().0;
        let mut fetch = Fetch::new(self.weights, format, self.panels.len(), self.columns.start);
        for (x, group) in self.x.chunks(GROUP).zip(self.columns.start / GROUP..) {
            let count = x.len();
            let (x, ahead) = (x.first_chunk().unwrap_or(rest), fetch.distance());
            let common = Common {
                s,
                layout,
                weights: self.weights,
                group,
                ahead,
                x,
            };
            for (first, sums) in self
                .panels
                .clone()
                .step_by(T::PANELS)
                .zip(sums.chunks_mut(T::PANELS))
            {
                let mut panels = T::begin(&common, first, sums);
                visit(format, count, &mut panels);
                panels.end(s, sums);
                if format.is_quantised() {
                    (first..first + sums.len()).for_each(|panel| fetch.fetch(s, panel, ahead));
                }
            }
            fetch.line += fetch.group;
        }
    }
}

/// Registers of a panel that takes turns with others.
const TURN_REGISTERS: usize = 6;

/// What the products of panels with a group of columns have in common.
struct Common<'a, S, const M: usize> {
    s: S,
    layout: WordLayout,
    weights: Panels<'a>,
    group: usize,
    ahead: usize,
    x: &'a [[f32; M]; GROUP],
}

/// Panels that take turns.
trait InterleavedDots<'a, S: Simd, const M: usize>: Interleaved<S> {
    /// How many.
    const PANELS: usize;

    /// Loads the sums of panels from `first` on: of at least one. In place of the others that there are not, the last
    /// one is multiplied again.
    fn begin(common: &Common<'a, S, M>, first: usize, sums: &[[Lanes; M]]) -> Self;

    /// Stores the sums.
    fn end(self, s: S, sums: &mut [[Lanes; M]]);
}

type One<'a, S, const M: usize> = Panel<'a, S, Products<'a, S, M>>;
type Two<'a, S, const M: usize> = (One<'a, S, M>, One<'a, S, M>);

impl<'a, S: Simd, const M: usize> InterleavedDots<'a, S, M> for One<'a, S, M> {
    const PANELS: usize = 1;

    #[inline(always)]
    fn begin(common: &Common<'a, S, M>, first: usize, sums: &[[Lanes; M]]) -> Self {
        let s = common.s;
        let lines = common.weights.panel(first);
        let totals = std::array::from_fn(|row| s.load(&sums[0][row]));
        let group = Group {
            s,
            layout: common.layout,
            lines,
            group: common.group,
        };
        Panel::new(
            group,
            common.ahead,
            Products {
                s,
                x: common.x,
                totals,
            },
        )
    }

    #[inline(always)]
    fn end(self, s: S, sums: &mut [[Lanes; M]]) {
        sums[0]
            .iter_mut()
            .zip(self.visitor.totals)
            .for_each(|(sum, total)| s.store(total, sum));
    }
}

impl<'a, S: Simd, A, B, const M: usize> InterleavedDots<'a, S, M> for (A, B)
where
    A: InterleavedDots<'a, S, M>,
    B: InterleavedDots<'a, S, M>,
{
    const PANELS: usize = A::PANELS + B::PANELS;

    #[inline(always)]
    fn begin(common: &Common<'a, S, M>, first: usize, sums: &[[Lanes; M]]) -> Self {
        let second = A::PANELS.min(sums.len() - 1);
        (
            A::begin(common, first, sums),
            B::begin(common, first + second, &sums[second..]),
        )
    }

    #[inline(always)]
    fn end(self, s: S, sums: &mut [[Lanes; M]]) {
        let second = A::PANELS.min(sums.len() - 1);
        self.0.end(s, sums);
        self.1.end(s, &mut sums[second..]);
    }
}

/// Lines by which a panel of a quantized format is fetched ahead of its multiplication: 16 KiB, so that what four
/// panels wait for fits the smallest second-level caches. The processor's own prefetching ends with every page of
/// 4 KiB: without this, a token took up to 1.8 times as long. Measured with 16 to 512 lines:
/// 256 is the best by a tenth.
const QUANTIZED_AHEAD: usize = 256;
/// The same of dense formats, where 16 and 32 are the best, by a tenth.
const DENSE_AHEAD: usize = 32;

/// What is fetched while panels are multiplied.
struct Fetch<'a> {
    weights: Panels<'a>,
    /// Panels that take turns: the end of each is followed by the panel that is as many after it.
    panels: usize,
    /// Lines of a panel per group of columns.
    group: usize,
    /// Line of the current group, counted from the start of its panel.
    line: usize,
    ahead: usize,
}

impl<'a> Fetch<'a> {
    /// Begins at a column.
    #[inline(always)]
    fn new(weights: Panels<'a>, format: WeightFormat, panels: usize, column: usize) -> Self {
        let group = (GROUP * weights.words).div_ceil(weights.columns);
        let ahead = if format.is_quantised() {
            QUANTIZED_AHEAD
        } else {
            DENSE_AHEAD
        };
        Self {
            weights,
            panels,
            group,
            line: column * weights.words / weights.columns,
            ahead,
        }
    }

    /// Distance of the lines that the current group fetches from its own.
    #[inline(always)]
    fn distance(&self) -> usize {
        let (at, words) = (self.line + self.ahead, self.weights.words);
        if at < words {
            self.ahead
        } else {
            self.ahead + at / words * (self.panels - 1) * words
        }
    }

    /// Fetches for the current group of a panel.
    #[inline(always)]
    fn fetch<S: Simd>(&self, s: S, panel: usize, distance: usize) {
        let (first, lines) = (
            panel * self.weights.words + self.line + distance,
            self.weights.lines,
        );
        let fetched = lines
            .get(first..(first + self.group).min(lines.len()))
            .unwrap_or_default();
        fetched.iter().for_each(|line| s.prefetch(line, 0));
    }
}

/// Adds the products of the values with the elements of `M` rows.
pub(super) struct Products<'a, S: Simd, const M: usize> {
    pub(super) s: S,
    /// `[column][row]`.
    pub(super) x: &'a [[f32; M]],
    pub(super) totals: [S::F; M],
}

impl<S: Simd, const M: usize> Visit<S> for Products<'_, S, M> {
    #[inline(always)]
    fn visit(&mut self, column: usize, values: S::F) {
        if let Some(x) = self.x.get(column) {
            for (x, total) in x.iter().zip(&mut self.totals) {
                *total = self.s.mul_add(self.s.splat(*x), values, *total);
            }
        }
    }
}

/// Where the parts of a row are; rows of dense formats have no parts.
#[inline(always)]
fn word_layout(format: WeightFormat, columns: usize) -> WordLayout {
    if format.is_quantised() {
        format.layout(columns).into()
    } else {
        WordLayout::default()
    }
}
