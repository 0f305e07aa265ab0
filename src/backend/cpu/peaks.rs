//! Peak performance of this machine's cores for `folio bench`: copying, reading, and f32 multiply-adds.
//!
//! Work is split among threads as in the steps, and arithmetic uses the same instructions, so the steps can be compared
//! with these peaks.

use super::dot::{Kernel, PartialSums, dispatch};
use crate::platform::{self, Instant};

/// Bytes of the buffers that bandwidth is measured on; well beyond the size of caches.
const BYTES: usize = 512 << 20;
/// Number of timed runs; the best one counts.
const ATTEMPTS: u32 = 5;
/// Number of independent chains of multiply-adds: enough to fill the pipelines of a core.
const CHAINS: usize = 96;
/// Multiply-adds per chain.
const LINKS: usize = 1 << 20;

/// Copy bandwidth: bytes read and written, 10⁹ per second.
pub fn copy_gbps() -> f64 {
    let source = vec![1_u64; BYTES / 8];
    let mut target = vec![2_u64; BYTES / 8];
    let chunk = chunk(source.len());
    let seconds = best_seconds(|| {
        platform::for_each_chunk(&mut target, chunk, |index, part| {
            part.copy_from_slice(&source[index * chunk..][..part.len()]);
        });
    });
    2.0 * BYTES as f64 / seconds / 1e9
}

/// Read bandwidth, 10⁹ bytes per second.
pub fn read_gbps() -> f64 {
    let mut source = vec![1_u64; BYTES / 8];
    let chunk = chunk(source.len());
    let seconds = best_seconds(|| {
        platform::for_each_chunk(&mut source, chunk, |_, part| dispatch(Read { part }));
    });
    BYTES as f64 / seconds / 1e9
}

/// f32 multiplications and additions, 10⁹ per second.
pub fn fma_gflops() -> f64 {
    let mut threads = vec![0.001_f32; platform::parallelism()];
    let operations = 2 * threads.len() * CHAINS * LINKS;
    let seconds = best_seconds(|| {
        platform::for_each_chunk(&mut threads, 1, |_, term| match platform::has_avx2() {
            true => dispatch(Chains::<true> { term: &term[0] }),
            false => dispatch(Chains::<false> { term: &term[0] }),
        });
    });
    operations as f64 / seconds / 1e9
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

/// Splits work into a few pieces per thread, so that one delayed thread does not delay the whole run.
fn chunk(elements: usize) -> usize {
    elements.div_ceil(8 * platform::parallelism())
}

/// Reads a slice into sixteen independent accumulators, so that combining values never stalls.
struct Read<'a> {
    part: &'a [u64],
}

impl Kernel for Read<'_> {
    #[inline(always)]
    fn run<S: PartialSums>(self) {
        let mut all = [0_u64; 16];
        for values in self.part.as_chunks::<16>().0 {
            for (all, value) in all.iter_mut().zip(values) {
                *all |= value;
            }
        }
        std::hint::black_box(all);
    }
}

/// Independent chains `x = x · factor + term`. `FMA`: use fused multiply-adds, which without AVX2 are function calls.
struct Chains<'a, const FMA: bool> {
    term: &'a f32,
}

impl<const FMA: bool> Kernel for Chains<'_, FMA> {
    #[inline(always)]
    fn run<S: PartialSums>(self) {
        let (factor, term) = (std::hint::black_box(0.999_f32), std::hint::black_box(*self.term));
        let mut chains = [1.0_f32; CHAINS];
        for _ in 0..LINKS {
            for x in &mut chains {
                *x = if S::FUSED { x.mul_add(factor, term) } else { *x * factor + term };
            }
        }
        std::hint::black_box(chains);
    }
}
