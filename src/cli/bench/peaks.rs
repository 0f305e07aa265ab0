//! What the device can do at best, measured in this run: nothing else is a fair yardstick.

use crate::cli::device::Device;
use anyhow::{Result, bail};
use folio::backend::cpu::CpuBackend;
use folio::backend::wgpu::WgpuBackend;
use folio::backend::wgpu::bench::{Peaks, Yardstick};
use folio::backend::{Backend as _, Caps};
use folio::platform::{self, Instant};

/// Bytes that the CPU's bandwidth is measured on, well beyond its caches.
const CPU_BYTES: usize = 512 << 20;
/// Runs that are timed; the best counts.
const ATTEMPTS: u32 = 5;
/// Independent chains of one core's multiply-add loop: enough to fill its pipes.
const CHAINS: usize = 64;

/// Peaks, and whose they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) adapter: String,
    pub(crate) tier: String,
    pub(crate) peaks: Peaks,
}

impl Measured {
    fn new(caps: &Caps, peaks: Peaks) -> Self {
        Self { adapter: caps.name.clone(), tier: caps.tier.clone(), peaks }
    }
}

/// Measures the peaks of a device; takes a few seconds.
pub(crate) fn measure(device: &Device) -> Result<Measured> {
    eprintln!("measuring the device's own peaks …");
    match device {
        Device::Cpu => Ok(Measured::new(CpuBackend::new().caps(), cpu_peaks())),
        Device::Wgpu(options) => {
            let backend = platform::block_on(WgpuBackend::open(options))?;
            let caps = backend.caps().clone();
            drop(backend);
            Ok(Measured::new(&caps, platform::block_on(Yardstick::open(options))?.peaks()?))
        }
        Device::Fake(_) => bail!("the fake device has no peaks"),
    }
}

fn cpu_peaks() -> Peaks {
    let source = vec![1_u64; CPU_BYTES / 8];
    let mut target = vec![2_u64; CPU_BYTES / 8];
    let copy = best_seconds(|| copy(&source, &mut target));
    let read = best_seconds(|| read(&source));
    let bytes = CPU_BYTES as f64;
    Peaks { copy_gbps: 2.0 * bytes / copy / 1e9, read_gbps: bytes / read / 1e9, fma_gflops: fma_gflops() }
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

/// Pieces for all threads.
fn piece(elements: usize) -> usize {
    elements.div_ceil(platform::parallelism())
}

fn copy(source: &[u64], target: &mut [u64]) {
    let piece = piece(source.len());
    std::thread::scope(|scope| {
        for (source, target) in source.chunks(piece).zip(target.chunks_mut(piece)) {
            scope.spawn(|| target.copy_from_slice(source));
        }
    });
}

fn read(source: &[u64]) {
    std::thread::scope(|scope| {
        for part in source.chunks(piece(source.len())) {
            scope.spawn(|| {
                // Eight sums side by side, so that adding never waits for adding.
                let mut sums = [0_u64; 8];
                for eight in part.chunks_exact(8) {
                    for (sum, value) in sums.iter_mut().zip(eight) {
                        *sum |= value;
                    }
                }
                std::hint::black_box(sums);
            });
        }
    });
}

/// Multiplications and additions that the plain build of this program reaches on all cores: the reference is compiled
/// the same way.
fn fma_gflops() -> f64 {
    const TURNS: usize = 1 << 20;
    let threads = platform::parallelism();
    let seconds = best_seconds(|| {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let (factor, term) = (std::hint::black_box(0.999_f32), std::hint::black_box(0.001_f32));
                    let mut chains = [1.0_f32; CHAINS];
                    for _ in 0..TURNS {
                        for chain in &mut chains {
                            *chain = *chain * factor + term;
                        }
                    }
                    std::hint::black_box(chains);
                });
            }
        });
    });
    (threads * TURNS * CHAINS * 2) as f64 / seconds / 1e9
}
