//! Tiers of the KV pool on real devices: conversations that return after their blocks have left the device get the same
//! tokens, and a copy of a block has one form on every backend.

#[cfg(all(feature = "cuda", unix))]
use super::emulator::emulated;
use super::speculation::{Drawn, answers};
use super::states::{STATES, request};
use super::{Device, SEQUENCES_MAX, adapters, cpu, golden, golden_cases};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, BlockRef, Inspect, KvHalf};
use folio::config::{Config, DiskConfig};
use folio::engine::Engine;
use folio::engine::handle::{EngineHandle, Stats, channel};
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::model::{Model, Quantization};
use folio::plan::{KvFormat, Storage};
use folio::platform::block_on;
use futures_util::StreamExt as _;
use futures_util::future::join;
use std::path::Path;

/// Models with one KV group, with two of which one has a window, with sinks, with layers that share their keys and
/// values, and with latents.
const MODELS: [&str; 5] = ["llama", "gemma3", "gpt-oss", "gemma4-e", "deepseek_v3"];
/// Models that keep a state per sequence: convolutions alone, with windows, the delta rule, and Mamba 2.
const HYBRIDS: [&str; 4] = ["lfm2", "lfm3", "qwen3_5", "granite4-h-dense"];
/// A pool for one long prompt.
const CONFIG: Config = Config {
    max_model_len: Some(160),
    max_loras: 0,
    max_image_rows: 1,
    max_lora_rank: 16,
    lora_format: folio::plan::WeightFormat::F16,
    max_num_seqs: 2,
    max_num_batched_tokens: 48,
    block_size: 16,
    gpu_memory_utilization: 0.9,
    kv_cache_bytes: None,
    kv_host_bytes: 8 << 20,
    kv_disk: None,
    kv_format: KvFormat::F16,
    prefix_caching: true,
    state_snapshots: None,
    look_ahead: true,
    deterministic: false,
    speculation: None,
    queue_requests_max: 8,
    seed: Some(1),
};

async fn answer(handle: &EngineHandle, prompt: &[u32], count: usize) -> Vec<u32> {
    let params = SamplingParams {
        draw: DrawParams::greedy(),
        ignore_eos: true,
        max_tokens: Some(u32::try_from(count).expect("answers are short")),
        ..SamplingParams::default()
    };
    let request = Request {
        prompt: prompt.into(),
        params,
        ..Request::default()
    };
    let mut events = handle
        .submit(request)
        .expect("the queue has room")
        .swap_remove(0);
    let mut tokens = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished { .. } | Event::Prompt(_) => {}
            Event::Failed(error) => panic!("{error}"),
        }
    }
    tokens
}

/// Answers prompts one after the other.
fn serve<B: Backend>(
    backend: B,
    model: Model,
    config: &Config,
    prompts: &[(&[u32], usize)],
) -> (Vec<Vec<u32>>, Stats) {
    let (handle, inbox) = channel(8);
    let engine = block_on(Engine::start(backend, model, config, inbox, |_| {})).expect("it starts");
    let ask = async {
        let mut answers = Vec::new();
        for (prompt, count) in prompts {
            answers.push(answer(&handle, prompt, *count).await);
        }
        handle.drain();
        answers
    };
    let (end, answers) = block_on(join(engine.run(), ask));
    end.expect("the engine ends without an error");
    (answers, handle.stats())
}

/// The golden prompts of each model return after others have taken their blocks. Golden tokens are those without tiers;
/// in quantized blocks, a prompt that returns has the tokens that it had before.
fn returns<B: Backend>(
    name: &str,
    models: &[&str],
    kv_format: KvFormat,
    mut open: impl FnMut() -> B,
) {
    for &family in models {
        let cases = golden_cases(family);
        let (short, long) = (&cases[2], &cases[3]);
        let other: Vec<u32> = long.prompt.iter().rev().copied().collect();
        let turns: [(&[u32], usize); 6] = [
            (&long.prompt, 24),
            (&other, 2),
            (&short.prompt, 24),
            (&long.prompt, 24),
            (&other, 2),
            (&short.prompt, 24),
        ];
        let model = Model::open(&golden(family)).expect("the golden model loads");
        let plan = model.record(Storage::F32);
        let all_groups = |group| plan.block_bytes(group, CONFIG.block_size, kv_format);
        let pool = (0..plan.kv_groups.len()).map(all_groups).sum::<u64>() * 12;
        // A model that keeps states has a slot for one snapshot beside the running ones.
        let config = Config {
            kv_cache_bytes: Some(pool),
            kv_format,
            state_snapshots: Some(1),
            ..CONFIG
        };
        let (with, stats) = serve(open(), model, &config, &turns);
        for (answer, expected) in [0, 2].into_iter().zip([long, short]) {
            assert!(
                kv_format != KvFormat::F16 || with[answer] == expected.greedy,
                "{family} on {name}, turn {answer}"
            );
            assert_eq!(
                with[answer + 3],
                with[answer],
                "{family} on {name}, the prompt of turn {answer} returns"
            );
        }
        assert!(
            stats.blocks_saved >= 16 && stats.blocks_restored >= 8,
            "{family} on {name}: blocks move: {stats:?}"
        );
        assert!(
            stats.prefix_hits_host >= 128,
            "{family} on {name}: the long prompt is not computed again: {stats:?}"
        );
    }
}

#[test]
fn conversations_return_on_the_cpu() {
    returns("reference", &MODELS, KvFormat::F16, ReferenceBackend::new);
    returns("cpu", &MODELS, KvFormat::F16, cpu);
    returns("cpu, quantized", &MODELS[..2], KvFormat::Q8, cpu);
    returns("cpu, fp8", &MODELS[..1], KvFormat::Fp8, cpu);
    returns("reference", &HYBRIDS, KvFormat::F16, ReferenceBackend::new);
    returns("cpu", &HYBRIDS, KvFormat::F16, cpu);
}

#[test]
fn conversations_return_on_every_adapter() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let open =
            || block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        returns("wgpu", &MODELS[..3], KvFormat::F16, open);
        returns("wgpu", &HYBRIDS, KvFormat::F16, open);
        returns("wgpu, quantized", &MODELS[..1], KvFormat::Fp8, open);
    }
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn conversations_return_in_the_cuda_emulator() {
    if emulated(Storage::F32, (8, 0)).is_some() {
        let open = || emulated(Storage::F32, (8, 0)).expect("it was just opened");
        returns("cuda", &MODELS[..1], KvFormat::F16, open);
        returns("cuda", &HYBRIDS[..1], KvFormat::F16, open);
    }
}

/// The config of [`returns`] with a folder on disk.
fn with_disk(folder: &Path, deterministic: bool) -> Config {
    let kv_disk = Some(DiskConfig {
        folder: folder.to_owned(),
        bytes: 64 << 20,
    });
    Config {
        kv_disk,
        deterministic,
        kv_host_bytes: 0,
        ..CONFIG
    }
}

/// One engine writes the blocks of the golden prompts, another reads them: as after a restart, or on another backend.
fn outlives<W: Backend, R: Backend>(
    name: &str,
    models: &[&str],
    writer: impl Fn() -> W,
    reader: impl Fn() -> R,
) {
    for &family in models {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let config = with_disk(folder.path(), false);
        let cases = golden_cases(family);
        let (short, long) = (&cases[2], &cases[3]);
        let turns: [(&[u32], usize); 2] = [(&long.prompt, 24), (&short.prompt, 24)];
        let open = || Model::open(&golden(family)).expect("the golden model loads");
        let right = |answers: Vec<Vec<u32>>, when: &str| {
            assert_eq!(
                answers,
                [&long.greedy[..], &short.greedy],
                "{family}, {name}, {when}"
            );
        };
        let (answers, stats) = serve(writer(), open(), &config, &turns);
        right(answers, "writing");
        assert_eq!(
            (stats.files_read, stats.prefix_hits_disk),
            (0, 0),
            "{family}, {name}: nothing was there"
        );
        let (answers, stats) = serve(reader(), open(), &config, &turns);
        right(answers, "reading");
        assert!(
            stats.prefix_hits_disk >= 128,
            "{family}, {name}: the long prompt is not computed again: {stats:?}"
        );
        let quantized = open()
            .quantized(Quantization::Q8)
            .expect("it can be quantized");
        let (_, stats) = serve(reader(), quantized, &config, &turns[..1]);
        assert_eq!(
            stats.files_read, 0,
            "{family}, {name}: other weights find nothing"
        );
    }
}

#[test]
fn conversations_outlive_the_process() {
    outlives(
        "reference",
        &MODELS[..2],
        ReferenceBackend::new,
        ReferenceBackend::new,
    );
    outlives("cpu", &MODELS, cpu, cpu);
    outlives("reference to cpu", &MODELS[..2], ReferenceBackend::new, cpu);
    outlives(
        "reference",
        &HYBRIDS,
        ReferenceBackend::new,
        ReferenceBackend::new,
    );
    outlives("reference to cpu", &HYBRIDS, ReferenceBackend::new, cpu);
    outlives("cpu", &HYBRIDS, cpu, cpu);
}

#[test]
fn files_of_the_cpu_serve_every_adapter_and_the_reverse() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let open =
            || block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        outlives("wgpu", &MODELS[..1], open, open);
        outlives("cpu to wgpu", &MODELS[..2], cpu, open);
        outlives("wgpu to cpu", &MODELS[..2], open, cpu);
        outlives("cpu to wgpu", &HYBRIDS, cpu, open);
        outlives("wgpu to cpu", &HYBRIDS, open, cpu);
    }
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn files_of_the_cpu_serve_the_cuda_emulator_and_the_reverse() {
    if emulated(Storage::F32, (8, 0)).is_some() {
        let open = || emulated(Storage::F32, (8, 0)).expect("it was just opened");
        outlives("cuda", &MODELS[..1], open, open);
        outlives("cpu to cuda", &MODELS[..1], cpu, open);
        outlives("cuda to cpu", &MODELS[..1], open, cpu);
        outlives("cpu to cuda", &HYBRIDS[..1], cpu, open);
        outlives("cuda to cpu", &HYBRIDS[..1], open, cpu);
    }
}

#[test]
fn deterministic_engines_use_only_files_of_their_kind() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let config = with_disk(folder.path(), true);
    let long = &golden_cases("llama")[3];
    let open = || Model::open(&golden("llama")).expect("the golden model loads");
    let ask = |stats: (Vec<Vec<u32>>, Stats)| {
        assert_eq!(stats.0, [&long.greedy[..]]);
        stats.1
    };
    let turns: [(&[u32], usize); 1] = [(&long.prompt, 24)];
    // What it has written is complete when it ends, later than its last count of files.
    ask(serve(cpu(), open(), &config, &turns));
    assert_eq!(
        ask(serve(ReferenceBackend::new(), open(), &config, &turns)).files_read,
        0,
        "another backend"
    );
    let plain = with_disk(folder.path(), false);
    assert_eq!(
        ask(serve(cpu(), open(), &plain, &turns)).files_read,
        0,
        "another rule"
    );
    let steps = Config {
        max_num_batched_tokens: 64,
        ..config.clone()
    };
    assert_eq!(
        ask(serve(cpu(), open(), &steps, &turns)).files_read,
        0,
        "other chunks"
    );
    assert!(
        ask(serve(cpu(), open(), &config, &turns)).prefix_hits_disk > 0,
        "the same build"
    );
}

/// Prompts that return from host memory, from files of the same engine and from those of another: every token and every
/// bit of the logprobs is what it is without a cache.
#[test]
fn with_a_state_from_a_colder_tier_every_bit_is_the_same() {
    for (family, _) in STATES {
        let plan = Model::open(&golden(family))
            .expect("the golden model loads")
            .record(Storage::F32);
        let cases = golden_cases(family);
        let with_logprobs = |prompt: Vec<u32>, count| {
            let mut request = request(&cases[3]);
            (
                request.prompt,
                request.params.logprobs,
                request.params.max_tokens,
            ) = (prompt.into(), Some(4), Some(count));
            request
        };
        let long = &cases[3];
        let other: Vec<u32> = long.prompt.iter().rev().copied().collect();
        let next = [&long.prompt[..], &long.greedy, &[5, 6, 7]].concat();
        let turns = [
            (long.prompt.clone(), 20),
            (other.clone(), 2),
            (next.clone(), 4),
            (other, 2),
            (next, 4),
        ];
        let requests = turns.map(|(prompt, count)| with_logprobs(prompt, count));
        let all_groups = |group| plan.block_bytes(group, CONFIG.block_size, KvFormat::F32);
        let pool = (0..plan.kv_groups.len()).map(all_groups).sum::<u64>() * 13;
        let base = Config {
            kv_cache_bytes: Some(pool),
            kv_format: KvFormat::F32,
            kv_host_bytes: 0,
            max_num_seqs: 1,
            max_model_len: Some(176),
            state_snapshots: Some(1),
            ..CONFIG
        };
        let run =
            |config: Config| answers(&ReferenceBackend::new, family, None, &config, &requests);
        let same = |(found, stats): (Vec<Vec<Drawn>>, Stats), plain: &[Vec<Drawn>], tier: &str| {
            assert!(
                found == plain,
                "{family}: what {tier} holds changes an answer"
            );
            stats
        };
        let (plain, _) = run(Config {
            prefix_caching: false,
            ..base.clone()
        });
        let stats = same(
            run(Config {
                kv_host_bytes: 8 << 20,
                ..base.clone()
            }),
            &plain,
            "host memory",
        );
        assert!(stats.prefix_hits_host >= 128, "{family}: {stats:?}");
        let folder = tempfile::tempdir().expect("a folder for this test");
        let with_disk = || Config {
            kv_disk: with_disk(folder.path(), false).kv_disk,
            ..base.clone()
        };
        same(run(with_disk()), &plain, "the disk");
        let stats = same(run(with_disk()), &plain, "the disk of another engine");
        assert!(stats.prefix_hits_disk >= 128, "{family}: {stats:?}");
    }
}

/// Keys and values of each block, and what copies of all blocks look like.
fn copies<B: Backend + Inspect>(backend: &mut B, blocks: &[BlockRef]) -> Vec<bytes::Bytes> {
    let ticket = backend.save_blocks(blocks).expect("the blocks exist");
    block_on(backend.saved_blocks(ticket)).expect("they are copied")
}

fn one_form<B: Backend + Inspect>(name: &str, backend: &mut B) {
    for (format, family) in KvFormat::ALL
        .into_iter()
        .flat_map(|format| MODELS.map(|family| (format, family)))
    {
        let model = Model::open(&golden(family)).expect("the golden model loads");
        let mut reference = ReferenceBackend::new();
        let plan = Device::new(&mut reference, &model, format).plan.clone();
        let groups = plan.kv_groups.len();
        let blocks: Vec<_> = [5, 0, 96, 40]
            .map(|block| BlockRef {
                group: block as usize % groups,
                block,
            })
            .into();
        let layers = 0..u32::try_from(plan.kv_layers.len()).expect("layers are few");
        // A latent has no values of its own.
        let of_layer = |layer: u32| {
            let count = plan.kv_layers[layer as usize].halves() as usize;
            [KvHalf::Key, KvHalf::Value]
                .into_iter()
                .take(count)
                .map(move |half| (layer, half))
        };
        let halves = || layers.clone().flat_map(of_layer);
        for (layer, half) in halves() {
            let mut values =
                block_on(reference.read_kv(layer, half)).expect("the pool is allocated");
            let shift = f64::from(layer) + if half == KvHalf::Key { 0.25 } else { 0.75 };
            (0..)
                .zip(&mut values)
                .for_each(|(at, value)| *value = ((f64::from(at) * 12.9898) + shift).sin() as f32);
            reference
                .write_kv(layer, half, &values)
                .expect("the values fit");
        }
        let sent = copies(&mut reference, &blocks);
        let device = Device::new(backend, &model, format);
        let loads: Vec<_> = blocks.iter().copied().zip(sent.iter().cloned()).collect();
        device
            .backend
            .restore_blocks(&loads)
            .expect("the copies fit");
        assert_eq!(
            copies(device.backend, &blocks),
            sent,
            "{family} on {name}, {format:?}: copies return as they came"
        );
        let untouched = BlockRef { group: 0, block: 7 };
        assert!(
            copies(device.backend, &[untouched])[0]
                .iter()
                .all(|&byte| byte == 0),
            "other blocks stay"
        );
        for (layer, half) in halves() {
            let found =
                block_on(device.backend.read_kv(layer, half)).expect("the pool is allocated");
            let expected = block_on(reference.read_kv(layer, half)).expect("the pool is allocated");
            let size = found.len() / 97;
            let group = plan.kv_layers[layer as usize].group as usize;
            for block in blocks
                .iter()
                .filter(|block| block.group == group)
                .map(|block| block.block as usize)
            {
                let range = block * size..(block + 1) * size;
                assert_eq!(
                    found[range.clone()],
                    expected[range],
                    "{family} on {name}, {format:?}, layer {layer}"
                );
            }
        }
        let wrong = device
            .backend
            .restore_blocks(&[(blocks[0], sent[0].slice(1..))]);
        assert!(
            wrong.is_err_and(|error| error.to_string().contains("a copy of")),
            "a short copy is refused"
        );
        let unknown = device.backend.save_blocks(&[BlockRef {
            group: 0,
            block: 97,
        }]);
        assert!(unknown.is_err(), "an unknown block is refused");
    }
}

/// A copy of a state that the reference has made is what another backend makes of it, and has in its slot.
fn one_form_of_states<B: Backend + Inspect>(name: &str, backend: &mut B) {
    for family in HYBRIDS {
        let model = Model::open(&golden(family)).expect("the golden model loads");
        let mut reference = ReferenceBackend::new();
        let plan = Device::new(&mut reference, &model, KvFormat::F16)
            .plan
            .clone();
        let group = plan.state_group().expect("it keeps states");
        let slots = [2, 0].map(|block| BlockRef { group, block });
        let layers = || (0..).zip(&plan.state_layers);
        for (layer, _) in layers() {
            let mut values = block_on(reference.read_state(layer)).expect("the layer exists");
            let shift = f64::from(layer);
            (0..)
                .zip(&mut values)
                .for_each(|(at, value)| *value = ((f64::from(at) * 12.9898) + shift).sin() as f32);
            reference
                .write_state(layer, &values)
                .expect("the values fit");
        }
        let sent = copies(&mut reference, &slots);
        let device = Device::new(backend, &model, KvFormat::F16);
        let loads: Vec<_> = slots.into_iter().zip(sent.iter().cloned()).collect();
        device
            .backend
            .restore_blocks(&loads)
            .expect("the copies fit");
        assert_eq!(
            copies(device.backend, &slots),
            sent,
            "{family} on {name}: copies return as they came"
        );
        for (layer, spec) in layers() {
            let found = block_on(device.backend.read_state(layer)).expect("the layer exists");
            let expected = block_on(reference.read_state(layer)).expect("the layer exists");
            let of_slot = |values: &[f32], slot: u32| {
                values
                    .chunks(spec.elements as usize)
                    .nth(slot as usize)
                    .expect("a slot")
                    .to_vec()
            };
            for slot in slots {
                let (found, expected) =
                    (of_slot(&found, slot.block), of_slot(&expected, slot.block));
                assert_eq!(found, expected, "{family} on {name}, state layer {layer}");
            }
            assert!(
                of_slot(&found, 1).iter().all(|&element| element == 0.0),
                "other slots stay"
            );
        }
        let wrong = device
            .backend
            .restore_blocks(&[(slots[0], sent[0].slice(4..))]);
        assert!(
            wrong.is_err_and(|error| error.to_string().contains("a copy of")),
            "a short copy is refused"
        );
        let unknown = device.backend.save_blocks(&[BlockRef {
            group,
            block: SEQUENCES_MAX,
        }]);
        assert!(
            unknown.is_err_and(|error| error.to_string().contains("state slot 8")),
            "an unknown slot is refused"
        );
    }
}

#[test]
fn a_copy_of_a_state_has_one_form_on_every_backend() {
    one_form_of_states("reference", &mut ReferenceBackend::new());
    one_form_of_states("cpu", &mut cpu());
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        one_form_of_states(
            "wgpu",
            &mut block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens"),
        );
    }
    #[cfg(all(feature = "cuda", unix))]
    if let Some(mut device) = emulated(Storage::F32, (8, 0)) {
        one_form_of_states("cuda", &mut device);
    }
}

#[test]
fn a_copy_of_a_block_has_one_form_on_every_backend() {
    one_form("reference", &mut ReferenceBackend::new());
    one_form("cpu", &mut cpu());
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        one_form(
            "wgpu",
            &mut block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens"),
        );
    }
    #[cfg(all(feature = "cuda", unix))]
    if let Some(mut device) = emulated(Storage::F32, (8, 0)) {
        one_form("cuda", &mut device);
    }
}
