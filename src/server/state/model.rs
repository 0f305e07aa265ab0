//! [`ModelState`]: what the routes need of the model that a request asks for.

use super::adapters::Adapters;
use super::answering::Answering;
use super::{
    Counted, ModelFacts, ModelOutline, Reranker, ServerOptions, Shared, TEXT_BODY_BYTES,
    prompt_bytes_max, stem,
};
use crate::engine::handle::{EngineHandle, EngineInfo, Status};
use crate::engine::request::{Request, SubmitError};
use crate::server::counters::{Metrics, Throughput};
use crate::server::wire::error::ApiError;
use crate::text::answer::AnswerFormat;
use crate::text::{GrammarError, Grammars, TextModel};
use std::sync::{Arc, OnceLock};

/// A loaded model, and what it shares with the others of its server; cheap to clone.
#[derive(Clone)]
pub(crate) struct ModelState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: EngineHandle,
    pub(crate) text: Arc<TextModel>,
    /// At least one, beside those of adapters; answers call the model by the first.
    pub(crate) model_names: Arc<[String]>,
    /// The server's, with those of this model.
    pub(crate) options: Arc<ServerOptions>,
    pub(crate) adapters: Arc<Adapters>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) throughput: Arc<Throughput>,
    pub(crate) answer_format: AnswerFormat,
    /// Created when a request first needs it.
    pub(crate) grammars: Arc<OnceLock<Result<Grammars, GrammarError>>>,
}

impl ModelState {
    pub(super) fn new(
        shared: Arc<Shared>,
        (engine, text): (EngineHandle, Arc<TextModel>),
        model_names: Arc<[String]>,
        options: ServerOptions,
    ) -> Self {
        assert!(!model_names.is_empty(), "a served model has a name");
        let answer_format =
            AnswerFormat::new(&text, options.tool_call_parser, options.reasoning_parser);
        if options.tool_call_parser.is_none() && AnswerFormat::is_unknown_to(&text) {
            let model = &model_names[0];
            tracing::warn!(
                "calls of {model} are read only if the whole answer is JSON: its chat template shows tools, but in no \
                 format that is known (see --tool-call-parser)"
            );
        }
        Self {
            shared,
            engine,
            text,
            model_names,
            adapters: Arc::new(Adapters::new(options.adapters.clone())),
            options: Arc::new(options),
            metrics: Arc::default(),
            throughput: Arc::default(),
            answer_format,
            grammars: Arc::default(),
        }
    }

    /// Submits a request to the engine. Its prompt shares the cached blocks of its client.
    pub(crate) fn submit(&self, mut request: Request) -> Result<Vec<Answering>, SubmitError> {
        request.cache_owner = self.shared.cache_owner(request.client);
        let receivers = self.engine.submit(request)?.into_iter();
        Ok(receivers
            .map(|events| Answering::new(events, self.metrics.clone()))
            .collect())
    }

    /// The engine's properties, or the error if it cannot serve requests.
    pub(crate) fn ready(&self) -> Result<&EngineInfo, ApiError> {
        match self.engine.status() {
            Status::Ready => self.engine.info().ok_or_else(ApiError::loading),
            Status::Loading => Err(ApiError::loading()),
            Status::Draining => Err(ApiError::shutting_down()),
            Status::Failed => Err(ApiError::device_lost()),
        }
    }

    /// What is known of the model; `None` before it is loaded.
    pub(super) fn facts(&self) -> Option<ModelFacts> {
        let info = self.engine.info()?;
        let outline = ModelOutline {
            text: self.text.clone(),
            defaults: self.options.defaults.clone(),
            draw_defaults: self.options.draw_defaults,
            vocab: info.vocab,
            max_model_len: info.max_model_len,
            max_num_seqs: info.max_num_seqs,
            block_size: info.block_size,
            pool_tokens: u64::from(info.blocks) * u64::from(info.block_size),
            encodes: !info.has_head,
            labels: info
                .classes
                .as_ref()
                .map_or(0, |head| head.spec.labels.len()),
            embedding_len: info.embedding_len,
            weight_bytes: info.weight_bytes,
            figures: info.figures.clone(),
        };
        Some(ModelFacts {
            outline,
            answer_format: self.answer_format,
            device: Some(info.device.clone()),
            reads_images: info.images.is_some(),
        })
    }

    /// The served name that a request asks for; the first if it names none.
    pub(crate) fn model(&self, asked: Option<String>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.model_names[0].clone()),
            Some(name) if self.options.any_model || self.is_served(&name) => Ok(name),
            Some(name) => Err(ApiError::unknown_model(
                &name,
                self.names().iter().map(String::as_str),
            )),
        }
    }

    /// All served names: those of the model, then those of its adapters.
    pub(crate) fn names(&self) -> Arc<[String]> {
        let own = self.model_names.iter().cloned();
        own.chain(self.adapters.names()).collect()
    }

    /// Whether a name is one of this model's or of an adapter, or the stem of its file.
    pub(crate) fn is_served(&self, name: &str) -> bool {
        let is_one = |name: &str| {
            self.model_names
                .iter()
                .map(String::as_str)
                .chain(self.options.file.as_deref().map(stem))
                .any(|served| served == name)
        };
        // Ollama's clients add the tag that they see in its lists.
        is_one(name)
            || name.strip_suffix(":latest").is_some_and(is_one)
            || self.adapters.named(name).is_some()
    }

    /// How documents are judged.
    pub(crate) fn reranker(&self) -> Reranker {
        let is_reranker = self
            .model_names
            .iter()
            .any(|name| name.to_ascii_lowercase().contains("rerank"));
        self.options.reranker.unwrap_or(if is_reranker {
            Reranker::YesNo
        } else {
            Reranker::Embedding
        })
    }

    /// Maximum bytes of text that is counted, shown or cut, instead of computed: those of a body without images.
    pub(crate) fn text_bytes_max(&self) -> Result<usize, ApiError> {
        let of_body = self.shared.options.limits.body_bytes_max;
        let of_body = of_body.unwrap_or(TEXT_BODY_BYTES);
        Ok(prompt_bytes_max(self.ready()?).max(of_body))
    }

    /// Counts an answer until it is dropped.
    pub(crate) fn count_answer(&self) -> Counted {
        Counted::new(&self.shared.active)
    }

    /// Runs `work` on the text model; see [`Shared::offload`].
    pub(crate) async fn with_text<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&TextModel) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let text = self.text.clone();
        self.shared.offload(bytes, move || work(&text)).await
    }

    /// `system_fingerprint`: identifies what computed an answer. Answers may differ if their fingerprints do.
    pub(crate) fn fingerprint(&self, info: &EngineInfo) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [
            env!("CARGO_PKG_VERSION"),
            &self.model_names[0],
            &info.device,
            info.api,
            &info.tier,
        ] {
            hasher.update(part.as_bytes()).update(&[0]);
        }
        format!("fp_{}", &hasher.finalize().to_hex()[..12])
    }
}
