//! `folio selftest`: compares every kernel of a device with the CPU reference. These are the checks of the kernel
//! tests, so a machine can be tested without a compiler.

use super::device::{self, Device, DeviceChoice};
use super::output;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use folio::backend::BackendError;
use folio::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use folio::backend::cuda::CudaBackend;
use folio::backend::wgpu::{Class, Tier, WgpuBackend};
use folio::{platform, selftest};

/// Which row of tile shapes to force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassOption {
    Discrete,
    Integrated,
    Software,
}

impl From<ClassOption> for Class {
    fn from(class: ClassOption) -> Self {
        match class {
            ClassOption::Discrete => Self::Discrete,
            ClassOption::Integrated => Self::Integrated,
            ClassOption::Software => Self::Software,
        }
    }
}

/// Which instructions to allow at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TierOption {
    T0,
    T1,
}

impl From<TierOption> for Tier {
    fn from(tier: TierOption) -> Self {
        match tier {
            TierOption::T0 => Self::T0,
            TierOption::T1 => Self::T1,
        }
    }
}

/// What to force upon an adapter; no effect on other devices.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Forced {
    /// Use the kernels of another class of adapter
    #[arg(long, value_name = "CLASS")]
    class: Option<ClassOption>,
    /// Use at most this tier of kernels
    #[arg(long, value_name = "TIER")]
    tier: Option<TierOption>,
    /// Bind at most this many bytes at once
    #[arg(long, value_name = "BYTES", hide = true)]
    binding_bytes_max: Option<u64>,
}

impl Forced {
    pub(crate) fn apply(self, device: Device) -> Device {
        let Device::Wgpu(mut options) = device else { return device };
        options.class = self.class.map(Class::from);
        options.tier = self.tier.map(Tier::from);
        options.binding_bytes_max = self.binding_bytes_max;
        Device::Wgpu(options)
    }
}

#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    /// auto, cpu, wgpu[:N] or cuda[:N]
    #[arg(long, env = "FOLIO_DEVICE", default_value = "auto", value_name = "DEVICE")]
    device: DeviceChoice,
    #[command(flatten)]
    forced: Forced,
    /// Run only checks whose name contains this text; a|b matches either, !a excludes
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Draw ten times as many tokens in the sampling checks
    #[arg(long)]
    full: bool,
}

pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let device = args.forced.apply(device::resolve(&args.device)?);
    let draws = if args.full { selftest::Draws::Many } else { selftest::Draws::Usual };
    let checks = selftest::SelftestOptions { filter: args.filter.clone(), draws, ..Default::default() };
    let report = platform::block_on(async {
        match device {
            Device::Cpu => selftest::run(&mut CpuBackend::new(), &checks).await,
            #[cfg(feature = "cuda")]
            Device::Cuda(options) => selftest::run(&mut CudaBackend::open(&options)?, &checks).await,
            Device::Wgpu(options) => selftest::run(&mut WgpuBackend::open(&options).await?, &checks).await,
            Device::Fake(_) => {
                Err(BackendError::Unavailable("the fake device computes nothing that could be checked".into()))
            }
        }
    })?;
    output::result(&report)?;
    ensure!(!report.rows.is_empty(), "no check name contains {:?}", args.filter.as_deref().unwrap_or_default());
    ensure!(report.passed(), "this device's results differ from the CPU reference");
    Ok(())
}
