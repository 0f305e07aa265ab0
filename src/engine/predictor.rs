//! The layers of the model that predict further tokens (MTP), which guess drafts.
//!
//! They run in batches of their own on the model's device, with keys and values in the same blocks. Every step is
//! followed by one that computes the same rows with the tokens after them; it is submitted before anything is copied or
//! computed for the next step, so that whatever becomes of a block finds it whole, and the rows that the step left are
//! still there. It also guesses the first draft of each row of the next step that is to verify drafts. Further drafts
//! follow one after the other, once the blocks of the next step are where they belong; what they leave in them is
//! written again before any row sees it.
//!
//! As with a draft model, a guess is never more than a draft: whatever it computes, answers are the model's.

use super::Engine;
use super::batch::Batch;
use super::loaded::{LoadedPlan, StartError};
use super::predicted::{Continued, Followers};
use super::source::Source;
use crate::backend::{Backend, BackendError};
use crate::config::{Config, ConfigError, SpeculationMethod};
use crate::plan::inputs::BatchInputs;

/// Makes the layers that predict further tokens part of what a model records, if drafts come from them: before it is
/// recorded, for an engine or to see whether it fits.
///
/// # Errors
///
/// A model without such layers, or with some that are not known.
pub fn add_predictor(config: &Config, source: &mut impl Source) -> Result<(), StartError> {
    let method = config.speculation.map(|settings| settings.method);
    if method != Some(SpeculationMethod::Mtp) || source.add_predictor()? {
        return Ok(());
    }
    Err(StartError::Config(ConfigError {
        option: "speculative_config",
        message: "the method \"mtp\" needs layers of the model that predict further tokens, and it has none that are \
                  known"
            .into(),
    }))
}

/// What the predictor has to do.
#[derive(Default)]
pub(super) struct Predictor {
    /// Rows of the last step that was read.
    pub(super) followers: Option<Followers>,
    /// The rows of the next step whose first draft was guessed.
    continued: Vec<Continued>,
}

impl Predictor {
    /// That of a loaded plan, if it has one.
    pub(super) fn of(loaded: &LoadedPlan) -> Option<Self> {
        loaded.plan().predictor.is_some().then(Self::default)
    }
}

impl<B: Backend, S: Source> Engine<B, S> {
    /// Computes what follows the last step, and guesses the first draft of each row of the next one that waits for it.
    /// If that fails, the step goes on without drafts.
    pub(super) async fn follow_step(
        &mut self,
        next: Option<&mut Batch>,
    ) -> Result<(), BackendError> {
        let Some(predictor) = &mut self.predictor else {
            return Ok(());
        };
        let followers = predictor.followers.take();
        predictor.continued.clear();
        match (followers, next) {
            (None, None) => Ok(()),
            (None, Some(batch)) => {
                self.scheduler.drop_unguessed(batch);
                Ok(())
            }
            (Some(followers), None) => self.predict(&followers.into_inputs()).await.map(drop),
            (Some(followers), Some(batch)) => {
                let (inputs, continued) = self.scheduler.flatten_first_guesses(batch, followers);
                let guesses = self.predict(&inputs).await?;
                self.take_predicted(batch, guesses, continued);
                Ok(())
            }
        }
    }

    /// Guesses the drafts after the first.
    pub(super) async fn predict_further(&mut self, batch: &mut Batch) -> Result<(), BackendError> {
        let mut is_first = true;
        while let Some(predictor) = &self.predictor
            && let Some((inputs, continued)) =
                self.scheduler
                    .flatten_further_guesses(batch, &predictor.continued, is_first)
        {
            let guesses = self.predict(&inputs).await?;
            self.take_predicted(batch, guesses, continued);
            is_first = false;
        }
        Ok(())
    }

    fn take_predicted(
        &mut self,
        batch: &mut Batch,
        guesses: Option<Vec<u32>>,
        continued: Vec<Continued>,
    ) {
        match guesses {
            Some(guesses) => self.scheduler.take_guesses(batch, &guesses),
            None => self.scheduler.drop_unguessed(batch),
        }
        if let Some(predictor) = &mut self.predictor {
            predictor.continued = continued;
        }
    }

    /// Runs a batch of the predictor. `None` if it fails on a device that still works.
    async fn predict(&mut self, inputs: &BatchInputs) -> Result<Option<Vec<u32>>, BackendError> {
        let outcome = match self.backend.submit(inputs) {
            Ok(ticket) => self.backend.read(ticket).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(results) => {
                let ids = results.sampled.iter().map(|sampled| sampled.token_id);
                Ok(Some(ids.collect()))
            }
            Err(error) if error.is_loss() => Err(error),
            Err(error) => {
                tracing::warn!("the layers that predict further tokens failed: {error}");
                Ok(None)
            }
        }
    }
}
