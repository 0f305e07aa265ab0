//! The CPU device in a tab.
//!
//! The tab has one thread for the engine and the worker's messages. A GPU works beside it; the CPU device computes on
//! it. So after every batch [`TabCpu`] lets the worker handle its messages: requests, cancellations, answers to send.

use bytes::Bytes;
use folio::backend::cpu::{CpuBackend, CpuOptions, Level};
use folio::backend::{Backend, BackendError, BlockRef, Capacity, Caps};
use folio::plan::inputs::{BatchInputs, Results};
use folio::plan::{Plan, WeightId};
use folio::selftest::{Draws, Report, SelftestOptions, Shapes, run_all};
use js_sys::{Function, Promise};
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

/// [`CpuBackend`], with a pause after every batch.
pub(crate) struct TabCpu {
    device: CpuBackend,
    /// Returns a promise that resolves when the worker has handled the messages that wait.
    pause: Function,
}

impl TabCpu {
    pub(crate) fn new(pause: Function) -> Self {
        Self {
            device: CpuBackend::default(),
            pause,
        }
    }
}

impl Backend for TabCpu {
    type Ticket = Results;
    type Saves = Vec<Bytes>;

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.device.load(plan, capacity)
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        self.device.write_weight(weight, first_row, rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.device.allocate_pool(blocks)
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<Results, BackendError> {
        self.device.submit(inputs)
    }

    async fn read(&mut self, ticket: Results) -> Result<Results, BackendError> {
        if let Ok(promise) = self.pause.call0(&JsValue::NULL) {
            // A pause that fails is none.
            drop(JsFuture::from(Promise::resolve(&promise)).await);
        }
        self.device.read(ticket).await
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<Vec<Bytes>, BackendError> {
        self.device.save_blocks(blocks)
    }

    async fn saved_blocks(&mut self, saves: Vec<Bytes>) -> Result<Vec<Bytes>, BackendError> {
        self.device.saved_blocks(saves).await
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        self.device.restore_blocks(blocks)
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.device.reset().await
    }
}

/// Compares the kernels of the CPU device with the reference, with every instruction set; one shape of each step and
/// option. `filter` selects cases as that of `folio selftest` does. Resolves with the report; rejects if results
/// differ.
#[wasm_bindgen]
pub async fn cpu_selftest(filter: Option<String>) -> Result<String, JsError> {
    let options = SelftestOptions {
        filter,
        shapes: Shapes::One,
        draws: Draws::Few,
        product: true,
        ..SelftestOptions::default()
    };
    let open = |level| {
        CpuBackend::new(&CpuOptions {
            threads: Some(1),
            level: Some(level),
        })
    };
    let mut devices: Vec<_> = Level::available().into_iter().map(open).collect();
    let reports = run_all(&mut devices, &options)
        .await
        .map_err(|error| JsError::new(&error.to_string()))?;
    let text = reports
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n");
    if reports.iter().all(Report::passed) {
        Ok(text)
    } else {
        Err(JsError::new(&text))
    }
}
