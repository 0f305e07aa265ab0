//! Several models in one memory: which of them fit, and how large the KV pool of each is.
//!
//! `--gpu-memory-utilization` is the share of all models of a memory together. What their weights and activations leave
//! of it is shared equally by the KV pools of those whose settings have no size. If that is too little for any of them,
//! they cannot all be loaded at the same time: each then has the pool that one sequence of its whole context needs, so
//! that as many as possible can.

use super::{Beside, Bytes, Fit, FitReport};
use crate::backend::Caps;
use crate::config::Config;
use crate::engine::draft_plan::DraftPlan;
use crate::engine::source::Source;
use crate::plan::Plan;

/// A model and its settings, one of several that share a memory.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Its settings.
    pub config: Config,
    /// Its plan.
    pub plan: Plan,
    draft: Option<DraftPlan>,
    /// What fits if it has the memory for itself.
    alone: FitReport,
}

impl Neighbour {
    /// A model with these settings; `plan` is what `source` recorded.
    pub fn new(
        source: &impl Source,
        plan: Plan,
        draft: Option<DraftPlan>,
        config: Config,
        caps: &Caps,
    ) -> Self {
        let beside = Beside {
            draft: draft.as_ref(),
            tower: None,
        };
        let alone = FitReport::new(source, &plan, beside, &config, caps);
        Self {
            config,
            plan,
            draft,
            alone,
        }
    }

    /// The fit with a pool of this size, or with the pool that the settings give.
    fn fit(&self, kv_cache_bytes: Option<u64>, caps: &Caps) -> Fit {
        let config = Config {
            kv_cache_bytes,
            ..self.config.clone()
        };
        let beside = Beside {
            draft: self.draft.as_ref(),
            tower: None,
        };
        Fit::new(&config, &self.plan, beside, caps)
    }
}

/// What a model gets of a memory that it shares.
#[derive(Clone, Debug)]
pub struct Share {
    /// What is loaded.
    pub fit: Fit,
    /// Bytes of its KV pool; `None`: the engine's own choice, because the memory is not known.
    pub kv_cache_bytes: Option<u64>,
}

/// A memory and the models that share it.
#[derive(Clone, Debug)]
pub struct SharedMemory<'a> {
    caps: &'a Caps,
    models: Vec<&'a Neighbour>,
    budget: Option<u64>,
}

impl<'a> SharedMemory<'a> {
    /// The memory of a device with these capabilities.
    pub fn new(caps: &'a Caps, models: Vec<&'a Neighbour>) -> Self {
        let budgets = models
            .iter()
            .map(|model| model.fit(None, caps).budget_bytes);
        let budget = budgets.flatten().min();
        Self {
            caps,
            models,
            budget,
        }
    }

    /// Bytes that the models may take together; `None` if unknown. If their settings differ, the smallest share counts.
    pub fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// What one of the models gets.
    ///
    /// # Errors
    ///
    /// Why it can never be loaded, in one line.
    pub fn share(&self, model: &Neighbour) -> Result<Share, String> {
        if !model.alone.requested.fits() {
            return Err(model.alone.to_string());
        }
        let kv_cache_bytes = match model.config.kv_cache_bytes {
            Some(given) => Some(given),
            None => self.pool_bytes(&model.alone.requested),
        };
        let fit = model.fit(kv_cache_bytes, self.caps);
        let budget = self.budget.unwrap_or(u64::MAX);
        if !fit.fits() || fit.total_bytes() > budget {
            let (needed, budget) = (Bytes(fit.total_bytes()), Bytes(budget));
            return Err(format!(
                "it needs {needed}, but models may take {budget} together"
            ));
        }
        Ok(Share {
            fit,
            kv_cache_bytes,
        })
    }

    /// Bytes of the pool of a model whose settings have no size; `None` if the memory is not known. `alone` is what
    /// fits if the model has the memory for itself.
    fn pool_bytes(&self, alone: &Fit) -> Option<u64> {
        let equal = self.equal_part()?;
        let is_enough = self.without_size().all(|fit| equal >= fit.kv_least_bytes);
        let wanted = if is_enough {
            equal
        } else {
            alone.kv_full_bytes
        };
        Some(wanted.min(alone.kv_bytes))
    }

    /// Bytes for each pool without a size, of what all models leave of the budget.
    fn equal_part(&self) -> Option<u64> {
        let models = self.models.iter();
        let taken: u64 = models
            .map(|model| {
                model.alone.requested.fixed_bytes() + model.config.kv_cache_bytes.unwrap_or(0)
            })
            .sum();
        let left = self.budget?.saturating_sub(taken);
        let left = self.caps.kind.pool_share(left);
        Some(left / (self.without_size().count() as u64).max(1))
    }

    /// What fits of each model whose pool has no size, if it has the memory for itself.
    fn without_size(&self) -> impl Iterator<Item = &Fit> {
        self.models
            .iter()
            .filter(|model| model.config.kv_cache_bytes.is_none())
            .map(|model| &model.alone.requested)
    }
}

#[cfg(test)]
mod tests;
