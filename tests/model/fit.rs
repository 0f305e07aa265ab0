//! What is said before a start is what is allocated: sizes judged from a plan against what a device was told.

use bytes::Bytes;
use folio::backend::cpu::CpuBackend;
use folio::backend::fake::FakeBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, BackendError, Capacity, Caps};
use folio::config::Config;
use folio::engine::fit::Fit;
use folio::engine::{Engine, Progress, StartError, handle};
use folio::model::Model;
use folio::plan::inputs::{BatchInputs, Results};
use folio::plan::{KvFormat, Plan, WeightId};
use folio::platform::block_on;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// What a device was told to hold.
#[derive(Debug, Default, PartialEq)]
struct Told {
    loads: u32,
    weight_bytes: u64,
    blocks: Vec<u32>,
}

/// A device that notes what it is told.
struct Witness<B> {
    inner: B,
    told: Rc<RefCell<Told>>,
}

impl<B: Backend> Backend for Witness<B> {
    type Ticket = B::Ticket;

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.told.borrow_mut().loads += 1;
        self.inner.load(plan, capacity)
    }

    fn write_weight(&mut self, weight: WeightId, first_row: u32, rows: Bytes) -> Result<(), BackendError> {
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

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.inner.reset().await
    }
}

fn golden(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(name);
    Model::open(&folder).expect("the golden model loads")
}

/// Judges, starts, and compares; gives the judgement.
fn prove<B: Backend>(name: &str, backend: B, model: Model, config: &Config) -> Fit {
    let plan = model.record(backend.caps().activations);
    let fit = Fit::new(config, &plan, backend.caps());
    let told = Rc::new(RefCell::new(Told::default()));
    let (handle, inbox) = handle::channel(1);
    let mut announced = None;
    let progress = |progress| {
        if let Progress::Fits(fit) = progress {
            announced = Some(*fit);
        }
    };
    let witness = Witness { inner: backend, told: told.clone() };
    let outcome = block_on(Engine::start(witness, model, config, inbox, progress)).map(|_| ());
    if !fit.fits() {
        assert!(matches!(outcome, Err(StartError::DoesNotFit(_))), "{name}: {outcome:?}");
        assert_eq!(*told.borrow(), Told::default(), "{name}: the device was left alone");
        return fit;
    }
    outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(announced.as_ref(), Some(&fit), "{name}: said before it is allocated");
    let info = handle.info().expect("it is ready");
    assert_eq!(
        *told.borrow(),
        Told { loads: 1, weight_bytes: fit.weight_bytes, blocks: fit.blocks.clone() },
        "{name}: allocated as judged"
    );
    assert_eq!(
        (info.max_model_len, info.kv_bytes, info.weight_bytes),
        (fit.model_len_max, fit.kv_bytes, fit.weight_bytes),
        "{name}"
    );
    fit
}

/// Settings under which all, some or none of the context fits.
fn configs() -> [Config; 4] {
    let pool = |bytes| Config { kv_cache_bytes: Some(bytes), max_num_seqs: 4, ..Config::default() };
    let blocks = Config { block_size: 16, kv_format: KvFormat::F32, ..pool(1 << 20) };
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
    prove_on("cpu", CpuBackend::new);
    let default = prove("cpu", CpuBackend::new(), Model::demo(), &Config { max_num_seqs: 4, ..Config::default() });
    assert_eq!((default.model_len_max, default.sequences), (2048, 4), "the demo's context fits anywhere");
}

#[test]
fn adapters_allocate_what_was_judged() {
    let adapters = WgpuBackend::adapters();
    let required = std::env::var("FOLIO_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required || !adapters.is_empty(), "FOLIO_REQUIRE_GPU=1, but wgpu finds no adapter");
    for report in &adapters {
        let options = WgpuOptions { adapter: Some(report.index), ..WgpuOptions::default() };
        let open = || block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        let [all, some, ..] = configs();
        prove(&report.name, open(), Model::demo(), &all);
        prove(&report.name, open(), golden("gemma2"), &some);
    }
}

#[test]
fn a_device_with_memory_of_its_own_gets_its_share_and_no_more() {
    let open = |memory: u64| FakeBackend::new(format!("memory={memory}").parse().expect("a script of this test"));
    let config = Config { max_num_seqs: 4, ..Config::default() };
    let mut contexts = Vec::new();
    for memory in [64 << 20, 20 << 20, 16 << 20, 8 << 20, 0] {
        let fit = prove("fake", open(memory), Model::demo(), &config);
        assert!(!fit.fits() || fit.total_bytes() <= memory * 9 / 10, "{memory}: {fit}");
        contexts.push(fit.model_len_max);
    }
    assert_eq!((contexts[0], contexts[4]), (2048, 0));
    assert!(contexts.is_sorted_by(|a, b| a >= b) && contexts[1] < 2048 || contexts[2] < 2048, "{contexts:?}");
    prove("fake", open(16 << 20), golden("gemma2"), &config);
}
