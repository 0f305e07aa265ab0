//! folio in a browser tab: the engine and its HTTP API, for the worker in `web/ts/worker.ts`.
//!
//! [`WebEngine`] is the one engine on the browser's WebGPU device; [`WebEngine::fetch`] reaches the API of the server
//! without a socket. Files come from JavaScript by ranges ([`files`]), so that cache and network are the worker's
//! affair. Nothing of the engine is written twice for it.

#![cfg(target_arch = "wasm32")]

mod error;
mod files;
mod options;
pub mod sha256;
pub mod shaders;

use bytes::Bytes;
use error::EngineError;
use files::{Files, JsFiles};
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::engine::handle::{self, EngineHandle, Status};
use folio::engine::request::SamplingParams;
use folio::engine::{Engine, Progress};
use folio::model::{Model, RangeFiles, remote::read_whole};
use folio::server::{LocalApi, ServerOptions, ServerState};
use folio::text::TextModel;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, abortable};
use js_sys::{Function, Promise, Uint8Array};
use options::LoadOptions;
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

/// A tokenizer's file, or a template's, is smaller.
const TEXT_BYTES_MAX: u64 = 256 << 20;

#[wasm_bindgen]
extern "C" {
    /// Where an answer goes.
    pub type Sink;

    /// Status and headers (names and values in turn); called once, first.
    #[wasm_bindgen(method)]
    fn head(this: &Sink, status: u16, headers: Vec<String>);

    /// A piece of the body; the next one follows when the promise is kept.
    #[wasm_bindgen(method)]
    fn chunk(this: &Sink, bytes: Uint8Array) -> Promise;

    /// The body is complete.
    #[wasm_bindgen(method)]
    fn end(this: &Sink);

    /// There will be no answer.
    #[wasm_bindgen(method)]
    fn fail(this: &Sink, message: &str);
}

/// Runs once, before everything else.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| {
        let scope = js_sys::global();
        let report = js_sys::Reflect::get(&scope, &"folioCrashed".into()).ok();
        if let Some(report) = report.and_then(|report| report.dyn_into::<Function>().ok()) {
            // Nobody is left who could hear that this failed too.
            drop(report.call1(&scope, &panic.to_string().into()));
        }
    }));
}

/// A running engine with its API.
#[wasm_bindgen]
pub struct WebEngine {
    handle: EngineHandle,
    api: LocalApi,
    run: AbortHandle,
}

#[wasm_bindgen]
impl WebEngine {
    /// Loads the model behind `files`. `options` is JSON ([`options`]); `on_progress(done, total)` counts bytes on the
    /// device, `on_notice(text)` gets what a user should know, `on_end(message)` is called when the engine ends
    /// unasked. Rejects with an `Error` whose `name` tells the kind.
    pub async fn load(
        files: Files,
        options: &str,
        on_progress: Function,
        on_notice: Function,
        on_end: Function,
    ) -> Result<WebEngine, JsValue> {
        let options = LoadOptions::parse(options)?;
        let config = options.config()?;
        let files = JsFiles::new(files);
        let text = read_text(&files).await?;
        let model = Model::open_remote(Box::new(files)).await.map_err(EngineError::from)?;
        let defaults = SamplingParams::from_defaults(model.generation());

        // The browser offers one adapter; here even a software one is better than none.
        let gpu = WgpuOptions { adapter: Some(0), binding_bytes_max: options.binding_bytes, ..WgpuOptions::default() };
        let backend = WgpuBackend::open(&gpu).await.map_err(EngineError::from)?;
        let (handle, inbox) = handle::channel(config.queue_requests_max);
        let mut progress = move |progress| {
            // An error in a listener is not the engine's.
            drop(match progress {
                Progress::Weights { done, total } => {
                    on_progress.call2(&JsValue::NULL, &(done as f64).into(), &(total as f64).into())
                }
                Progress::Fits(_) => Ok(JsValue::UNDEFINED),
                Progress::Notice(text) => on_notice.call1(&JsValue::NULL, &text.into()),
            });
        };
        let engine = Engine::start(backend, model, &config, inbox, &mut progress).await.map_err(EngineError::from)?;

        let server = ServerOptions { allowed_hosts: vec!["*".into()], defaults, ..ServerOptions::default() };
        let state = ServerState::new(handle.clone(), Arc::new(text), vec![options.name], server);
        let (running, run) = abortable(engine.run());
        spawn_local(async move {
            if let Ok(end) = running.await {
                let message = end.err().map_or_else(|| "the engine ended".into(), |end| end.to_string());
                drop(on_end.call1(&JsValue::NULL, &message.into()));
            }
        });
        Ok(WebEngine { handle, api: LocalApi::new(state), run })
    }

    /// Answers one HTTP request. `headers` are names and values in turn.
    pub fn fetch(&self, method: String, url: String, headers: Vec<String>, body: Vec<u8>, sink: Sink) -> Call {
        let api = self.api.clone();
        let (answer, abort) = abortable(async move {
            let headers: Vec<_> = headers.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            let answer = match api.call(&method, &url, &headers, Bytes::from(body)).await {
                Ok(answer) => answer,
                Err(error) => return sink.fail(&error.to_string()),
            };
            sink.head(answer.status, answer.headers.into_iter().flat_map(|(name, value)| [name, value]).collect());
            let mut pieces = answer.body;
            while let Some(piece) = pieces.next().await {
                if JsFuture::from(sink.chunk(Uint8Array::from(piece.as_ref()))).await.is_err() {
                    return;
                }
            }
            sink.end();
        });
        spawn_local(async move {
            // Cancelled or not, there is nothing left to say.
            let _ = answer.await;
        });
        Call { abort }
    }

    /// Counters and gauges of the last step, as JSON.
    pub fn stats(&self) -> String {
        options::stats(&self.handle.stats(), self.handle.status() == Status::Ready)
    }

    /// What is loaded, as JSON.
    pub fn info(&self) -> String {
        self.handle.info().map_or_else(|| "null".into(), options::info)
    }

    /// Ends everything and gives back the device's memory.
    pub fn unload(self) {
        self.handle.drain();
        self.run.abort();
    }
}

/// A request that is being answered.
#[wasm_bindgen]
pub struct Call {
    abort: AbortHandle,
}

#[wasm_bindgen]
impl Call {
    /// Stops computing the answer. The sink hears nothing more.
    pub fn cancel(self) {
        self.abort.abort();
    }
}

/// Tokenizer and chat template, each as far as the model has one.
async fn read_text(files: &dyn RangeFiles) -> Result<TextModel, EngineError> {
    let tokenizer = read_whole(files, "tokenizer.json", TEXT_BYTES_MAX).await?;
    let config = read_whole(files, "tokenizer_config.json", TEXT_BYTES_MAX).await?;
    let template = read_whole(files, "chat_template.jinja", TEXT_BYTES_MAX).await?;
    let template = template.map(|bytes| String::from_utf8(bytes.to_vec())).transpose();
    let template = template.map_err(|_| EngineError::model("chat_template.jinja: not UTF-8"))?;
    let text = TextModel::from_parts(tokenizer.as_deref(), config.as_deref(), template.as_deref());
    text.map_err(|error| EngineError::model(error.to_string()))
}
