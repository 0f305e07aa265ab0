//! The announced sizes equal the allocated ones: compares the sizes computed from a plan with those that a device was
//! asked for, and with what a device accepts or refuses.

use bytes::Bytes;
use folio::backend::fake::FakeBackend;
use folio::backend::layout::Layout;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{Class, Tier, WgpuBackend, WgpuOptions, usual_allocation};
use folio::backend::{Backend, BackendError, BlockRef, Capacity, Caps, GivenTimes};
use folio::config::Config;
use folio::engine::fit::{Beside, Fit};
use folio::engine::{Engine, Progress, StartError, handle};
use folio::model::{Model, ModelSpec};
use folio::plan::inputs::{BatchInputs, Results};
use folio::plan::{KvFormat, KvGroup, Plan, Storage, WeightId, Window};
use folio::platform::block_on;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// What a device was asked to allocate.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    loads: u32,
    weight_bytes: u64,
    blocks: Vec<u32>,
}

/// A device that records what it is asked to allocate. Its times count as those of a fake device: they change nothing.
pub(super) struct Witness<B> {
    inner: B,
    told: Rc<RefCell<Told>>,
}

impl<B> Witness<B> {
    pub(super) fn new(inner: B) -> Self {
        Self {
            inner,
            told: Rc::default(),
        }
    }
}

impl<B: Backend> Backend for Witness<B> {
    type Ticket = B::Ticket;
    type Saves = B::Saves;

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.told.borrow_mut().loads += 1;
        self.inner.load(plan, capacity)
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        self.told.borrow_mut().weight_bytes += rows.len() as u64;
        self.inner.write_weight(weight, first_row, rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.told.borrow_mut().blocks = blocks.to_vec();
        self.inner.allocate_pool(blocks)
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<B::Ticket, BackendError> {
        self.inner.submit(inputs)
    }

    async fn read(&mut self, ticket: B::Ticket) -> Result<Results, BackendError> {
        self.inner.read(ticket).await
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<B::Saves, BackendError> {
        self.inner.save_blocks(blocks)
    }

    async fn saved_blocks(&mut self, saves: B::Saves) -> Result<Vec<Bytes>, BackendError> {
        self.inner.saved_blocks(saves).await
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        self.inner.restore_blocks(blocks)
    }

    fn given_times(&self) -> Option<GivenTimes> {
        Some(GivenTimes::default())
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.inner.reset().await
    }
}

fn golden(name: &str) -> Model {
    Model::open(&super::golden(name)).expect("the golden model loads")
}

/// Computes the fit, starts an engine, compares both, and returns the fit.
fn prove<B: Backend>(name: &str, backend: B, model: Model, config: &Config) -> Fit {
    let plan = model.record(backend.caps().activations);
    let fit = Fit::new(config, &plan, Beside::default(), backend.caps());
    let stored_bytes = plan.weight_bytes();
    let witness = Witness::new(backend);
    let told = witness.told.clone();
    let (handle, inbox) = handle::channel(1);
    let mut announced = None;
    let progress = |progress| {
        if let Progress::Fits(fit) = progress {
            announced = Some(*fit);
        }
    };
    let outcome = block_on(Engine::start(witness, model, config, inbox, progress)).map(|_| ());
    if !fit.fits() {
        assert!(
            matches!(outcome, Err(StartError::DoesNotFit(_))),
            "{name}: {outcome:?}"
        );
        assert_eq!(
            *told.borrow(),
            Told::default(),
            "{name}: nothing was allocated"
        );
        return fit;
    }
    outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        announced.as_ref(),
        Some(&fit),
        "{name}: the fit is announced before the allocation"
    );
    let info = handle.info().expect("it is ready");
    assert_eq!(
        *told.borrow(),
        Told {
            loads: 1,
            weight_bytes: stored_bytes,
            blocks: fit.blocks.clone()
        },
        "{name}: allocated as computed"
    );
    assert_eq!(
        (info.max_model_len, info.kv_bytes, info.weight_bytes),
        (fit.max_model_len, fit.kv_bytes, fit.weight_bytes),
        "{name}"
    );
    fit
}

/// Settings under which all, some or none of the context fits.
fn configs() -> [Config; 4] {
    let pool = |bytes| Config {
        kv_cache_bytes: Some(bytes),
        max_num_seqs: 4,
        ..Config::default()
    };
    let blocks = Config {
        block_size: 16,
        kv_format: KvFormat::F32,
        ..pool(1 << 20)
    };
    [pool(16 << 20), pool(300 << 10), blocks, pool(100)]
}

fn prove_on<B: Backend>(name: &str, open: impl Fn() -> B) {
    let models: [fn() -> Model; 3] = [Model::demo, || golden("qwen3"), || golden("gemma2")];
    for model in models {
        for config in configs() {
            prove(name, open(), model(), &config);
        }
    }
}

#[test]
fn the_reference_allocates_what_was_judged() {
    prove_on("cpu", ReferenceBackend::new);
    let default = prove(
        "cpu",
        ReferenceBackend::new(),
        Model::demo(),
        &Config {
            max_num_seqs: 4,
            ..Config::default()
        },
    );
    assert_eq!(
        (default.max_model_len, default.sequences),
        (2048, 4),
        "the demo's context fits anywhere"
    );
}

#[test]
fn adapters_allocate_what_was_judged() {
    let adapters = WgpuBackend::adapters();
    let required = std::env::var("FOLIO_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(
        !required || !adapters.is_empty(),
        "FOLIO_REQUIRE_GPU=1, but wgpu finds no adapter"
    );
    for report in &adapters {
        let options = WgpuOptions {
            adapter: Some(report.index),
            ..WgpuOptions::default()
        };
        let open =
            || block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        let [all, some, ..] = configs();
        prove(&report.name, open(), Model::demo(), &all);
        prove(&report.name, open(), golden("gemma2"), &some);
    }
}

#[test]
fn a_device_with_memory_of_its_own_gets_its_share_and_no_more() {
    let open = |memory: u64| {
        FakeBackend::new(
            format!("memory={memory}")
                .parse()
                .expect("a script of this test"),
        )
    };
    let config = Config {
        max_num_seqs: 4,
        ..Config::default()
    };
    let mut contexts = Vec::new();
    for memory in [64 << 20, 20 << 20, 16 << 20, 8 << 20, 0] {
        let fit = prove("fake", open(memory), Model::demo(), &config);
        assert!(
            !fit.fits() || fit.total_bytes() <= memory * 9 / 10,
            "{memory}: {fit}"
        );
        contexts.push(fit.max_model_len);
    }
    assert_eq!((contexts[0], contexts[4]), (2048, 0));
    assert!(
        contexts.is_sorted_by(|a, b| a >= b) && contexts[1] < 2048 || contexts[2] < 2048,
        "{contexts:?}"
    );
    prove("fake", open(16 << 20), golden("gemma2"), &config);
}

#[test]
fn more_kv_groups_than_the_kernels_know_are_found_before_loading() {
    let mut plan = Model::demo().record(Storage::F32);
    let caps = Caps {
        allocation: usual_allocation(1 << 30),
        ..ReferenceBackend::new().caps().clone()
    };
    plan.kv_groups = (1..=9)
        .map(|window| KvGroup {
            window: Some(Window::Last(window)),
        })
        .collect();
    let fit = Fit::new(&Config::default(), &plan, Beside::default(), &caps);
    let expected = "a plan with 9 KV groups is unsupported: the kernels support at most 8";
    assert!(!fit.fits());
    assert_eq!(
        fit.excess.map(|excess| excess.to_string()).as_deref(),
        Some(expected)
    );
    let refused = Layout::checked(&plan, &fit.capacity, &caps)
        .expect_err("devices refuse it in the same words");
    assert_eq!(refused.to_string(), expected);
    plan.kv_groups.pop();
    assert!(Fit::new(&Config::default(), &plan, Beside::default(), &caps).fits());
}

/// A model of random shape, and settings for it.
#[derive(Clone, Debug)]
struct Case {
    shape: String,
    config: Config,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (
        1u32..=8,
        1u32..=3,
        1u32..=3,
        1u32..=3,
        prop::sample::select(vec![8u32, 16, 64, 128]),
        1u32..=16,
        8u32..=400,
    );
    let shape = shape.prop_map(|(hidden, layers, heads, ratio, head_dim, mlp, vocab)| {
        format!(
            "{}x{layers}x{}x{heads}x{head_dim}x{}x{}",
            32 * hidden,
            heads * ratio,
            32 * mlp,
            8 * vocab
        )
    });
    let steps = (
        1u32..=32,
        prop::sample::select(vec![16u32, 32, 64]),
        0u32..600,
        any::<bool>(),
    );
    let formats = prop::sample::select(KvFormat::ALL.to_vec());
    let pool = prop::option::of(10u32..26);
    (shape, steps, formats, pool, 2u32..3000).prop_map(
        |(shape, steps, kv_format, pool, model_len)| {
            let (max_num_seqs, block_size, more_tokens, deterministic) = steps;
            let config = Config {
                max_model_len: Some(model_len),
                max_num_seqs,
                max_num_batched_tokens: max_num_seqs + block_size + more_tokens,
                block_size,
                // All of the memory, not a share: the point of refusal must be known exactly.
                gpu_memory_utilization: 1.0,
                kv_cache_bytes: pool.map(|bits| (1 << bits) + 12_345),
                kv_format,
                deterministic,
                ..Config::default()
            };
            Case { shape, config }
        },
    )
}

/// A plan fits exactly when the device accepts it: what fits is allocated, and what does not fit is refused.
fn prove_exact<B: Backend>(
    backend: &mut B,
    model: &Model,
    config: &Config,
) -> Result<bool, TestCaseError> {
    config.check().expect("the settings are in range");
    let plan = Arc::new(model.record(backend.caps().activations));
    let fit = Fit::new(config, &plan, Beside::default(), backend.caps());
    let loaded = backend.load(plan.clone(), &fit.capacity);
    if fit.fits() {
        prop_assert!(
            loaded.is_ok(),
            "it fits, but loading failed: {loaded:?}, {fit:?}"
        );
        let allocated = backend.allocate_pool(&fit.blocks);
        prop_assert!(
            allocated.is_ok(),
            "it fits, but the allocation failed: {allocated:?}, {fit:?}"
        );
        prop_assert!(fit.capacity.tokens_max >= config.max_num_seqs + config.block_size);
        return Ok(true);
    }
    if fit.excess.is_none() && fit.pool_is_given && fit.kv_bytes < fit.kv_least_bytes {
        return Ok(false); // The pool holds no sequence, whatever the device allows.
    }
    if let Err(error) = loaded {
        prop_assert!(
            matches!(
                error,
                BackendError::Limit { .. } | BackendError::OutOfMemory { .. }
            ),
            "{error}"
        );
        return Ok(false);
    }
    let least = vec![3; plan.kv_groups.len()];
    let blocks = if fit.pool_is_given && fit.excess.is_none() {
        &fit.blocks
    } else {
        &least
    };
    let allocated = backend.allocate_pool(blocks);
    prop_assert!(
        allocated.is_err(),
        "it does not fit, but the device allocated {blocks:?}: {fit:?}"
    );
    Ok(false)
}

fn model(case: &Case) -> Model {
    Model::random(ModelSpec::named(&case.shape).expect("a shape"), 0)
}

/// Runs the same cases every time; some of them fit and some do not.
fn prove_cases<S: Strategy>(
    cases: u32,
    strategy: &S,
    test: impl Fn(S::Value) -> Result<bool, TestCaseError>,
) {
    let counts = Cell::new([0; 2]);
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(strategy, |case| {
        let mut found = counts.get();
        found[usize::from(test(case)?)] += 1;
        counts.set(found);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let [refused, taken] = counts.get();
    println!("{taken} fit, {refused} do not");
    assert!(
        refused.min(taken) * 8 >= cases,
        "both happen: {taken} fit, {refused} do not"
    );
}

#[test]
fn the_fake_takes_exactly_what_fits() {
    let limits = (
        prop::option::of(0u32..14),
        prop::option::of(0u32..12),
        1000u64..2000,
    );
    prove_cases(
        400,
        &(cases(), limits),
        |(case, (binding, memory, thousandths))| {
            let bytes = |least: u64, bits: u32| (least << bits) * thousandths / 1000;
            let words = [
                binding.map(|bits| format!("binding={}", bytes(1 << 11, bits))),
                memory.map(|bits| format!("memory={}", bytes(1 << 15, bits))),
            ];
            let words: Vec<String> = words.into_iter().flatten().collect();
            let mut backend =
                FakeBackend::new(words.join(",").parse().expect("a script of this test"));
            prove_exact(&mut backend, &model(&case), &case.config)
        },
    );
    let golden = golden("gemma2");
    for memory in (200_000u64..2_000_000).step_by(20_000) {
        let mut backend = FakeBackend::new(
            format!("memory={memory}")
                .parse()
                .expect("a script of this test"),
        );
        let config = Config {
            max_num_seqs: 4,
            gpu_memory_utilization: 1.0,
            ..Config::default()
        };
        prove_exact(&mut backend, &golden, &config).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Binding limits at which most shapes must be split, need fewer tokens per step, or do not fit; and scratch buffers
/// that exceed the limit.
#[test]
fn adapters_take_exactly_what_fits() {
    let Some(adapter) = WgpuBackend::adapters().first().map(|report| report.index) else {
        println!("SKIPPED: wgpu finds no adapter");
        return;
    };
    for (binding, buffer, class) in [
        (64 << 10, 1 << 20, Class::Discrete),
        (300_001, 4 << 20, Class::Software),
    ] {
        let options = WgpuOptions {
            adapter: Some(adapter),
            class: Some(class),
            tier: Some(Tier::T0),
            binding_bytes_max: Some(binding),
            buffer_bytes_max: Some(buffer),
            ..WgpuOptions::default()
        };
        let backend = RefCell::new(
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens"),
        );
        prove_cases(24, &cases(), |case| {
            prove_exact(&mut *backend.borrow_mut(), &model(&case), &case.config)
        });
    }
}
