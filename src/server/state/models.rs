//! [`Models`]: the models of a server by their names.

use super::fleet::Fleet;
use super::residents::Phase;
use super::{ModelFacts, ModelState, stem};
use crate::engine::handle::Status;
use crate::server::counters::Metrics;
use crate::server::wire::error::ApiError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The models of a server.
#[derive(Clone)]
pub(crate) enum Models {
    /// One, which was loaded when the server started, or is being loaded.
    One(Box<ModelState>),
    /// Several, which are loaded when they are asked for.
    Many(Arc<Fleet>),
}

/// Whether a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelStatus {
    Unloaded,
    Loading,
    Loaded,
    /// It takes no more requests, and is unloaded when those that it has are done.
    Unloading,
    /// It could not be loaded, or its device was lost.
    Failed(String),
}

/// A model as lists show it.
pub(crate) struct ModelView {
    /// At least one.
    pub(crate) names: Arc<[String]>,
    /// The name of its file or folder.
    pub(crate) file: Option<String>,
    pub(crate) status: ModelStatus,
    /// What a loaded model is; of one that is being loaded only if it is the server's only one.
    pub(crate) state: Option<ModelState>,
    /// What is known of it, loaded or not.
    pub(crate) facts: Option<ModelFacts>,
    /// Requests that wait until it is loaded.
    pub(crate) waiting: usize,
    /// How often it was loaded.
    pub(crate) loads: u64,
    /// In how long it will be unloaded, if nobody uses it.
    pub(crate) expires: Option<Duration>,
    pub(crate) metrics: Arc<Metrics>,
}

impl ModelStatus {
    /// The word for it, as llama.cpp's server has it where it does.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Unloaded | Self::Failed(_) => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Unloading => "unloading",
        }
    }
}

impl Models {
    /// The server's only model.
    pub(crate) fn one(&self) -> Option<&ModelState> {
        match self {
            Self::One(model) => Some(model),
            Self::Many(_) => None,
        }
    }

    /// The models of a server of several.
    pub(crate) fn many(&self) -> Option<&Arc<Fleet>> {
        match self {
            Self::One(_) => None,
            Self::Many(fleet) => Some(fleet),
        }
    }

    /// All models, in the order of their configuration.
    pub(crate) fn views(&self) -> Vec<ModelView> {
        match self {
            Self::One(model) => vec![view_of_one(model)],
            Self::Many(fleet) => (0..fleet.models.len())
                .map(|index| view(fleet, index))
                .collect(),
        }
    }

    /// Those that are loaded.
    pub(crate) fn loaded(&self) -> Vec<ModelState> {
        self.views()
            .into_iter()
            .filter_map(|view| view.state)
            .collect()
    }

    /// The model with this name, as lists show it.
    pub(crate) fn view(&self, name: &str) -> Result<ModelView, ApiError> {
        match self {
            Self::One(model) => model
                .model(Some(name.to_owned()))
                .map(|_| view_of_one(model)),
            Self::Many(fleet) => Ok(view(fleet, fleet.find(Some(name))?)),
        }
    }

    /// The names of the model that a request asks for, and what is known of it. Nothing is loaded for that.
    pub(crate) fn facts(
        &self,
        asked: Option<&str>,
    ) -> Result<(Arc<[String]>, ModelFacts), ApiError> {
        let view = match self {
            Self::One(model) => {
                model.ready()?;
                model.model(asked.map(str::to_owned))?;
                view_of_one(model)
            }
            Self::Many(fleet) => view(fleet, fleet.find(asked)?),
        };
        Ok((
            view.names.clone(),
            view.facts.clone().ok_or_else(|| match &view.status {
                ModelStatus::Failed(reason) => ApiError::load_failed(&view.names[0], reason),
                _ => ApiError::loading(),
            })?,
        ))
    }

    /// The error of a server none of whose models takes requests; with several, each is loaded when it is needed.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self {
            Self::One(model) => model.ready().map(drop),
            Self::Many(_) => Ok(()),
        }
    }

    pub(super) fn drain(&self) {
        match self {
            Self::One(model) => model.engine.drain(),
            Self::Many(fleet) => fleet.drain(),
        }
    }

    pub(super) fn abort(&self) {
        match self {
            Self::One(model) => model.engine.abort(),
            Self::Many(fleet) => fleet.abort(),
        }
    }

    pub(super) fn close(&self) {
        match self {
            // Its engine is its owner's.
            Self::One(_) => {}
            Self::Many(fleet) => fleet.close(),
        }
    }
}

impl Fleet {
    /// The model that a request asks for: by a name, else by the stem of its file; the first if it names none.
    pub(crate) fn find(&self, asked: Option<&str>) -> Result<usize, ApiError> {
        let Some(asked) = asked else { return Ok(0) };
        // Ollama's clients add the tag that they see in its lists.
        let plain = asked.strip_suffix(":latest").unwrap_or(asked);
        let is_asked = |name: &str| name == asked || name == plain;
        let by_name = self
            .models
            .iter()
            .position(|model| model.names.iter().any(|name| is_asked(name)));
        let names = self
            .models
            .iter()
            .flat_map(|model| model.names.iter().map(String::as_str));
        by_name
            .or_else(|| {
                self.models
                    .iter()
                    .position(|model| model.file.as_deref().map(stem).is_some_and(is_asked))
            })
            .or_else(|| self.models.iter().position(|model| model.takes_any_name))
            .ok_or_else(|| ApiError::unknown_model(asked, names))
    }

    /// The first name of a model.
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.models[index].names[0]
    }
}

fn failed() -> ModelStatus {
    ModelStatus::Failed(ApiError::device_lost().message().to_owned())
}

fn view_of_one(model: &ModelState) -> ModelView {
    let status = match model.engine.status() {
        Status::Loading => ModelStatus::Loading,
        Status::Ready => ModelStatus::Loaded,
        Status::Draining => ModelStatus::Unloading,
        Status::Failed => failed(),
    };
    ModelView {
        names: model.names(),
        file: model.options.file.clone(),
        status,
        state: Some(model.clone()),
        facts: model.facts(),
        waiting: 0,
        loads: u64::from(model.engine.info().is_some()),
        expires: None,
        metrics: model.metrics.clone(),
    }
}

fn view(fleet: &Fleet, index: usize) -> ModelView {
    let configured = &fleet.models[index];
    let (phase, waiting, expires) = fleet.look(index);
    let (status, loaded) = match phase {
        Phase::Unloaded => (
            configured
                .refusal
                .clone()
                .map_or(ModelStatus::Unloaded, ModelStatus::Failed),
            None,
        ),
        Phase::Failed(reason) => (ModelStatus::Failed(reason), None),
        Phase::Loading => (ModelStatus::Loading, None),
        // The next request has it loaded again.
        Phase::Loaded(loaded) if loaded.state.engine.status() == Status::Failed => (failed(), None),
        Phase::Loaded(loaded) => (ModelStatus::Loaded, Some(loaded)),
        Phase::Draining(loaded) => (ModelStatus::Unloading, Some(loaded)),
        Phase::Unloading => (ModelStatus::Unloading, None),
    };
    let state = loaded.map(|loaded| loaded.state.clone());
    ModelView {
        names: configured.names.clone(),
        file: configured.file.clone(),
        status,
        facts: state
            .as_ref()
            .and_then(ModelState::facts)
            .or_else(|| configured.facts.clone()),
        state,
        waiting,
        loads: configured.loads.load(Ordering::Relaxed),
        expires,
        metrics: configured.metrics.clone(),
    }
}
