//! Peak performance of this machine's cores for `folio bench`: copying, reading, and f32 multiply-adds.
//!
//! Work is divided among a device's threads, and arithmetic uses its instruction set, so its steps can be compared with
//! these peaks.

use super::CpuBackend;
use super::memory::{Lines, SharedSlice};
use super::simd::{Kernel, LANES, Lanes, Simd, with_simd};
use crate::backend::Peaks;
use crate::platform::Instant;
use std::hint::black_box;

/// Bytes of the buffers that bandwidth is measured on; well beyond the size of caches.
const BYTES: usize = 512 << 20;
/// Number of timed runs; the best one counts.
const ATTEMPTS: u32 = 5;
/// Multiply-adds per chain.
const LINKS: usize = 1 << 21;

impl CpuBackend {
    /// Measures the peaks; takes a few seconds.
    pub fn peaks(&mut self) -> Peaks {
        let (read_gbps, copy_gbps) = self.bandwidth();
        Peaks {
            copy_gbps,
            read_gbps,
            fma_gflops: self.fma_gflops(),
        }
    }

    /// Read bandwidth, 10⁹ bytes per second.
    pub fn read_gbps(&mut self) -> f64 {
        self.read(bytemuck::cast_slice(buffer().lines()))
    }

    /// Bandwidth of reading, and of copying (bytes read and written).
    fn bandwidth(&mut self) -> (f64, f64) {
        let (source, mut target) = (buffer(), buffer());
        let (source, target): (&[Lanes], &mut [Lanes]) = (
            bytemuck::cast_slice(source.lines()),
            bytemuck::cast_slice_mut(target.lines_mut()),
        );
        let team = &mut self.team;
        let seconds = best_seconds(|| {
            let target = SharedSlice::new(target);
            team.run(source.len(), 1, |parts, _| {
                for part in parts {
                    #[allow(unsafe_code, reason = "parts of different threads are disjoint")]
                    // SAFETY: each part belongs to one thread.
                    unsafe { target.part(part.clone()) }.copy_from_slice(&source[part]);
                }
            });
        });
        // Where a buffer lies in a machine's memory may matter.
        (
            self.read(source).max(self.read(target)),
            2.0 * BYTES as f64 / seconds / 1e9,
        )
    }

    fn read(&mut self, source: &[Lanes]) -> f64 {
        let (level, team) = (self.level, &mut self.team);
        let seconds = best_seconds(|| {
            team.run(source.len(), 1, |parts, _| {
                parts.for_each(|part| with_simd!(level, s => s.vectorize(Read(&source[part]))));
            });
        });
        BYTES as f64 / seconds / 1e9
    }

    /// f32 multiplications and additions, 10⁹ per second.
    fn fma_gflops(&mut self) -> f64 {
        let (threads, level, team) = (self.team.threads(), self.level, &mut self.team);
        let mut chains = 0;
        let seconds = best_seconds(|| {
            team.run(threads, 1, |parts, _| {
                for _ in parts.flatten() {
                    black_box(with_simd!(level, s => s.vectorize(Chains)));
                }
            });
            chains = with_simd!(level, s => chains_of(s));
        });
        (2 * threads * chains * LANES * LINKS) as f64 / seconds / 1e9
    }
}

/// Memory like that of weights, and written once, so that all of it is there.
fn buffer() -> Lines {
    let mut buffer =
        Lines::zeroed(BYTES / size_of::<Lanes>(), "peaks").expect("there is memory to measure");
    buffer.lines_mut().fill([1.0_f32.to_bits(); LANES]);
    buffer
}

fn best_seconds(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Reads into eight independent accumulators, so that combining values never stalls.
struct Read<'a>(&'a [Lanes]);

impl Kernel for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut all = [s.splat_word(0); 8];
        for values in self.0.as_chunks::<8>().0 {
            for (all, value) in all.iter_mut().zip(values) {
                *all = s.or(*all, s.float_to_bits(s.load(value)));
            }
        }
        black_box(all);
    }
}

/// Number of independent chains that fill an instruction set's registers.
const fn chains_of<S: Simd>(_: S) -> usize {
    match S::ACCUMULATORS {
        0..=2 => 2,
        3..=6 => 6,
        _ => 24,
    }
}

/// Independent chains `x = x · factor + term`.
struct Chains;

impl Kernel for Chains {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        match chains_of(s) {
            2 => chains::<S, 2>(s),
            6 => chains::<S, 6>(s),
            _ => chains::<S, 24>(s),
        }
    }
}

#[inline(always)]
fn chains<S: Simd, const N: usize>(s: S) -> f32 {
    let (factor, term) = (s.splat(black_box(0.999)), s.splat(black_box(0.001)));
    let mut chains = [s.splat(1.0); N];
    for _ in 0..LINKS {
        for x in &mut chains {
            *x = s.mul_add(*x, factor, term);
        }
    }
    chains.iter().map(|chain| s.sum(*chain)).sum()
}
