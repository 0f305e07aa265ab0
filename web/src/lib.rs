//! folio in a browser tab: the engine and its HTTP API, for the worker in `web/ts/worker.ts`.
//!
//! [`WebEngine`] is the engine on the browser's WebGPU device, or on the CPU ([`cpu`]). [`WebEngine::fetch`] calls the
//! server's API without a socket. JavaScript reads ranges of files ([`files`]), so the worker handles cache and
//! network. The engine's code is the same as for the native binary.

#![cfg(target_arch = "wasm32")]

pub mod cpu;
mod error;
mod files;
mod model;
mod options;
pub mod sha256;
pub mod shaders;

use bytes::Bytes;
use cpu::TabCpu;
use error::EngineError;
use files::{Files, JsFiles};
use folio::backend::Backend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::engine::disk::MemoryFiles;
use folio::engine::handle::{self, EngineHandle, Status};
use folio::engine::request::SamplingParams;
use folio::engine::{Engine, Progress};
use folio::model::Model;
use folio::server::{LocalApi, ServerOptions, ServerState};
use folio::text::TextModel;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, abortable};
use js_sys::{Function, Promise, Uint8Array};
use options::{Device, LoadOptions};
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

#[wasm_bindgen]
extern "C" {
    /// The receiver of a response.
    pub type Sink;

    /// Receives the status and the headers (names and values alternating); called once, first.
    #[wasm_bindgen(method)]
    fn head(this: &Sink, status: u16, headers: Vec<String>);

    /// Receives a chunk of the body; the next chunk follows when the promise resolves.
    #[wasm_bindgen(method)]
    fn chunk(this: &Sink, bytes: Uint8Array) -> Promise;

    /// Called when the body is complete.
    #[wasm_bindgen(method)]
    fn end(this: &Sink);

    /// Called if there will be no response.
    #[wasm_bindgen(method)]
    fn fail(this: &Sink, message: &str);
}

/// Maximum bytes of imported KV blocks.
const IMPORTED_BYTES_MAX: u64 = 1 << 30;

/// Module initialization: runs once, before everything else.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| {
        let scope = js_sys::global();
        let report = js_sys::Reflect::get(&scope, &"folioCrashed".into()).ok();
        if let Some(report) = report.and_then(|report| report.dyn_into::<Function>().ok()) {
            // If reporting the panic fails, that cannot be reported either.
            drop(report.call1(&scope, &panic.to_string().into()));
        }
    }));
}

/// A running engine with its API.
#[wasm_bindgen]
pub struct WebEngine {
    handle: EngineHandle,
    api: LocalApi,
    files: MemoryFiles,
    run: AbortHandle,
}

#[wasm_bindgen]
impl WebEngine {
    /// Loads the model behind `files`. `options` is JSON ([`options`]); `on_progress(phase, done, total)` counts bytes
    /// on the device (`device`) and compiled kernels (`kernels`). `on_notice(text)` receives notices for the user.
    /// `on_end(message)` is called when the engine ends by itself. `pause()` returns a promise that resolves when the
    /// worker has handled the messages that wait. Rejects with an `Error` whose `name` is the kind.
    pub async fn load(
        files: Files,
        options: &str,
        on_progress: Function,
        on_notice: Function,
        on_end: Function,
        pause: Function,
    ) -> Result<WebEngine, JsValue> {
        let options = LoadOptions::parse(options)?;
        options.config()?;
        let (model, text) = model::open(JsFiles::new(files), &options).await?;
        let parts = Parts {
            model,
            text,
            on_progress,
            on_notice,
            on_end,
        };
        let engine = match options.device {
            Device::WebGpu => {
                // The browser offers one adapter. Even a software adapter is used: the CPU device was not asked for.
                let (adapter, binding_bytes_max) = (Some(0), options.binding_bytes);
                let subgroups = options.subgroups;
                let gpu = WgpuOptions {
                    adapter,
                    binding_bytes_max,
                    subgroups,
                    ..WgpuOptions::default()
                };
                Self::start(
                    WgpuBackend::open(&gpu).await.map_err(EngineError::from)?,
                    parts,
                    options,
                )
                .await
            }
            Device::Cpu => Self::start(TabCpu::new(pause), parts, options).await,
        };
        Ok(engine?)
    }

    /// Answers one HTTP request. `headers` are names and values alternating.
    pub fn fetch(
        &self,
        method: String,
        url: String,
        headers: Vec<String>,
        body: Vec<u8>,
        sink: Sink,
    ) -> Call {
        let api = self.api.clone();
        let (answer, abort) = abortable(async move {
            let headers: Vec<_> = headers
                .chunks_exact(2)
                .map(|pair| (pair[0].clone(), pair[1].clone()))
                .collect();
            let answer = match api.call(&method, &url, &headers, Bytes::from(body)).await {
                Ok(answer) => answer,
                Err(error) => return sink.fail(&error.to_string()),
            };
            sink.head(
                answer.status,
                answer
                    .headers
                    .into_iter()
                    .flat_map(|(name, value)| [name, value])
                    .collect(),
            );
            let mut pieces = answer.body;
            while let Some(piece) = pieces.next().await {
                if JsFuture::from(sink.chunk(Uint8Array::from(piece.as_ref())))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            sink.end();
        });
        spawn_local(async move {
            // The result only says whether the call was cancelled; nothing remains to be done.
            let _ = answer.await;
        });
        Call { abort }
    }

    /// Adds the KV blocks of a file that `folio cache export` has written; `name` is for errors. Returns how many there
    /// are.
    pub fn import_cache(&self, name: &str, file: Vec<u8>) -> Result<u32, JsValue> {
        let imported = self.files.import(&Bytes::from(file));
        let count = imported.map_err(|error| EngineError::model(format!("{name}: {error}")))?;
        Ok(u32::try_from(count).expect("a file has few blocks"))
    }

    /// Counters and gauges of the last step, as JSON.
    pub fn stats(&self) -> String {
        options::stats(&self.handle.stats(), self.handle.status() == Status::Ready)
    }

    /// The loaded model and its limits, as JSON.
    pub fn info(&self) -> String {
        self.handle
            .info()
            .map_or_else(|| "null".into(), options::info)
    }

    /// Ends all requests and frees the device's memory.
    pub fn unload(self) {
        self.handle.drain();
        self.run.abort();
    }
}

/// The parts that an engine is started with, on any device.
struct Parts {
    model: Model,
    text: TextModel,
    on_progress: Function,
    on_notice: Function,
    on_end: Function,
}

impl WebEngine {
    async fn start<B: Backend + 'static>(
        backend: B,
        parts: Parts,
        options: LoadOptions,
    ) -> Result<Self, EngineError> {
        let Parts {
            model,
            text,
            on_progress,
            on_notice,
            on_end,
        } = parts;
        let config = options.config()?;
        let (defaults, draw_defaults) = (
            SamplingParams::from_defaults(model.generation()),
            model.generation().draw,
        );
        let (handle, inbox) = handle::channel(config.queue_requests_max);
        let report = move |phase: &str, done: f64, total: f64| {
            on_progress.call3(&JsValue::NULL, &phase.into(), &done.into(), &total.into())
        };
        let mut progress = move |progress| {
            // Errors of a listener do not concern the engine.
            drop(match progress {
                Progress::Weights { done, total } => report("device", done as f64, total as f64),
                Progress::Kernels { done, total } => report("kernels", done.into(), total.into()),
                Progress::Fits(_) | Progress::Disk { .. } => Ok(JsValue::UNDEFINED),
                Progress::Notice(text) => on_notice.call1(&JsValue::NULL, &text.into()),
            });
        };
        let files = MemoryFiles::new(IMPORTED_BYTES_MAX);
        let engine =
            Engine::start_with_files(backend, model, &files, &config, inbox, &mut progress).await?;

        let server = ServerOptions {
            allowed_hosts: vec!["*".into()],
            defaults,
            draw_defaults,
            ..ServerOptions::default()
        };
        let state = ServerState::new(handle.clone(), Arc::new(text), vec![options.name], server);
        let (running, run) = abortable(engine.run());
        spawn_local(async move {
            if let Ok(end) = running.await {
                let message = end
                    .err()
                    .map_or_else(|| "the engine ended".into(), |end| end.to_string());
                drop(on_end.call1(&JsValue::NULL, &message.into()));
            }
        });
        Ok(Self {
            handle,
            api: LocalApi::new(state),
            files,
            run,
        })
    }
}

/// A running request.
#[wasm_bindgen]
pub struct Call {
    abort: AbortHandle,
}

#[wasm_bindgen]
impl Call {
    /// Cancels the request. The sink receives nothing more.
    pub fn cancel(self) {
        self.abort.abort();
    }
}
