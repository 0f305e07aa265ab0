//! What an engine needs from a model: its plan, end tokens and weights. [`Model`] implements it; the simulator has its
//! own implementation.

use crate::backend::BackendError;
use crate::model::adapters::{AdapterLayout, AdapterRoom};
use crate::model::pooled::PooledLayer;
use crate::model::{ClassHead, LoadError, Model, Quantization, UploadError};
use crate::plan::{Plan, Storage, WeightId};
use bytes::Bytes;
use std::sync::Arc;

/// What an engine needs from a model.
#[allow(
    async_fn_in_trait,
    reason = "one thread owns the engine; a Send bound is not wanted"
)]
pub trait Source {
    /// Says that no sequence will be longer than this, before anything else is asked for.
    fn limit_context(&mut self, _tokens: u32) {}

    /// Makes room for LoRA adapters, before anything is recorded. `None` if the model cannot have any.
    fn reserve_adapters(&mut self, _room: AdapterRoom) -> Option<AdapterLayout> {
        None
    }

    /// Makes the layers that predict further tokens part of the plan, before it is recorded. Returns whether the model
    /// has any.
    fn add_predictor(&mut self) -> Result<bool, LoadError> {
        Ok(false)
    }

    /// Makes room for rows of images, of a model that has a tower beside it, before anything is recorded.
    fn reserve_image_rows(&mut self, _rows: u32) {}

    /// Makes room in a tower for so many patches in a step, before anything is recorded.
    fn reserve_patches(&mut self, _patches: u32) {}

    /// Patches of a tile of a tower at most, if no tile has more than so many rows; `None`: it is no tower.
    fn tile_patches(&self, _rows: u32) -> Option<u32> {
        None
    }

    /// The model's plan; `activations` is the storage type of values between steps.
    fn record(&self, activations: Storage) -> Plan;

    /// Whether it can answer, not only give embeddings.
    fn has_head(&self) -> bool {
        true
    }

    /// Its head for classes, which the host computes.
    fn classes(&self) -> Option<Arc<ClassHead>> {
        None
    }

    /// Layers that follow the pooled rows of a text, which the host computes.
    fn dense(&self) -> Arc<[PooledLayer]> {
        Arc::default()
    }

    /// Whether the tokens of the two texts of a pair are marked.
    fn marks_texts(&self) -> bool {
        false
    }

    /// The plan of the same model with its matrices quantized on load, used for advice when the model does not fit.
    /// `None` if this model cannot be quantized.
    fn record_quantized(&self, _activations: Storage, _quantization: Quantization) -> Option<Plan> {
        None
    }

    /// Identifies the model by its config and its list of tensors; the weights do not count.
    fn identity(&self) -> [u8; 32];

    /// What is not loaded, as a line for the user.
    fn left_out(&self) -> Option<String> {
        None
    }

    /// Ids that end a sequence.
    fn eos_token_ids(&self) -> Vec<u32>;

    /// Writes every row of every weight of the plan, in chunks of whole rows.
    async fn upload(
        &self,
        plan: &Plan,
        write: &mut dyn FnMut(WeightId, u32, Bytes) -> Result<(), BackendError>,
    ) -> Result<(), UploadError<BackendError>>;
}

impl Source for Model {
    fn has_head(&self) -> bool {
        Model::has_head(self)
    }

    fn classes(&self) -> Option<Arc<ClassHead>> {
        Model::classes(self).cloned()
    }

    fn dense(&self) -> Arc<[PooledLayer]> {
        Model::dense(self).clone()
    }

    fn marks_texts(&self) -> bool {
        self.spec().texts > 1
    }

    fn limit_context(&mut self, tokens: u32) {
        Model::limit_context(self, tokens);
    }

    fn reserve_adapters(&mut self, room: AdapterRoom) -> Option<AdapterLayout> {
        Some(Model::reserve_adapters(self, room))
    }

    fn add_predictor(&mut self) -> Result<bool, LoadError> {
        Model::add_predictor(self)
    }

    fn reserve_image_rows(&mut self, rows: u32) {
        Model::reserve_image_rows(self, rows);
    }

    fn reserve_patches(&mut self, patches: u32) {
        Model::reserve_patches(self, patches);
    }

    fn tile_patches(&self, rows: u32) -> Option<u32> {
        let spec = self.spec();
        let tower = spec.tower?;
        let held = tower.merged.saturating_mul(rows.max(1));
        Some(spec.positions_max.min(held))
    }

    fn record(&self, activations: Storage) -> Plan {
        Model::record(self, activations)
    }

    fn record_quantized(&self, activations: Storage, quantization: Quantization) -> Option<Plan> {
        Model::record_quantized(self, activations, quantization).ok()
    }

    fn identity(&self) -> [u8; 32] {
        Model::identity(self)
    }

    fn left_out(&self) -> Option<String> {
        Model::left_out(self)
    }

    fn eos_token_ids(&self) -> Vec<u32> {
        self.generation().eos_token_ids.clone()
    }

    async fn upload(
        &self,
        plan: &Plan,
        write: &mut dyn FnMut(WeightId, u32, Bytes) -> Result<(), BackendError>,
    ) -> Result<(), UploadError<BackendError>> {
        Model::upload(self, plan, write).await
    }
}
