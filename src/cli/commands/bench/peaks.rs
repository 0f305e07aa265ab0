//! Peak performance of the device, measured in the same run as the scenarios, so that the comparison is fair.

use crate::cli::device::Device;
use crate::cli::terminal::output::note;
use anyhow::{Result, bail};
use folio::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use folio::backend::cuda;
use folio::backend::wgpu::WgpuBackend;
use folio::backend::wgpu::bench::Yardstick;
use folio::backend::{Backend as _, Caps, Peaks};
use folio::platform;

/// Measured peaks and their device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) adapter: String,
    pub(crate) tier: String,
    pub(crate) peaks: Peaks,
}

impl Measured {
    fn new(caps: &Caps, peaks: Peaks) -> Self {
        Self {
            adapter: caps.name.clone(),
            tier: caps.tier.clone(),
            peaks,
        }
    }
}

/// Measures the peaks of a device; takes a few seconds.
pub(crate) fn measure(device: &Device) -> Result<Measured> {
    note("measuring the device's own peaks …");
    match device {
        Device::Cpu(options) => Ok(of_cpu(CpuBackend::new(options))),
        // The cores' own peaks, which the reference is far from.
        Device::Reference => Ok(of_cpu(CpuBackend::default())),
        #[cfg(feature = "cuda")]
        Device::Cuda(options) => of_cuda(options),
        Device::Wgpu(options) => {
            let backend = platform::block_on(WgpuBackend::open(options))?;
            let caps = backend.caps().clone();
            drop(backend);
            Ok(Measured::new(
                &caps,
                platform::block_on(Yardstick::open(options))?.peaks()?,
            ))
        }
        Device::Fake(_) => bail!("the fake device has no peaks"),
    }
}

#[cfg(feature = "cuda")]
fn of_cuda(options: &cuda::CudaOptions) -> Result<Measured> {
    let caps = cuda::CudaBackend::open(options)?.caps().clone();
    let none = Peaks {
        copy_gbps: f64::NAN,
        read_gbps: f64::NAN,
        fma_gflops: f64::NAN,
    };
    let peaks = match &options.device {
        cuda::CudaDevice::Gpu(_) => cuda::bench::Yardstick::open(options)?.peaks()?,
        cuda::CudaDevice::Dry(_) => {
            // Compiles the kernels that measure peaks.
            cuda::bench::Yardstick::open(options)?.peaks()?;
            none
        }
        // It would take hours, and its speed says nothing.
        #[cfg(unix)]
        cuda::CudaDevice::Emulator(..) => none,
    };
    Ok(Measured::new(&caps, peaks))
}

fn of_cpu(mut cpu: CpuBackend) -> Measured {
    let peaks = cpu.peaks();
    Measured::new(cpu.caps(), peaks)
}
