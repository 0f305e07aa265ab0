//! `folio selftest`: compares every kernel of a device with the CPU reference, and the answers of whole models. The
//! kernel tests run the same checks; this command needs no compiler.

mod log;
mod models;

use crate::cli::device::{Device, DeviceArgs};
use crate::cli::terminal::output;
use crate::cli::terminal::progress::{Phase, Unit};
use anyhow::{Result, ensure};
use clap::Args;
use folio::backend::BackendError;
use folio::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use folio::backend::cuda::{CudaBackend, CudaDevice};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::WgpuBackend;
use folio::platform;
use folio::selftest::{self, Observer, Report, SelftestOptions, Told};
use log::Log;
use std::path::PathBuf;
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
    /// Append each check to FILE when it begins and when it ends, a JSON line each, and leave out those that FILE has
    /// already: for runs that may be cut off
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Compare answers of the model in this folder instead of kernels; may be given several times
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["filter", "full", "log"])]
    model: Vec<PathBuf>,
}

pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let device = args.device.resolve()?;
    if !args.model.is_empty() {
        return models::check(&device, &args.model);
    }
    let log = args
        .log
        .as_deref()
        .map(Log::open)
        .transpose()?
        .map(Arc::new);
    let phase = Arc::new(Phase::start("checking kernels", Unit::Pieces));
    let options = SelftestOptions {
        filter: args.filter.clone(),
        draws: if args.full {
            selftest::Draws::Many
        } else {
            selftest::Draws::Usual
        },
        skip: log.as_ref().map(|log| log.begun()).unwrap_or_default(),
        observer: observer(phase.clone(), log.clone()),
        ..Default::default()
    };
    let report = platform::block_on(checked(device, &options))?;
    drop((options, phase));
    output::result(&report)?;
    if let Some(log) = log {
        log.check_written()?;
        ensure!(
            log.cut_off().is_empty(),
            "earlier runs ended during {}",
            log.cut_off().join(", ")
        );
    } else {
        ensure!(
            !report.rows.is_empty(),
            "no check name contains {:?}",
            args.filter.as_deref().unwrap_or_default()
        );
    }
    ensure!(
        report.rows.iter().all(|row| row.misses.is_empty()),
        "results of this device differ from the CPU reference"
    );
    Ok(())
}

fn observer(phase: Arc<Phase>, log: Option<Arc<Log>>) -> Observer {
    Observer(Some(Arc::new(move |told| match (told, &log) {
        (Told::Progress { done, total }, _) => phase.update(*done as u64, *total as u64),
        (told, Some(log)) => log.write(told),
        (_, None) => {}
    })))
}

async fn checked(device: Device, options: &SelftestOptions) -> Result<Report, BackendError> {
    match device {
        Device::Cpu(cpu) => selftest::run(&mut CpuBackend::new(&cpu), options).await,
        Device::Reference => selftest::run(&mut ReferenceBackend::new(), options).await,
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) if matches!(cuda.device, CudaDevice::Dry(_)) => {
            selftest::touch(&mut CudaBackend::open(&cuda)?, options).await
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => selftest::run(&mut CudaBackend::open(&cuda)?, options).await,
        Device::Wgpu(wgpu) => selftest::run(&mut WgpuBackend::open(&wgpu).await?, options).await,
        Device::Fake(_) => Err(BackendError::Unavailable(
            "the fake device computes no results to check".into(),
        )),
    }
}
