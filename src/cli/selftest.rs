//! `folio selftest`: compares every kernel of a device with the CPU reference. The kernel tests run the same checks;
//! this command needs no compiler.

use super::device::{Device, DeviceArgs};
use super::output;
use super::progress::{Phase, Unit};
use anyhow::{Result, ensure};
use clap::Args;
use folio::backend::BackendError;
use folio::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use folio::backend::cuda::CudaBackend;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::WgpuBackend;
use folio::selftest::OnProgress;
use folio::{platform, selftest};
use std::sync::Arc;

#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Run only checks whose name contains this text; a|b matches either, !a excludes
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Draw ten times as many tokens in the sampling checks
    #[arg(long)]
    full: bool,
}

pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let device = args.device.resolve()?;
    let draws = if args.full { selftest::Draws::Many } else { selftest::Draws::Usual };
    let phase = Arc::new(Phase::start("checking kernels", Unit::Pieces));
    let shown = phase.clone();
    let progress = OnProgress(Some(Arc::new(move |done, total| shown.update(done as u64, total as u64))));
    let checks = selftest::SelftestOptions { filter: args.filter.clone(), draws, progress, ..Default::default() };
    let report = platform::block_on(async {
        match device {
            Device::Cpu(options) => selftest::run(&mut CpuBackend::new(&options), &checks).await,
            Device::Reference => selftest::run(&mut ReferenceBackend::new(), &checks).await,
            #[cfg(feature = "cuda")]
            Device::Cuda(options) => selftest::run(&mut CudaBackend::open(&options)?, &checks).await,
            Device::Wgpu(options) => selftest::run(&mut WgpuBackend::open(&options).await?, &checks).await,
            Device::Fake(_) => Err(BackendError::Unavailable("the fake device computes no results to check".into())),
        }
    })?;
    drop((checks, phase));
    output::result(&report)?;
    ensure!(!report.rows.is_empty(), "no check name contains {:?}", args.filter.as_deref().unwrap_or_default());
    ensure!(report.passed(), "results of this device differ from the CPU reference");
    Ok(())
}
