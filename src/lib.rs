//! folio runs language models on any GPU: one engine with a paged KV pool and continuous batching, recorded plans, WGSL
//! kernels, an OpenAI-compatible API. This page describes the architecture; every module starts with its own
//! documentation.
//!
//! # Bird's eye view
//!
//! A checkpoint becomes a [`model::Model`]. The model records, once, what its decoder does as a [`plan::Plan`]: a short
//! list of steps over named buffers. A [`backend::Backend`] runs that list for every batch: WGSL through wgpu on a GPU,
//! or plain loops on the CPU, which *define* what each step computes. The [`engine`] forms the batches: it owns the
//! paged KV pool, the scheduler and the prefix cache, and turns requests into streams of tokens. Text is converted by
//! [`text`] (tokenizer, chat template, tokens to text). Requests come from `server` (the HTTP API) or from your own
//! program:
//!
//! ```
//! use folio::engine::{Engine, handle, request::*};
//! use folio::{backend::cpu::CpuBackend, config::Config, model::Model, model::demo, platform::block_on, text::*};
//! use futures_util::{StreamExt, future::join3};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = TextModel::from_parts(Some(demo::TOKENIZER_JSON), Some(demo::TOKENIZER_CONFIG_JSON), None)?;
//! let tokenizer = text.tokenizer.ok_or("the demo model has a tokenizer")?;
//! let (handle, inbox) = handle::channel(16);
//! let engine = block_on(Engine::start(CpuBackend::default(), Model::demo(), &Config::default(), inbox, |_| {}))?;
//! let submit = |prompt: &str| -> Result<handle::EventReceiver, Box<dyn std::error::Error>> {
//!     let params = SamplingParams { max_tokens: Some(16), ignore_eos: true, ..Default::default() };
//!     let prompt = tokenizer.encode(prompt, true)?.into();
//!     Ok(handle.submit(Request { prompt, params, ..Request::default() })?.remove(0))
//! };
//! let show = async |mut events: handle::EventReceiver| {
//!     let mut pieces = TextStream::new(Some(tokenizer.clone()), &[], true);
//!     while let Some(Event::Token(token)) = events.next().await { print!("{}", pieces.push(token.id).text) }
//! };
//! let (story, fact) = (submit("Once upon a time")?, submit("The KV cache")?);
//! handle.drain(); // takes no more requests, so that `run` returns when these two are done
//! block_on(join3(engine.run(), show(story), show(fact))).0?;
//! # assert_eq!(handle.stats().generation_tokens, 32);
//! # Ok(())
//! # }
//! ```
//!
//! # Code map
//!
//! - **[`plan`]**: [`plan::Step`] and [`plan::Plan`]: what a decoder computes, as data; [`plan::inputs`]: the inputs of
//!   one batch; [`plan::format`]: byte layouts and their scalar decoders. Also checks plans without a device, and
//!   prints them.
//! - **[`model`]**: from files to a plan and its weights: [`model::spec`] describes one decoder, `families` has a row
//!   of data per architecture, `decoder` is the only forward pass of the repository; [`model::gguf`] reads GGUF,
//!   `prequantized` reads checkpoints that are already quantized, `quantize` quantizes on load; all three are sources
//!   of tensors in device formats.
//! - **[`backend`]**: the interface [`backend::Backend`] and its implementations: [`backend::reference`] defines the
//!   results, [`backend::cpu`] runs on any CPU, [`backend::wgpu`] on any GPU, `backend::cuda` (feature `cuda`) on
//!   NVIDIA GPUs, and [`backend::fake`] is the simulator's device. [`backend::layout`] computes every buffer that they
//!   allocate, [`backend::metadata`] is the batch as GPU kernels read it.
//! - **[`engine`]**: [`engine::Engine::step`] is the whole flow; `scheduler`, `memory`, `sequence`, `batch` are pure;
//!   [`engine::memory`] is what sequences occupy: blocks of the pool, state slots, host memory and files, whose bytes
//!   `mover` and [`engine::disk`] move;
//!   `tower` turns parts of images into rows, for whose place on the device `images` cares;
//!   `speculation`, `draft_model` and `predictor` guess tokens that one step verifies; [`engine::fit`] computes before
//!   loading what fits; [`engine::handle`] is the engine's interface for clients.
//! - **[`text`]**: text to token ids and back: tokenizer, chat template, incremental decoding with stop strings, and
//!   grammars (masks over tokens).
//! - **[`image`]**: images to the patches that a model's tower reads: decoding, resizing, tiles, and the text that
//!   stands for them in a prompt.
//! - **`server`**: feature `api`: the router, one file per endpoint; feature `server`: sockets.
//! - **[`selftest`]**: compares every step × option × awkward shape on a device with the reference; shared by tests and
//!   `folio selftest`.
//! - **[`config`]**: all settings and limits, checked once.
//! - **[`platform`]**: what differs between a process and a browser tab.
//! - **`web/`**: the browser: a wasm crate over this library, an npm package around it and one for the demo model, a
//!   demo page, tests in Chromium.
//! - **`src/cli`**: the binary: `commands` has a file or folder per command, `terminal` what people see; `hub` resolves
//!   a model's name to a path and downloads the model if necessary.
//! - **`shaders/`**: one WGSL kernel per file; `common/` holds imported code; `bench_*` measure a device's peak speed
//!   for `folio bench`.
//! - **`cuda/`**: the same kernels in CUDA C++, under the same file names; `emulator/` runs them on the CPU, for tests.
//! - **`assets/demo`**: the built-in demo model as a crate, and how it was made.
//! - **`tests/`**: five rings: source rules and shaders, reference kernels, simulation, kernels on devices, the whole
//!   program.
//! - **`fuzz/`**: fuzz targets for untrusted files; **`examples/`**: checks against models and data that are too large
//!   for the repository.
//!
//! # What to change for what
//!
//! Each list names the files that an addition takes; `tests/tidy` checks that they exist, and that every step has those
//! with its stem.
//!
//! ## A step
//!
//! A step that needs no new input; the compiler and `tests/tidy` name what is missing:
//!
//! 1. `src/plan/step/<stem>.rs`: its fields, which buffers it reads and writes, its checks, its line in a printed plan.
//! 2. `src/plan/step/mod.rs`: a variant of [`plan::Step`].
//! 3. `src/backend/reference/<stem>.rs`: the reference implementation (twin), which defines what the step computes.
//! 4. `src/backend/reference/mod.rs`: the call of the twin.
//! 5. `src/backend/cpu/<stem>.rs`: the step on the CPU, with threads and vectors.
//! 6. `src/backend/cpu/mod.rs`: the call of `run`.
//! 7. `src/backend/wgpu/encode/<stem>.rs`: kernel, params and grid.
//! 8. `src/backend/wgpu/encode/mod.rs`: the call of `encode`, and its variants.
//! 9. `shaders/<stem>.wgsl`: the kernel; several are `<stem>_<form>.wgsl`.
//! 10. `src/backend/cuda/encode/<stem>.rs`: kernel, params and grid.
//! 11. `src/backend/cuda/encode/mod.rs`: the call of `encode`.
//! 12. `cuda/<stem>.cu`: the kernel; several are `<stem>_<form>.cu`.
//! 13. `src/selftest`: its cases for `folio selftest` and the kernel tests, in the file of its kind.
//! 14. `src/model/decoder.rs`: records the step where an architecture asks for it.
//!
//! ## A family
//!
//! Of models whose layers consist of existing steps:
//!
//! 1. `src/model/families.rs`: a row of data: what its `config.json` decides, and the defaults where it is silent.
//! 2. `src/model/tensor_names.rs`: a table, if its checkpoints name or stack tensors in a new way.
//! 3. `src/model/config.rs` or `src/model/config_layers.rs`, if the row needs an option that no other family has;
//!    `src/model/layer_weight.rs` and a row of `src/model/weights/sections.rs`, if a layer has a weight that no other
//!    has; `src/model/decoder`, if the forward pass does.
//! 4. `src/model/gguf/families.rs`: a row that translates GGUF's metadata to the same config.
//! 5. A golden model of it in `tests/data/golden.tar.xz`, made by `tests/data/golden/make_golden.py`, its line in
//!    `tests/model/today.rs`, and its name in GGUF in `tests/model/converted.rs`.
//!
//! ## A tower
//!
//! Of models that read images, and whose towers consist of existing steps:
//!
//! 1. `src/model/families/towers.rs` and `src/model/tensor_names/towers.rs`: rows of data, as for a family.
//! 2. `src/model/tower.rs`: the `model_type` of the whole model, and where its config says what the tower reads.
//! 3. `src/image/processor.rs`: its file beside it with the sizes of images, their tiles, and the text that stands for
//!    them.
//! 4. A golden model of it in `tests/data/golden-vision.tar.xz`, and its name in `tests/model/images.rs`.
//!
//! ## A weight format
//!
//! Is codes, levels and scales. A new combination of existing ones:
//!
//! 1. `src/plan/format/weight.rs`: a variant with its parts; `src/plan/print.rs`: its name.
//! 2. `cuda/common/weight_format.cuh`: its parts. WGSL needs no change: it is compiled from the parts.
//! 3. Where it is read or made: `src/model/gguf/blocks.rs`, `src/model/prequantized` or `src/model/quantize.rs`.
//!
//! A new kind of codes, levels or scales is also a branch in `src/backend/wgpu/encode/weight.rs` with
//! `shaders/common/weight_group.wgsl` or `shaders/common/weight_levels.wgsl`, in `cuda/common/weight_group.cuh`, and in
//! `src/selftest/weights.rs`. The self-test runs every format on every device against [`plan::format`].
//!
//! ## A field of a request
//!
//! 1. `src/server/parameters/table.rs`: a row (name, kind, range, sentence), and the code that uses it: the compiler
//!    reports an unused row.
//! 2. A sampling parameter is also a member of [`engine::request::SamplingParams`], or of its
//!    [`engine::request::DrawParams`] if kernels read it (then with a word in `src/backend/metadata.rs`), with its
//!    range and its check in `src/engine/request.rs`, and a line of `src/server/parameters/sampling.rs` that sets it.
//! 3. `FOLIO_REFRESH=1 cargo test --test http document` rewrites `tests/data/http/openapi.json` and
//!    `web/ts/requests.ts`, and tries the ends of the new range on every route.
//!
//! ## A route
//!
//! 1. `src/server/routes/mod.rs`: its file in that folder, with a handler that reads, submits and replies.
//! 2. `src/server/routes/table.rs`: its row: path, handler, and what the document says of it.
//! 3. `src/server/parameters/table.rs`: the fields of its body, if no other route has the same.
//! 4. `src/server/reply`: its JSON, and `src/server/routes/replies.json`: the form of it.
//! 5. `src/server/guards/access.rs`: if it needs no key.
//! 6. `tests/http/routes.rs`, and `FOLIO_REFRESH=1 cargo test --test http document`, which rewrites
//!    `tests/data/http/openapi.json`, `web/ts/requests.ts` and the table of `docs/api.md`.
//!
//! ## A counter
//!
//! 1. `src/engine/stats.rs`: a row (name, sentence, name among the metrics: vLLM's, if there is one), and the line that
//!    counts. Counters of the server itself are in `src/server/counters.rs`.
//! 2. `docs/grafana.json`, if the dashboard draws it.
//! 3. A test that makes it move; `tests/http/metrics.rs` checks the form of all. `FOLIO_REFRESH=1 cargo test --test
//!    http document` writes `web/ts/stats.ts` and the list of metrics in `tests/data/http`.
//!
//! ## An option
//!
//! 1. Of the engine, a number: `src/config.rs`: a row (name, sentence, default, range). The command line, its variables
//!    and files, and a page's `limits` take it from there, and `FOLIO_REFRESH=1 cargo test --test http document` writes
//!    `web/ts/limits.ts`. A word or a fraction is a row of `src/config/settings.rs`, from which the command line takes
//!    it. Another one is a member of [`config::Config`], and a flag in `src/cli/options.rs`.
//! 2. Of the server: `src/cli/commands/serve/mod.rs`, and the options that it fills: `src/server/state/mod.rs`, or
//!    `src/server/socket/mod.rs` for connections. `--config` has it by the flag.
//! 3. In a page: `web/src/options.rs`, `web/ts/options.ts` and `web/ts/types.ts`; `web/src/error.rs` says what the flag
//!    is called there.
//! 4. The page of `docs` for its subject, and a test in `tests/cli` or `tests/http`.
//!
//! ## A backend
//!
//! 1. `src/backend/mod.rs`: its folder there, which implements [`backend::Backend`], and [`backend::Inspect`] for
//!    tests. Its [`backend::Caps`] tell `src/backend/layout.rs` how it allocates.
//! 2. `src/cli/device.rs`: its name for `--device`; the compiler names what else asks which device it is.
//! 3. `Cargo.toml`: its crates, behind a feature; `tests/tidy/imports.rs`: its folder may use them.
//! 4. `tests/kernels/main.rs`: every case of the self-test; `tests/model/main.rs`: the golden models.
//! 5. `examples/support.rs`: its column in the tables of `docs/formats.md`.
//!
//! ## A CPU kernel
//!
//! 1. `src/backend/cpu/mod.rs`: the call for its step, in the file of its kind: `src/backend/cpu/rows.rs` has the steps
//!    that are small beside the products.
//! 2. `src/backend/cpu/simd/mod.rs`: an operation of vectors that is missing, once for each instruction set: in
//!    `src/backend/cpu/simd/portable.rs`, `src/backend/cpu/simd/avx2.rs`, `src/backend/cpu/simd/avx512.rs`,
//!    `src/backend/cpu/simd/neon.rs` and `src/backend/cpu/simd/simd128.rs`.
//! 3. `tests/kernels/main.rs` runs it with each instruction set of the processor, `.ci/arm` with NEON, `web/test` with
//!    SIMD128.
//!
//! ## An injected bug
//!
//! 1. `tests/bugs/scheduler`, or the folder of its area beside it: a patch, below a sentence that says what breaks and
//!    the tests that must fail with it.
//! 2. `.ci/planted` plants each in a copy: `check` whether it applies, an area or all whether the tests notice it.
//!
//! # The path of a token
//!
//! A token crosses two channels and one thread boundary:
//!
//! ```text
//! 1  server: JSON → messages → template → token ids → EngineHandle::submit
//!    ── channel 1, bounded: a full queue is an error at once ──
//! 2  Engine::step: take requests; Scheduler::schedule → Batch
//! 3  Batch::flatten → BatchInputs, flat arrays
//! 4  Backend::submit → ticket … Backend::read(ticket).await → token ids
//! 5  Scheduler::commit(batch, ids) → events
//!    ── channel 2, one per choice, with room for all its events: the engine never waits for a reader ──
//! 6  server: ids → text, stop strings → `data: …`
//! ```
//!
//! The next step is submitted before the tokens of the previous one are read: the sampler writes them to *feed slots*
//! on the device, where the next step's embedding reads them.
//!
//! # Invariants
//!
//! What the design guarantees or rules out. `tests/tidy` checks everything that can be read off the source.
//! `docs/dev/promises.md` lists what users can rely on, with the tests that check it.
//!
//! - **`plan` imports nothing of ours**, `model` knows only `plan`: a model is recorded without knowing any device.
//! - **A step says what, never how.** No step is defined in terms of a tile size; kernels, grids and tiers belong to
//!   the backends.
//! - **The reference defines a step.** `shaders/rms_norm.wgsl` = `src/backend/reference/rms_norm.rs` =
//!   `Step::RmsNorm`; a kernel is correct if it agrees with its twin within the table of tolerances.
//! - **Scheduling is pure.** `scheduler`, `memory`, `sequence` and `batch` know no device, clock, thread or
//!   randomness: the simulator drives them through thousands of seeds.
//! - **The engine never sees text**, and only the command line, the self-test and tests name a concrete backend.
//! - **All device memory is allocated at start.** After that, a request can be refused, but never runs out of
//!   memory.
//! - **A request is validated in one place**, [`engine::handle::EngineHandle::submit`]. An accepted request is
//!   well-formed. The API calls its check of the sampling parameters earlier as well, before it encodes the prompt.
//! - **One way to cancel:** drop the receiver. Blocks are freed once no step in flight uses them.
//! - **Exactly one terminal event per choice**, even if the device is lost or the engine's thread panics.
//! - **A shared KV block is never written.** A writer copies it first.
//! - **The engine is built on the thread that owns it**, so nothing in it needs `Send`, natively or in a browser.
//! - **Operating errors are values, bugs are asserts.** User input never triggers an assert; a GPU error never panics.
//! - **No `cfg(feature)` in `model`, `plan` and `engine`; `target_arch` only in `platform`, `backend::wgpu`, the CPU
//!   device's vector code and `web`.**

// A library that prints decides where its messages go; and these macros panic when the output is closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod backend;
pub mod config;
pub mod engine;
#[cfg(feature = "images")]
pub mod image;
pub mod model;
pub mod plan;
pub mod platform;
pub mod selftest;
#[cfg(feature = "api")]
pub mod server;
pub mod text;
