//! Encoders: hidden rows of texts, alone and packed into one batch, compared with those of transformers.
//!
//! The repository has a few of the golden models; `FOLIO_ENCODERS` names a folder with more of them.

use super::{BLOCK_SIZE, ONE_THREAD, adapters, cpus, numbers, packed};
use folio::backend::cpu::CpuBackend;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Capacity, Inspect};
use folio::engine::request::{Event, Pooling, PromptEvent, Request, SamplingParams};
use folio::model::Model;
use folio::model::pooled::through;
use folio::plan::check::check;
use folio::plan::inputs::{BatchInputs, PoolRow, SECOND_TEXT, SequenceRows};
use folio::plan::{BufferId, KvFormat, Plan, Step, Tail};
use folio::platform::block_on;
use folio::text::sentence::{RowsOfText, pool};
use folio::text::{TextError, TextFolder, TextModel};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum deviation of an element of a hidden row. A gelu by tanh instead of erf moves some by 4e-4.
const HIDDEN: f32 = 1e-4;
/// The same on a GPU, whose exponentials are less accurate.
const HIDDEN_GPU: f32 = 2e-4;

/// The folders of golden encoders.
pub(super) fn folders() -> Vec<PathBuf> {
    let folder =
        std::env::var_os("FOLIO_ENCODERS").map_or_else(|| packed::model("encoders"), PathBuf::from);
    let entries = std::fs::read_dir(folder).expect("the golden encoders are there");
    let mut folders: Vec<_> = entries
        .map(|entry| entry.expect("an entry is read").path())
        .filter(|path| path.join("model.safetensors").is_file())
        .collect();
    folders.sort();
    folders
}

/// The text files of a folder.
pub(super) fn text_of(folder: &Path) -> Result<TextModel, TextError> {
    let mut files = TextFolder::default();
    for name in TextFolder::NAMES {
        if let Ok(bytes) = std::fs::read(folder.join(name)) {
            files.insert(name, bytes);
        }
    }
    TextModel::from_folder(&files, None)
}

/// A sequence with some of its hidden rows.
struct Case {
    ids: Vec<u32>,
    hidden: Vec<(usize, Vec<f32>)>,
}

/// A list of ids.
pub(super) fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

/// The golden cases of a folder whose model is an encoder.
fn golden(folder: &Path) -> Option<(Model, Vec<Case>)> {
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("golden.json")).ok()?)
        .expect("the golden file is JSON");
    let model = match Model::open(folder) {
        Ok(model) if model.spec().is_encoder() => model,
        Ok(_) => return None,
        Err(error) => {
            println!("SKIPPED: {error}");
            return None;
        }
    };
    let has_types = model.spec().texts > 1;
    let cases = json["cases"].as_array()?.iter().map(|case| {
        let types = ids(&case["types"]);
        let marked = ids(&case["ids"]).into_iter().zip(types);
        let marked_ids = marked.map(|(id, kind)| match kind {
            1 if has_types => id | SECOND_TEXT,
            _ => id,
        });
        let hidden = case["hidden"].as_object().expect("rows by their number");
        let hidden = hidden
            .iter()
            .map(|(row, values)| (row.parse().expect("a number"), numbers(values)));
        Case {
            ids: marked_ids.collect(),
            hidden: hidden.collect(),
        }
    });
    Some((model, cases.collect()))
}

/// A device with an encoder.
struct Loaded<'a, B> {
    backend: &'a mut B,
    hidden: BufferId,
    columns: usize,
}

impl<'a, B: Backend + Inspect> Loaded<'a, B> {
    fn new(backend: &'a mut B, model: &Model) -> Self {
        let plan = model.record(backend.caps().activations);
        Self::of_plan(backend, model, plan)
    }

    fn of_plan(backend: &'a mut B, model: &Model, plan: Plan) -> Self {
        check(&plan).expect("the recorded plan is right");
        let [Step::Pool(pool)] = plan.tail(Tail::Pool)[plan.tail(Tail::Pool).len() - 1..] else {
            panic!("the tail ends by pooling")
        };
        let plan = Arc::new(plan);
        let capacity = Capacity {
            tokens_max: 512,
            sequences_max: 8,
            samples_max: 8,
            feed_slots: 8,
            state_slots: 0,
            table_entries_max: 8,
            history_max: 8,
            bias_max: 1,
            mask_words_max: 8,
            copies_max: 1,
            block_size: BLOCK_SIZE,
            kv_format: KvFormat::F32,
            deterministic: false,
        };
        backend
            .load(plan.clone(), &capacity)
            .expect("the plan loads");
        let write = |id, row, bytes| backend.write_weight(id, row, bytes);
        block_on(model.upload(&plan, write)).expect("weights upload");
        backend.allocate_pool(&[]).expect("there is no pool");
        Self {
            backend,
            hidden: pool.x,
            columns: model.spec().hidden as usize,
        }
    }

    /// The hidden rows of some sequences in one batch.
    fn rows(&mut self, cases: &[&Case]) -> Vec<Vec<f32>> {
        let mut inputs = BatchInputs::default();
        for case in cases {
            let (row_start, row_count) = (inputs.token_ids.len() as u32, case.ids.len() as u32);
            inputs.token_ids.extend(&case.ids);
            inputs.positions.extend(0..row_count);
            inputs.sequences.push(SequenceRows {
                row_start,
                row_count,
                context_len: row_count,
            });
        }
        inputs.pools.push(PoolRow {
            row_start: 0,
            row_count: 1,
        });
        inputs.tails.push(Tail::Pool);
        let ticket = self.backend.submit(&inputs).expect("the batch is accepted");
        block_on(self.backend.read(ticket)).expect("the batch is read");
        let rows = inputs.token_ids.len() as u32;
        let all = block_on(self.backend.read_buffer(self.hidden, rows)).expect("rows are read");
        all.chunks(self.columns).map(<[f32]>::to_vec).collect()
    }
}

/// The largest deviation of the hidden rows of a case, which begin at `first`.
fn deviation(case: &Case, rows: &[Vec<f32>], first: usize) -> f32 {
    let differences = case.hidden.iter().flat_map(|(row, expected)| {
        let found = &rows[first + row];
        found.iter().zip(expected).map(|(a, b)| (a - b).abs())
    });
    // NaN counts as infinitely far.
    differences.fold(0.0, |most, difference| {
        if difference.is_nan() {
            f32::INFINITY
        } else {
            most.max(difference)
        }
    })
}

/// Checks all golden encoders, each case alone and all in one batch.
fn prove<B: Backend + Inspect>(name: &str, backend: &mut B, tolerance: f32, bit_exact: bool) {
    for folder in folders() {
        let Some((model, cases)) = golden(&folder) else {
            continue;
        };
        let family = folder.file_name().expect("a name").display();
        let mut loaded = Loaded::new(backend, &model);
        let packed = loaded.rows(&cases.iter().collect::<Vec<_>>());
        let (mut first, mut worst) = (0, 0.0_f32);
        for case in &cases {
            let alone = loaded.rows(&[case]);
            let of_batch = &packed[first..first + case.ids.len()];
            worst = worst
                .max(deviation(case, &alone, 0))
                .max(deviation(case, &packed, first));
            if bit_exact {
                assert!(
                    alone == of_batch,
                    "{family} on {name}: a batch is its members"
                );
            }
            first += case.ids.len();
        }
        println!("{family} on {name}: hidden rows differ by at most {worst:.1e}");
        assert!(worst <= tolerance, "{family} on {name}: {worst}");
    }
}

#[test]
fn the_reference_reproduces_hidden_rows_of_encoders() {
    prove("reference", &mut ReferenceBackend::new(), HIDDEN, true);
}

#[test]
fn every_instruction_set_reproduces_hidden_rows_of_encoders() {
    for mut cpu in cpus() {
        prove("cpu", &mut cpu, HIDDEN, true);
    }
}

#[test]
fn threads_change_nothing_in_hidden_rows() {
    let folder = folders().remove(0);
    let (model, cases) = golden(&folder).expect("an encoder");
    let cases: Vec<&Case> = cases.iter().collect();
    let rows = |threads| {
        let mut cpu = CpuBackend::new(&folio::backend::cpu::CpuOptions {
            threads: Some(threads),
            ..ONE_THREAD
        });
        Loaded::new(&mut cpu, &model).rows(&cases)
    };
    assert!(rows(1) == rows(3));
}

#[test]
fn every_adapter_reproduces_hidden_rows_of_encoders() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let mut backend =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove("wgpu", &mut backend, HIDDEN_GPU, false);
    }
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn kernels_on_the_host_reproduce_hidden_rows_of_encoders() {
    let storage = folio::plan::Storage::F32;
    if let Some(mut backend) = super::emulator::emulated(storage, (8, 0)) {
        prove("cuda on the host", &mut backend, HIDDEN_GPU, false);
    }
}

/// What is wrong with a config shows in the hidden rows, or is refused by the field's name.
#[test]
fn a_wrong_config_of_an_encoder_shows() {
    let refused = [
        (
            "bert-mean",
            json!({"position_embedding_type": "relative_key"}),
            "position_embedding_type",
        ),
        ("bert-mean", json!({"is_decoder": true}), "is_decoder"),
        (
            "bert-mean",
            json!({"type_vocab_size": 1_000_000}),
            "type_vocab_size",
        ),
        (
            "bert-mean",
            json!({"type_vocab_size": 3}),
            "token_type_embeddings",
        ),
        (
            "bert-mean",
            json!({"max_position_embeddings": 193}),
            "position_embeddings",
        ),
        ("bert-mean", json!({"hidden_act": "mish"}), "hidden_act"),
        (
            "bert-mean",
            json!({"architectures": ["BertForSequenceClassification"]}),
            "classifier.weight",
        ),
        (
            "gte",
            json!({"logn_attention_scale": true}),
            "logn_attention_scale",
        ),
        ("modernbert", json!({"norm_bias": true}), "norm_bias"),
    ];
    for (family, changes, field) in refused {
        let folder = folders()
            .into_iter()
            .find(|folder| folder.ends_with(family));
        let folder = folder.expect("a golden encoder");
        let mut config: Value = serde_json::from_slice(
            &std::fs::read(folder.join("config.json")).expect("it is there"),
        )
        .expect("it is JSON");
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        let source = folio::model::Safetensors::open(&folder, folio::platform::FileAccess::Read)
            .expect("the weights load");
        let error = Model::from_parts(config.to_string().as_bytes(), None, Box::new(source))
            .err()
            .unwrap_or_else(|| panic!("{family} with {changes} is refused"))
            .to_string();
        assert!(error.contains(field), "{changes}: {error}");
    }
}

/// Text goes in and a unit vector comes out, as from sentence-transformers: ids, pooling and length are those of the
/// model's files, and texts of many lengths share steps.
#[test]
fn texts_become_the_vectors_of_sentence_transformers() {
    let mut seen = 0;
    for folder in folders() {
        let Some((model, _)) = golden(&folder) else {
            continue;
        };
        let text = match text_of(&folder) {
            Ok(text) => text,
            Err(error) => {
                println!("SKIPPED: {error}");
                continue;
            }
        };
        let Some(sentence) = &text.sentence else {
            continue;
        };
        seen += 1;
        let golden: Value = serde_json::from_slice(
            &std::fs::read(folder.join("golden.json")).expect("it is there"),
        )
        .expect("it is JSON");
        let tokenizer = text.tokenizer.as_ref().expect("it has a tokenizer");
        let mut expected = Vec::new();
        let mut prompts = Vec::new();
        for case in golden["texts"].as_array().expect("texts") {
            let wanted = ids(&case["ids"]);
            let prompt = sentence.default_prompt.clone().unwrap_or_default();
            let whole = prompt + case["text"].as_str().expect("a text");
            let mut found = tokenizer.encode(&whole, true).expect("it is encoded");
            let most = sentence.max_tokens.expect("a length");
            if found.len() > most {
                let end = *found.last().expect("an end");
                found.truncate(most);
                found[most - 1] = end;
            }
            assert_eq!(found, wanted, "{}: {whole:?}", folder.display());
            prompts.push(found);
            expected.push(numbers(&case["embedding"]));
        }
        let vectors = vectors(model, &text, &prompts);
        for (index, (found, wanted)) in vectors.iter().zip(&expected).enumerate() {
            // Without a module that does it, sentence-transformers does not scale vectors to length one.
            let pairs = unit(found).into_iter().zip(unit(wanted));
            let differences = pairs.map(|(a, b)| (a - b).abs());
            let worst = differences.fold(0.0, f32::max);
            assert!(worst <= 1e-5, "{}, text {index}: {worst}", folder.display());
        }
    }
    assert!(seen > 0, "some model has files of sentence-transformers");
}

/// A vector of length one.
fn unit(vector: &[f32]) -> Vec<f32> {
    let squares = vector.iter().map(|value| f64::from(*value).powi(2));
    let length = squares.sum::<f64>().sqrt();
    let scaled = vector.iter().map(|value| f64::from(*value) / length);
    scaled.map(|value| value as f32).collect()
}

/// All rows of prompts, one after the other, from an engine.
fn all_rows(model: Model, prompts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let requests = prompts.iter().map(|prompt| Request {
        prompt: prompt.clone().into(),
        pooling: Some(Pooling::All),
        ..Request::default()
    });
    pooled(model, requests.collect())
}

/// The vectors of prompts, as the model's files say.
fn vectors(model: Model, text: &TextModel, prompts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let sentence = text.sentence.as_ref().expect("they are there");
    let (columns, dense) = (model.spec().hidden as usize, model.dense().clone());
    let skipped = match &sentence.default_prompt {
        Some(prompt) if !sentence.pools_prompt => {
            let tokenizer = text.tokenizer.as_ref().expect("it has a tokenizer");
            tokenizer.encode(prompt, true).expect("it is encoded").len() - 1
        }
        _ => 0,
    };
    let vector = |rows: &Vec<f32>| {
        let pooled = pool(rows, columns, skipped, &sentence.poolings);
        let vector = through(&dense, &pooled).into_iter();
        vector.map(|x| x as f32).collect()
    };
    all_rows(model, prompts).iter().map(vector).collect()
}

/// Every pooling of all rows is that of sentence-transformers.
#[test]
fn poolings_of_all_rows_are_those_of_sentence_transformers() {
    let modes = [
        ("cls", RowsOfText::First),
        ("max", RowsOfText::Max),
        ("mean", RowsOfText::Mean),
        ("mean_sqrt_len_tokens", RowsOfText::MeanOfRoot),
        ("weightedmean", RowsOfText::WeightedMean),
        ("lasttoken", RowsOfText::Last),
    ];
    let folder = folders().remove(0);
    let json: Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).expect("it is there"))
            .expect("it is JSON");
    let model = Model::open(&folder).expect("it opens");
    let columns = model.spec().hidden as usize;
    let has_types = |case: &&Value| ids(&case["types"]).contains(&1);
    let cases = json["cases"].as_array().expect("cases").iter();
    let cases: Vec<_> = cases.filter(|case| !has_types(case)).collect();
    let prompts: Vec<_> = cases.iter().map(|case| ids(&case["ids"])).collect();
    for (rows, case) in all_rows(model, &prompts).iter().zip(cases) {
        for (name, mode) in modes {
            let (found, wanted) = (pool(rows, columns, 0, &[mode]), &case["pooled"][name]);
            for (found, wanted) in found.iter().zip(numbers(wanted)) {
                assert!((found - wanted).abs() <= 5e-4, "{name}: {found} {wanted}");
            }
        }
    }
}

/// The pooled rows of requests, from an engine on the reference backend.
pub(super) fn pooled(model: Model, requests: Vec<Request>) -> Vec<Vec<f32>> {
    let (handle, inbox) = folio::engine::handle::channel(64);
    let config = folio::config::Config {
        max_model_len: Some(192),
        max_num_batched_tokens: 256,
        max_num_seqs: 4,
        ..folio::config::Config::default()
    };
    let backend = ReferenceBackend::new();
    let engine = folio::engine::Engine::start(backend, model, &config, inbox, |_| {});
    let engine = block_on(engine).expect("it starts");
    let answer = handle.submit(Request {
        prompt: requests[0].prompt.clone(),
        ..Request::default()
    });
    assert!(answer.is_err(), "an encoder answers nothing");
    let submit = |request: Request| {
        let params = SamplingParams {
            max_tokens: Some(1),
            ..SamplingParams::default()
        };
        let request = Request { params, ..request };
        handle.submit(request).expect("it is accepted").remove(0)
    };
    let receivers: Vec<_> = requests.into_iter().map(submit).collect();
    handle.drain();
    block_on(engine.run()).expect("it runs");
    let vector = |events: folio::engine::handle::EventReceiver| {
        let events = block_on(events.collect::<Vec<_>>()).into_iter();
        let mut vectors = events.filter_map(|event| match event {
            Event::Prompt(PromptEvent::Embedding(vector)) => Some(vector),
            _ => None,
        });
        vectors.next().expect("a vector")
    };
    receivers.into_iter().map(vector).collect()
}
