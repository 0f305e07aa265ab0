//! Images: pixels, tokens, rows of towers and answers, compared with those of transformers.

use super::{
    CHUNK, CPU, Case, Device, REFERENCE, Sizes, Target, WGPU, WHOLE, adapters, compare, cpus,
    numbers, packed,
};
use folio::backend::cpu::CpuBackend;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Capacity, Inspect};
use folio::config::Config;
use folio::engine::handle::{self, EngineHandle};
use folio::engine::request::{self, Event, Request, SamplingParams, SubmitError};
use folio::engine::{Engine, Others};
use folio::image::{ImageProcessor, Picture, PictureLimits, Processed, Tile};
use folio::model::Model;
use folio::plan::check::check;
use folio::plan::inputs::{BatchInputs, IMAGE_ROW, PoolRow, SequenceRows};
use folio::plan::{KvFormat, Plan, Tail};
use folio::platform::{FileAccess, block_on};
use folio::text::{TextFolder, TextModel};
use futures_util::StreamExt as _;
use futures_util::future::join;
use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Levels by which a JPEG's pixels differ at most from libjpeg's.
const JPEG_LEVELS: u8 = 3;

const FAMILIES: [&str; 3] = ["idefics3", "smolvlm", "mistral3"];

fn folder(family: &str) -> PathBuf {
    packed::model("vision").join(family)
}

fn json(file: &Path) -> Value {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&bytes).expect("the file is JSON")
}

/// The processor of a family.
pub(super) fn processor(family: &str) -> ImageProcessor {
    let files = ImageProcessor::FILES.map(|name| json(&folder(family).join(name)));
    let [older, newer] = &files;
    let config = json(&folder(family).join("config.json"));
    let processor = ImageProcessor::read(&config, [Some(older), Some(newer)]);
    processor
        .expect("the files are read")
        .expect("the model reads images")
}

/// An image of the goldens as it was decoded there.
pub(super) fn picture(name: &str) -> Picture {
    let bytes = std::fs::read(folder("images").join("decoded.safetensors")).expect("it is read");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensor = tensors.tensor(name).expect("the image is there");
    let [height, width, 3] = tensor.shape()[..] else {
        panic!("{name}: rows, columns and channels")
    };
    Picture::new(height as u32, width as u32, tensor.data().to_vec()).expect("a picture")
}

/// The pixels of a tile, `[channel][row][column]`, from its patches.
fn pixels(tile: &Tile) -> Vec<f32> {
    let count = tile.positions.len();
    let across = tile.across as usize;
    let patch = (tile.columns as usize / 3).isqrt();
    let [height, width] = [count / across, across].map(|patches| patches * patch);
    let mut pixels = vec![0.0; 3 * height * width];
    let patches = tile.patches.chunks_exact(tile.columns as usize);
    for (numbers, &position) in patches.zip(&*tile.positions) {
        let (top, left) = (
            position as usize / across * patch,
            position as usize % across * patch,
        );
        for (index, number) in numbers.iter().take(3 * patch * patch).enumerate() {
            let (channel, within) = (index / (patch * patch), index % (patch * patch));
            let (row, column) = (top + within / patch, left + within % patch);
            pixels[(channel * height + row) * width + column] = *number;
        }
    }
    pixels
}

#[test]
fn files_are_decoded_as_by_pillow() {
    for name in ["small.png", "alpha.png", "wide.png", "tall.jpg"] {
        let bytes = std::fs::read(folder("images").join(name)).expect("the image is read");
        let found = Picture::decode(&bytes, &PictureLimits::default()).expect("it is decoded");
        let expected = picture(name);
        let size = |picture: &Picture| (picture.height(), picture.width());
        assert_eq!(size(&found), size(&expected), "{name}");
        let pairs = found.rgb().iter().zip(expected.rgb());
        let levels = pairs
            .map(|(found, expected)| found.abs_diff(*expected))
            .max();
        println!("{name}: {levels:?} levels");
        let most = if name.ends_with("jpg") {
            JPEG_LEVELS
        } else {
            0
        };
        assert!(levels <= Some(most), "{name}: {levels:?} levels");
    }
}

#[test]
fn pixels_are_those_of_transformers_bit_for_bit() {
    for family in FAMILIES {
        let (processor, golden) = (processor(family), json(&folder(family).join("golden.json")));
        for (name, image) in golden["images"].as_object().expect("images by name") {
            let Processed { tiles, .. } =
                processor.process(&picture(name)).expect("it is processed");
            let hashes = image["torchvision"]["sha256_f32"]
                .as_array()
                .expect("hashes");
            assert_eq!(tiles.len(), hashes.len(), "{family}, {name}");
            for (index, (tile, hash)) in tiles.iter().zip(hashes).enumerate() {
                let bytes: Vec<u8> = pixels(tile).iter().flat_map(|x| x.to_le_bytes()).collect();
                let found: String = Sha256::digest(bytes)
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                assert_eq!(
                    Some(&*found),
                    hash.as_str(),
                    "{family}, {name}, tile {index}"
                );
            }
        }
    }
}

#[test]
fn an_image_becomes_the_tokens_of_transformers() {
    for family in FAMILIES {
        let mut files = TextFolder::default();
        for name in TextFolder::NAMES {
            if let Ok(bytes) = std::fs::read(folder(family).join(name)) {
                files.insert(name, bytes);
            }
        }
        let text = TextModel::from_folder(&files, None).expect("the text files are read");
        let tokenizer = text.tokenizer.expect("there is a tokenizer");
        let processor = processor(family);
        let golden = json(&folder(family).join("golden.json"));
        for case in golden["cases"].as_array().expect("a list of cases") {
            let mut images = case["images"].as_array().expect("names").iter();
            let words = ids(&case["prompt"]).into_iter().map(|id| {
                if id != processor.placeholder() {
                    return format!("t{id:03}");
                }
                let name = images
                    .next()
                    .and_then(Value::as_str)
                    .expect("a marker has an image");
                let processed = processor.process(&picture(name)).expect("it is processed");
                let rows: u32 = processed.tiles.iter().map(|tile| tile.rows).sum();
                assert_eq!(
                    processed.text.matches(processor.marker()).count(),
                    rows as usize
                );
                processed.text
            });
            let prompt = words.collect::<Vec<_>>().join(" ");
            let found = tokenizer
                .encode(&prompt, true)
                .expect("the text is encoded");
            assert_eq!(found, ids(&case["expanded"]), "{family}, {}", case["name"]);
        }
    }
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids").iter();
    list.map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Patches of a step of a tower.
const PATCHES: u32 = 200;
/// Rows of the pool of image rows: a prime, so that a stride scatters rows over all of it.
const POOL: u32 = 211;
/// Maximum deviation of an element of a tower's row.
const ROWS: f32 = 1e-4;
/// The same on a GPU, whose exponentials are less accurate.
const ROWS_GPU: f32 = 2e-3;

/// A backend with a loaded tower.
struct Tower<'a, B> {
    backend: &'a mut B,
    plan: Arc<Plan>,
    merged: u32,
}

impl<'a, B: Backend> Tower<'a, B> {
    fn new(backend: &'a mut B, family: &str) -> Self {
        let model = Model::open_tower(&folder(family), FileAccess::Read);
        let mut model = model.expect("the tower loads").expect("there is a tower");
        model.reserve_patches(PATCHES);
        let plan = Arc::new(model.record(backend.caps().activations));
        check(&plan).expect("the recorded plan is right");
        let capacity = Capacity {
            tokens_max: PATCHES,
            sequences_max: 4,
            samples_max: PATCHES,
            feed_slots: 1,
            state_slots: 0,
            table_entries_max: 1,
            history_max: 1,
            bias_max: 1,
            mask_words_max: 1,
            copies_max: 1,
            block_size: super::BLOCK_SIZE,
            kv_format: KvFormat::F32,
            deterministic: true,
        };
        backend
            .load(plan.clone(), &capacity)
            .expect("the plan loads");
        let write = |id, row, bytes| backend.write_weight(id, row, bytes);
        block_on(model.upload(&plan, write)).expect("weights upload");
        backend.allocate_pool(&[]).expect("there is no pool");
        let merged = model.spec().tower.expect("it is a tower").merged;
        Self {
            backend,
            plan,
            merged,
        }
    }

    /// The rows of some tiles, in one batch.
    fn rows(&mut self, tiles: &[Tile]) -> Vec<Vec<f32>> {
        let mut inputs = BatchInputs::default();
        let mut patches = Vec::new();
        for tile in tiles {
            let (row_start, row_count) =
                (inputs.positions.len() as u32, tile.positions.len() as u32);
            inputs.positions.extend(&*tile.positions);
            let places = tile.positions.iter();
            let places = places.map(|at| [0, at / tile.across, at % tile.across]);
            inputs.places.extend(places);
            let context_len = row_count;
            inputs.sequences.push(SequenceRows {
                row_start,
                row_count,
                context_len,
            });
            patches.extend(tile.patches.iter().flat_map(|number| number.to_le_bytes()));
        }
        let count = inputs.positions.len() as u32;
        inputs.token_ids = (0..count).collect();
        inputs.logits_rows = (0..count).step_by(self.merged as usize).collect();
        let rows = 0..inputs.logits_rows.len() as u32;
        inputs.pools = rows
            .map(|row_start| PoolRow {
                row_start,
                row_count: 1,
            })
            .collect();
        inputs.tails.push(Tail::Pool);
        let table = self.plan.token_table().expect("patches are looked up");
        let written = self.backend.write_weight(table, 0, patches.into());
        written.expect("patches are written");
        let ticket = self.backend.submit(&inputs).expect("the batch is accepted");
        block_on(self.backend.read(ticket))
            .expect("the batch is read")
            .pooled
    }
}

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "as many elements");
    let pairs = found.iter().zip(expected);
    // NaN counts as infinitely far.
    let differences = pairs.map(|(a, b)| {
        if (a - b).is_nan() {
            f32::INFINITY
        } else {
            (a - b).abs()
        }
    });
    differences.fold(0.0, f32::max)
}

/// The rows of all golden images of a family, by their names; compared with the golden ones.
fn rows_of_images<B: Backend>(
    (target, tolerance): (&str, f32),
    backend: &mut B,
    family: &str,
) -> BTreeMap<String, Vec<Vec<f32>>> {
    let (processor, golden) = (processor(family), json(&folder(family).join("golden.json")));
    let mut tower = Tower::new(backend, family);
    let mut all = BTreeMap::new();
    let mut worst = 0.0_f32;
    for (name, image) in golden["images"].as_object().expect("images by name") {
        let processed = processor.process(&picture(name)).expect("it is processed");
        let batches = processed.tiles.chunks(3);
        let rows: Vec<_> = batches.flat_map(|tiles| tower.rows(tiles)).collect();
        assert_eq!(
            Some(rows.len() as u64),
            image["tokens"].as_u64(),
            "{family}, {name}"
        );
        for (row, field) in [(rows.first(), "rows_first"), (rows.last(), "rows_last")] {
            let off = difference(row.expect("an image has rows"), &numbers(&image[field]));
            worst = worst.max(off);
        }
        all.insert(name.clone(), rows);
    }
    let bytes = std::fs::read(folder(family).join("pixels.safetensors")).expect("it is read");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let expected = tensors.tensor("small.png/rows").expect("rows of an image");
    let (expected, _) = expected.data().as_chunks::<4>();
    let expected: Vec<f32> = expected
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    worst = worst.max(difference(&all["small.png"].concat(), &expected));
    println!("{family} on {target}: rows differ by at most {worst:.1e}");
    assert!(
        worst <= tolerance,
        "{family} on {target}: rows differ by {worst:.1e}"
    );
    all
}

/// The golden cases of a family, whose placeholders are rows of a pool, with what the pool has.
fn cases(family: &str, rows: &BTreeMap<String, Vec<Vec<f32>>>) -> Vec<(Case, Vec<f32>)> {
    let golden = json(&folder(family).join("golden.json"));
    let placeholder = processor(family).placeholder();
    let list = golden["cases"].as_array().expect("a list of cases").iter();
    list.map(|case| {
        let names = case["images"].as_array().expect("names").iter();
        let mut rows = names.flat_map(|name| &rows[name.as_str().expect("a name")]);
        let mut pool = vec![f32::NAN; POOL as usize * rows.clone().next().map_or(32, Vec::len)];
        let mut place = 3;
        let prompt = ids(&case["expanded"]).into_iter().map(|id| {
            if id != placeholder {
                return id;
            }
            let row = rows.next().expect("a placeholder has a row");
            place = (place + 89) % POOL;
            pool[place as usize * row.len()..][..row.len()].copy_from_slice(row);
            IMAGE_ROW | place
        });
        let case = Case {
            prompt: prompt.collect(),
            greedy: ids(&case["greedy"]),
            logits: numbers(&case["logits"]),
        };
        assert!(rows.next().is_none(), "a row has a placeholder");
        (case, pool)
    })
    .collect()
}

/// How much of a golden case is computed.
#[derive(Clone, Copy)]
struct Extent {
    /// Tokens of an answer.
    tokens: usize,
    /// Sizes of the chunks of a prompt.
    chunks: &'static [u32],
}

const ALL: Extent = Extent {
    tokens: usize::MAX,
    chunks: &[WHOLE, CHUNK],
};

/// Checks rows, logits and tokens of all golden images.
fn prove<B: Backend + Inspect>(
    target: &Target,
    rows_tolerance: f32,
    extent: Extent,
    backend: &mut B,
) {
    for family in FAMILIES {
        let rows = rows_of_images((target.name, rows_tolerance), backend, family);
        let mut model = Model::open(&folder(family)).expect("the text model loads");
        model.reserve_image_rows(POOL);
        let mut device = Device::with(backend, &model, KvFormat::F32, Sizes::default());
        let table = device
            .plan
            .image_rows()
            .expect("there is a pool of image rows");
        for (mut case, pool) in cases(family, &rows) {
            case.greedy.truncate(extent.tokens);
            let bytes: Vec<u8> = pool
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect();
            device
                .backend
                .write_weight(table, 0, bytes.into())
                .expect("rows are written");
            let place = format!(
                "{family} on {}, prompt of {}",
                target.name,
                case.prompt.len()
            );
            for &chunk in extent.chunks {
                let run = device
                    .generate(std::slice::from_ref(&case), chunk, false)
                    .remove(0);
                compare(
                    &format!("{place} in chunks of {chunk}"),
                    &case,
                    &run,
                    target.logits_f32,
                );
            }
        }
    }
}

#[test]
fn the_reference_reproduces_rows_logits_and_tokens_of_images() {
    prove(&REFERENCE, ROWS, ALL, &mut ReferenceBackend::new());
}

#[test]
fn every_instruction_set_reproduces_rows_logits_and_tokens_of_images() {
    for mut cpu in cpus() {
        prove(&CPU, ROWS, ALL, &mut cpu);
    }
}

#[test]
fn every_adapter_reproduces_rows_logits_and_tokens_of_images() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let backend = block_on(WgpuBackend::open(&options));
        prove(
            &WGPU,
            ROWS_GPU,
            ALL,
            &mut backend.expect("an adapter that is listed opens"),
        );
    }
}

/// A few tokens in one way, on a device that is emulated.
#[cfg(all(feature = "cuda", unix))]
#[test]
fn cuda_kernels_on_the_host_reproduce_rows_logits_and_tokens_of_images() {
    let f32 = folio::plan::Storage::F32;
    let Some(mut backend) = super::emulator::emulated(f32, (8, 0)) else {
        return;
    };
    let target = Target {
        name: "cuda",
        ..WGPU
    };
    let extent = Extent {
        tokens: 3,
        chunks: &[CHUNK],
    };
    prove(&target, ROWS_GPU, extent, &mut backend);
}

/// The settings of an engine that computes prompts in several steps, and has rows for few images.
fn settings(prefix_caching: bool) -> Config {
    Config {
        block_size: 16,
        max_num_batched_tokens: 48,
        max_num_seqs: 3,
        max_image_rows: 170,
        kv_format: KvFormat::F32,
        speculation: None,
        prefix_caching,
        ..Config::default()
    }
}

/// Starts an engine, has a client use it, and ends it.
fn with_engine<T>(
    family: &str,
    config: &Config,
    client: impl AsyncFnOnce(&EngineHandle) -> T,
) -> T {
    let model = Model::open(&folder(family)).expect("the text model loads");
    let tower = Model::open_tower(&folder(family), FileAccess::Read);
    let tower = tower.expect("the tower loads").expect("there is a tower");
    let others = Others {
        draft: None,
        tower: Some((CpuBackend::new(&super::ONE_THREAD), tower)),
    };
    let (handle, inbox) = handle::channel(64);
    let cpu = CpuBackend::new(&super::ONE_THREAD);
    let engine = Engine::start_beside(cpu, model, others, config, inbox, |_| {});
    let engine = block_on(engine).expect("the engine starts");
    let used = async {
        let outcome = client(&handle).await;
        handle.drain();
        outcome
    };
    let (end, outcome) = block_on(join(engine.run(), used));
    end.expect("the engine ends well");
    outcome
}

/// A request about images: a golden prompt, whose placeholders stand for the tiles of these images.
fn request(family: &str, expanded: &[u32], images: &[&str]) -> Request {
    let processor = processor(family);
    let tiles = images.iter().flat_map(|name| {
        let processed = processor.process(&picture(name)).expect("it is processed");
        processed.tiles
    });
    let is_placeholder = |at: &usize| expanded[*at] == processor.placeholder();
    let mut places = (0..expanded.len()).filter(is_placeholder);
    let tiles = tiles.map(|tile| {
        let start = places.next().expect("a tile has placeholders") as u32;
        let others = (1..tile.rows).map(|_| places.next().expect("a row has a placeholder") as u32);
        let others: Vec<u32> = others.collect();
        let tile = request::Tile {
            start,
            rows: tile.rows,
            run: tile.run,
            digest: tile.digest,
            patches: tile.patches,
            positions: tile.positions,
            across: tile.across,
        };
        assert!(
            others
                .into_iter()
                .eq((1..tile.rows).map(|row| tile.position(row))),
            "they are in runs"
        );
        tile
    });
    Request {
        tiles: tiles.collect(),
        prompt: expanded.into(),
        params: SamplingParams {
            max_tokens: Some(16),
            ignore_eos: true,
            draw: request::DrawParams::greedy(),
            ..SamplingParams::default()
        },
        ..Request::default()
    }
}

/// The tokens of an answer, and how many tokens of its prompt were cached.
async fn answer(handle: &EngineHandle, request: Request) -> (Vec<u32>, u32) {
    let mut events = handle
        .submit(request)
        .expect("the request is accepted")
        .remove(0);
    let mut tokens = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished { usage, .. } => return (tokens, usage.cached.all),
            other => panic!("no {other:?} is expected"),
        }
    }
    panic!("the engine ended")
}

/// Golden cases as requests, with their answers.
fn requests(family: &str) -> Vec<(Request, Vec<u32>)> {
    let golden = json(&folder(family).join("golden.json"));
    let list = golden["cases"].as_array().expect("a list of cases").iter();
    list.map(|case| {
        let names = case["images"].as_array().expect("names").iter();
        let names: Vec<_> = names.filter_map(Value::as_str).collect();
        let request = request(family, &ids(&case["expanded"]), &names);
        (request, ids(&case["greedy"]))
    })
    .collect()
}

#[test]
fn an_engine_answers_questions_about_images_one_by_one_and_together() {
    for family in FAMILIES {
        let requests = requests(family);
        for prefix_caching in [false, true] {
            with_engine(family, &settings(prefix_caching), async |handle| {
                for (request, expected) in &requests {
                    let (tokens, cached) = answer(handle, request.clone()).await;
                    assert_eq!(&tokens, expected, "{family}");
                    assert_eq!(cached, 0, "{family}: the cases begin differently");
                }
                let again = requests
                    .iter()
                    .map(|(request, _)| answer(handle, request.clone()));
                let again = futures_util::future::join_all(again).await;
                for ((tokens, cached), (request, expected)) in again.iter().zip(&requests) {
                    assert_eq!(tokens, expected, "{family}, together");
                    let most = (request.prompt.len() as u32 - 1) / 16 * 16;
                    let found = if prefix_caching { most } else { 0 };
                    assert_eq!(*cached, found, "{family}: a known prompt is found");
                }
            });
        }
    }
}

#[test]
fn a_prefix_ends_where_another_image_begins() {
    let family = "idefics3";
    let golden = json(&folder(family).join("golden.json"));
    let case = &golden["cases"][0];
    let expanded = ids(&case["expanded"]);
    let [small, alpha] = ["small.png", "alpha.png"].map(|name| request(family, &expanded, &[name]));
    let first = small.tiles[0].start;
    let alone = with_engine(family, &settings(false), async |handle| {
        answer(handle, alpha.clone()).await.0
    });
    with_engine(family, &settings(true), async |handle| {
        let (tokens, _) = answer(handle, small.clone()).await;
        assert_eq!(tokens, ids(&case["greedy"]));
        let (tokens, cached) = answer(handle, alpha.clone()).await;
        assert_eq!(tokens, alone, "it is answered as without the other");
        assert_eq!(
            cached,
            first / 16 * 16,
            "only text before the image is shared"
        );
        assert_ne!(alone, ids(&case["greedy"]), "the images differ");
        // The same first tiles, and another last one.
        let mut mixed = small.clone();
        let mut tiles = small.tiles.to_vec();
        let last = tiles.len() - 1;
        let request::Tile { start, .. } = tiles[last];
        tiles[last] = request::Tile {
            start,
            ..alpha.tiles[last].clone()
        };
        mixed.tiles = tiles.into();
        let (_, cached) = answer(handle, mixed).await;
        assert_eq!(cached, start / 16 * 16, "a prefix may end within an image");
    });
}

#[test]
fn images_that_a_model_cannot_read_are_refused() {
    let family = "smolvlm";
    let [(request, _), ..] = &requests(family)[..] else {
        panic!("there are cases")
    };
    let refused = |handle: &EngineHandle, request: Request| match handle.submit(request) {
        Err(SubmitError::Invalid { field, message }) => {
            assert_eq!(field, "images");
            message
        }
        other => panic!("{other:?}"),
    };
    let changed = |change: &dyn Fn(&mut Vec<request::Tile>)| {
        let mut tiles = request.tiles.to_vec();
        change(&mut tiles);
        Request {
            tiles: tiles.into(),
            ..request.clone()
        }
    };
    let few = Config {
        max_image_rows: 20,
        ..settings(true)
    };
    with_engine(family, &few, async |handle| {
        let message = refused(handle, request.clone());
        assert!(message.contains("max_image_rows"), "{message}");
    });
    with_engine(family, &settings(true), async |handle| {
        let form = "of the form";
        for change in [
            &(|tiles: &mut Vec<request::Tile>| tiles[0].rows += 1)
                as &dyn Fn(&mut Vec<request::Tile>),
            &|tiles| tiles[0].positions = vec![64; 64].into(),
            &|tiles| tiles[0].patches = vec![0.0; 7].into(),
            &|tiles| tiles.swap(0, 1),
        ] {
            let message = refused(handle, changed(change));
            assert!(message.contains(form), "{message}");
        }
        let large = |tiles: &mut Vec<request::Tile>| {
            tiles[0].rows = 17;
            tiles[0].positions = vec![0; 68].into();
        };
        let message = refused(handle, changed(&large));
        assert!(message.contains("one of 68 patches"), "{message}");
        assert!(message.contains("at most 64"), "{message}");
        let last = |tiles: &mut Vec<request::Tile>| {
            tiles.last_mut().expect("a tile").start = request.prompt.len() as u32 - 1;
        };
        let message = refused(handle, changed(&last));
        assert!(message.contains("more rows than"), "{message}");
    });
}
