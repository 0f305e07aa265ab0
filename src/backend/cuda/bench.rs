//! Peak rates of a device for `folio bench`, measured with kernels that do nothing else, and with cuBLASLt.
//!
//! Each rate is the best of several runs. A run is enough launches that launch overhead does not count.

use super::super::{BackendError, Peaks};
use super::blas::{Product, ProductShape};
use super::driver::{Command, Driver, Launch};
use super::kernel::Kernel;
use super::modules::Modules;
use super::{CudaOptions, open_driver};
use bytemuck::Pod;

/// Maximum bytes that bandwidth is measured on (if memory has room for two such buffers): more than any cache.
const BYTES_MAX: u64 = 1 << 30;
/// Number of runs, of which the best counts, and launches per run.
const RUNS: usize = 8;
const LAUNCHES: usize = 8;
/// Blocks per multiprocessor in the streaming kernels.
const BLOCKS_EACH: u32 = 8;
/// Rows, outputs and columns of the product that measures arithmetic.
const PRODUCT: u32 = 8192;
/// Iterations of `bench_mma`, and operations of a warp in one iteration.
const TURNS: u32 = 4096;
const WARP_OPERATIONS: f64 = 32.0 * 4096.0;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct StreamParams {
    source: u64,
    target: u64,
    elements: u64,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct MmaParams {
    out: u64,
    turns: u32,
    unused: u32,
}

/// A device that is open only for measurements.
pub struct Yardstick {
    driver: Box<dyn Driver>,
    modules: Modules,
    /// Two buffers of `bytes` bytes each.
    buffers: [u64; 2],
    bytes: u64,
}

impl Yardstick {
    /// Opens the device.
    pub fn open(options: &CudaOptions) -> Result<Self, BackendError> {
        let mut driver = open_driver(options)?;
        let bytes = BYTES_MAX.min(driver.facts().memory_bytes / 4) / 4096 * 4096;
        let buffers = [
            driver.allocate("a yardstick", bytes)?,
            driver.allocate("a yardstick", bytes)?,
        ];
        Ok(Self {
            driver,
            modules: Modules::new(options.cache_dir.as_deref()),
            buffers,
            bytes,
        })
    }

    /// Measures all peaks; takes a second or two.
    pub fn peaks(&mut self) -> Result<Peaks, BackendError> {
        let [source, target] = self.buffers;
        let params = StreamParams {
            source,
            target,
            elements: self.bytes / 16,
        };
        let blocks = self.driver.facts().sm_count * BLOCKS_EACH;
        let copy = self.best("bench_copy", &params, blocks)?;
        let read_gbps = self.read_gbps()?;
        let copy_gbps = 2.0 * self.bytes as f64 / copy / 1e9;
        Ok(Peaks {
            copy_gbps,
            read_gbps,
            fma_gflops: self.mma_gflops()?.max(self.blas_gflops()?),
        })
    }

    /// Read bandwidth in 10⁹ bytes per second.
    pub fn read_gbps(&mut self) -> Result<f64, BackendError> {
        let [source, target] = self.buffers;
        let params = StreamParams {
            source,
            target,
            elements: self.bytes / 16,
        };
        let blocks = self.driver.facts().sm_count * BLOCKS_EACH;
        Ok(self.bytes as f64 / self.best("bench_read", &params, blocks)? / 1e9)
    }

    fn mma_gflops(&mut self) -> Result<f64, BackendError> {
        let blocks = 2 * self.driver.facts().sm_count;
        let params = MmaParams {
            out: self.buffers[1],
            turns: TURNS,
            unused: 0,
        };
        let seconds = self.best("bench_mma", &params, blocks)?;
        Ok(f64::from(blocks) * 8.0 * f64::from(TURNS) * WARP_OPERATIONS / seconds / 1e9)
    }

    /// GFLOP/s of a large cuBLASLt product; 0 without cuBLASLt.
    fn blas_gflops(&mut self) -> Result<f64, BackendError> {
        let matrix = u64::from(PRODUCT) * u64::from(PRODUCT) * 2;
        if !self.driver.facts().products.blas || 2 * matrix > self.bytes {
            return Ok(0.0);
        }
        let side = PRODUCT;
        let shape = ProductShape {
            rows: side,
            outputs: side,
            columns: side,
            stride: side,
            wide: false,
            accumulate: false,
        };
        let [left, out] = self.buffers;
        // Not zeros: multiplying zeros flips fewer bits, which allows a higher clock.
        let pattern: Vec<u16> = (0..1 << 20)
            .map(|i: u32| 0x3c00 | (i.wrapping_mul(0x9e37_79b9) >> 22) as u16)
            .collect();
        for at in (0..2 * matrix).step_by(2 << 20) {
            self.driver
                .write(left + at, bytemuck::cast_slice(&pattern))?;
        }
        let product = Product {
            x: left,
            weight: left + matrix,
            out,
            shape,
        };
        if !self.driver.prepare_products(&[product], true)? {
            return Ok(0.0);
        }
        let seconds = self.fastest(Command::Product(product))?;
        Ok(2.0 * f64::from(side).powi(3) / seconds / 1e9)
    }

    /// Seconds per launch, with 256 threads per block.
    fn best<P: Pod>(
        &mut self,
        stem: &'static str,
        params: &P,
        blocks: u32,
    ) -> Result<f64, BackendError> {
        let kernel = Kernel::new(stem);
        let params: Box<[u8]> = bytemuck::bytes_of(params).into();
        let function = loop {
            match self.modules.get(&kernel, params.len()) {
                Some(function) => break function,
                None => _ = self.modules.load_missing(&mut *self.driver)?,
            }
        };
        let launch = Launch {
            function,
            params,
            grid: [blocks, 1, 1],
            threads: 256,
            shared_bytes: 0,
        };
        self.fastest(Command::Kernel(launch))
    }

    fn fastest(&mut self, command: Command) -> Result<f64, BackendError> {
        let commands = vec![command; LAUNCHES];
        let mut best = f64::INFINITY;
        for _ in 0..=RUNS {
            best = best.min(self.driver.time(&commands)? / LAUNCHES as f64);
        }
        Ok(best)
    }
}
