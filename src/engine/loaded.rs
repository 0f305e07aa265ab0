//! What is loaded, what is said and may go wrong meanwhile, and how it is loaded again after a device loss.

use super::draft_plan::DraftError;
use super::fingerprint::Samples;
use super::fit::{Fit, FitReport};
use super::source::Source;
use crate::backend::{Backend, BackendError, Capacity};
use crate::config::ConfigError;
use crate::model::{LoadError, UploadError};
use crate::plan::error::PlanError;
use crate::plan::{Plan, WeightId};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Progress reported while an engine starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Weights uploaded to the device, in bytes.
    Weights {
        /// Uploaded so far.
        done: u64,
        /// Total.
        total: u64,
    },
    /// Kernels compiled for the device.
    Kernels {
        /// Compiled so far.
        done: u32,
        /// Total.
        total: u32,
    },
    /// What will be allocated. Sent before any allocation.
    Fits(Box<Fit>),
    /// The folder for files of KV blocks is ready.
    Disk {
        /// The folder.
        folder: PathBuf,
        /// Files of this model in it.
        blocks: usize,
        /// How long the model's fingerprint took, by which files are told apart.
        fingerprint: Duration,
    },
    /// A message for the user.
    Notice(String),
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device cannot hold or run the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The folder for files of KV blocks cannot be used.
    #[error("--kv-disk {folder}: {message}")]
    Disk {
        /// The folder.
        folder: String,
        /// The system's message.
        message: String,
    },
    /// The recorded plan is inconsistent. This is a bug in this program, not an error in the model's files.
    #[error("internal error: the model's plan is inconsistent: {0}")]
    Plan(PlanError),
    /// The weights could not be read.
    #[error(transparent)]
    Weights(#[from] LoadError),
    /// The draft model does not go with the model.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The weights do not fit, or leave no room for the KV cache of even a short sequence. Detected before anything is
    /// loaded.
    #[error("{0}")]
    DoesNotFit(Box<FitReport>),
}

impl From<UploadError<BackendError>> for StartError {
    fn from(error: UploadError<BackendError>) -> Self {
        match error {
            UploadError::Load(error) => Self::Weights(error),
            UploadError::Write(error) => Self::Backend(error),
        }
    }
}

/// What was loaded, kept for reloading after a device loss.
pub(super) struct LoadedPlan {
    plan: Arc<Plan>,
    pub(super) capacity: Capacity,
    blocks: Vec<u32>,
}

impl LoadedPlan {
    pub(super) fn new(plan: Arc<Plan>, capacity: Capacity, blocks: Vec<u32>) -> Self {
        Self {
            plan,
            capacity,
            blocks,
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Reloads everything after a device loss.
    pub(super) async fn bring_back<B: Backend>(
        &self,
        backend: &mut B,
        source: &impl Source,
    ) -> Result<(), StartError> {
        backend.reset().await?;
        backend.load(self.plan.clone(), &self.capacity)?;
        backend.allocate_pool(&self.blocks)?;
        upload(backend, source, &self.plan, &mut |_| {}).await?;
        Ok(backend.warm_up(&mut |_, _| {}).await?)
    }
}

/// Passes the weights to the device. Returns samples of them.
pub(super) async fn upload<B: Backend>(
    backend: &mut B,
    source: &impl Source,
    plan: &Plan,
    progress: &mut dyn FnMut(Progress),
) -> Result<Samples, StartError> {
    let mut samples = Samples::default();
    let model = plan.with_adapters(false);
    let (mut done, total) = (0, plan.weight_bytes());
    let mut write = |weight: WeightId, first_row, rows: Bytes| {
        let bytes = rows.len() as u64;
        // Slots for adapters are no part of the model.
        if (weight.0 as usize) < model.weights.len() {
            samples.add(model, weight, first_row, &rows);
        }
        backend.write_weight(weight, first_row, rows)?;
        done += bytes;
        progress(Progress::Weights { done, total });
        Ok(())
    };
    source.upload(plan, &mut write).await?;
    backend.settle().await?;
    Ok(samples)
}
