//! Whole models with the kernels that GPUs run.
//!
//! A software adapter normally uses different tile shapes from a GPU, so its results say nothing about a GPU's kernels.
//! Here every adapter runs the kernels of the other classes. A [`Way`] is a combination of a class, a tier, and either
//! the device's own limits or bindings so small that weights, keys and values are split. Each model runs in two ways
//! that differ in all three, so it covers both values of each; four models together cover all eight ways.
//! `FOLIO_MODEL_FULL=1` runs every model in every way.

use super::gguf::{self, File};
use super::latents::LATENTS;
use super::newer::NEWER;
use super::states::STATES;
use super::today::TODAY;
use super::{
    BLOCK_SIZE, Case, Device, FAMILIES, SEQUENCES_MAX, Sizes, WGPU, WHOLE, adapters, compare,
    converted, golden_cases, largest_difference, open_golden, prove_prompts, repository,
};
use folio::backend::Backend as _;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{Class, Tier, WgpuBackend, WgpuOptions};
use folio::model::Model;
use folio::plan::{BufferSpec, KvFormat, Rows, Storage, WeightFormat, WeightSpec};
use folio::platform::block_on;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Tokens per prompt chunk: coprime to block and window sizes.
const CHUNK: u32 = 19;
/// The same when four sequences share the rows of a small step.
const CHUNK_SMALL: u32 = 3;
/// Sizes under small bindings: enough rows per step and blocks for the four golden cases.
const SMALL: Sizes = Sizes {
    tokens_max: 4 * CHUNK_SMALL,
    blocks: 19,
    sequences_max: SEQUENCES_MAX,
    deterministic: true,
};
/// Sizes that need the smallest bindings: two golden cases, of 7 and 33 tokens, and their states.
const TIGHT: Sizes = Sizes {
    tokens_max: 2 * CHUNK_SMALL,
    blocks: 7,
    sequences_max: 2,
    deterministic: true,
};
/// A binding limit in bytes that holds [`SMALL`]'s rows of the widest buffer (192 columns for each of two experts) and
/// one head of f32 keys (16 elements), but not two. Keys and values, a table of 256 rows, the MLP and the experts are
/// split.
const FAMILY_BINDING: u64 = 20 << 10;
/// The same for the GGUF files: 1,024 columns, heads of 64.
const GGUF_BINDING: u64 = 80 << 10;

/// How an adapter is opened.
#[derive(Clone, Copy, Debug)]
struct Way {
    class: Class,
    tier: Tier,
    small_bindings: bool,
}

impl Way {
    /// One of eight ways; `7 - index` differs in all three properties.
    fn of(index: usize) -> Self {
        Self {
            class: if index & 1 == 0 {
                Class::Discrete
            } else {
                Class::Integrated
            },
            tier: if index & 2 == 0 { Tier::T0 } else { Tier::T1 },
            small_bindings: index & 4 != 0,
        }
    }

    fn options(self, adapter: usize, binding: u64) -> WgpuOptions {
        WgpuOptions {
            adapter: Some(adapter),
            class: Some(self.class),
            tier: Some(self.tier),
            binding_bytes_max: self.small_bindings.then_some(binding),
            ..WgpuOptions::default()
        }
    }

    /// Sizes that a device is loaded with. `deterministic` affects the choice of kernels, so two ways that differ in
    /// all three properties also differ in it.
    fn sizes(self) -> Sizes {
        let deterministic =
            (self.class == Class::Discrete) ^ (self.tier == Tier::T0) ^ self.small_bindings;
        Sizes {
            deterministic,
            ..if self.small_bindings {
                SMALL
            } else {
                Sizes::default()
            }
        }
    }

    fn kv_format(self) -> KvFormat {
        if self.class == Class::Discrete || self.small_bindings {
            KvFormat::F32
        } else {
            KvFormat::F16
        }
    }
}

/// Indices of the models, out of `count`, that run in way `index`.
fn models_of(index: usize, count: usize) -> impl Iterator<Item = usize> {
    let full = std::env::var("FOLIO_MODEL_FULL").is_ok_and(|value| value == "1");
    (0..count).filter(move |model| full || [model % 4, 7 - model % 4].contains(&index))
}

fn open(options: &WgpuOptions) -> WgpuBackend {
    block_on(WgpuBackend::open(options)).expect("an adapter that is listed opens")
}

#[test]
fn two_models_in_two_ways_see_every_value() {
    for model in 0..4 {
        let ways: Vec<Way> = [model, 7 - model].map(Way::of).to_vec();
        assert!(ways[0].class != ways[1].class && ways[0].tier != ways[1].tier);
        assert!(ways[0].small_bindings != ways[1].small_bindings);
        assert!(ways[0].sizes().deterministic != ways[1].sizes().deterministic);
    }
}

/// Products of more than 16 rows round their operands to 11 bits. Skipped where no adapter has cooperative matrices, or
/// fails under `FOLIO_REQUIRE_MATRICES=1`.
#[test]
fn families_are_right_with_products_of_matrices() {
    let opened = adapters().into_iter().map(|adapter| {
        open(&WgpuOptions {
            adapter: Some(adapter),
            class: Some(Class::Discrete),
            ..WgpuOptions::default()
        })
    });
    let mut found = false;
    for mut backend in opened.filter(|backend| backend.caps().half_products) {
        found = true;
        for (family, tolerance) in FAMILIES {
            let model = open_golden(family);
            let sizes = Sizes {
                deterministic: false,
                ..Sizes::default()
            };
            let mut device = Device::with(&mut backend, &model, KvFormat::F32, sizes);
            let mut worst = 0.0_f32;
            for (chunk, case) in [CHUNK, WHOLE].into_iter().flat_map(|chunk| {
                golden_cases(family)
                    .into_iter()
                    .map(move |case| (chunk, case))
            }) {
                let run = device
                    .generate(std::slice::from_ref(&case), chunk, false)
                    .remove(0);
                let place = format!(
                    "{family}, prompt of {} in chunks of {chunk}",
                    case.prompt.len()
                );
                worst = worst.max(compare(&place, &case, &run, tolerance));
            }
            println!("{family} with matrices: logits differ by at most {worst:.1e}");
        }
    }
    assert!(
        found || std::env::var_os("FOLIO_REQUIRE_MATRICES").is_none(),
        "an adapter has cooperative matrices"
    );
}

#[test]
fn every_family_is_right_on_the_kernels_of_every_class_and_tier() {
    for adapter in adapters() {
        for index in 0..8 {
            let way = Way::of(index);
            // One device for several families, so that its kernels are compiled only once.
            let mut backend = open(&way.options(adapter, FAMILY_BINDING));
            for model in models_of(index, FAMILIES.len()) {
                prove_family(way, &mut backend, FAMILIES[model]);
            }
        }
    }
}

/// The families of the other lists share most kernels with those above, so under the device's own limits each runs in
/// one of the four ways, in turn. What has kernels of its own runs in a second way, of the other class and tier, and
/// deterministic if the first is not: latent attention, states, and heads of 256 and 512 elements.
#[test]
fn every_other_family_is_right_on_the_kernels_of_a_class_and_tier() {
    let others = TODAY.into_iter().chain(LATENTS).chain(STATES).chain(NEWER);
    let others: Vec<_> = super::selected(others).collect();
    for adapter in adapters() {
        for index in 0..4 {
            let way = Way::of(index);
            let mut backend = open(&way.options(adapter, FAMILY_BINDING));
            for (model, &family) in others.iter().enumerate() {
                let shares_kernels = TODAY.into_iter().chain(NEWER).any(|other| other == family);
                let has_own_kernels = !shares_kernels || family.0 == "gemma4-wide";
                let Sizes { deterministic, .. } = way.sizes();
                if index == model % 4 {
                    prove_others(way, &mut backend, family, deterministic);
                } else if has_own_kernels && index == 3 - model % 4 {
                    prove_others(way, &mut backend, family, !deterministic);
                }
            }
        }
    }
}

/// The smallest bindings in which a model runs with [`TIGHT`] sizes: they hold each buffer of rows, the states of a
/// layer, and the keys of one head. Whatever is larger is split.
fn least_binding(model: &Model) -> u64 {
    let plan = model.record(Storage::F32);
    let rows = |buffer: &BufferSpec| match buffer.rows {
        Rows::Samples => buffer.row_bytes(),
        rows => u64::from(rows.count(TIGHT.tokens_max, 0)) * buffer.row_bytes(),
    };
    let states = plan
        .state_layers
        .iter()
        .map(|layer| u64::from(TIGHT.sequences_max) * layer.bytes());
    let row_bytes =
        |head_dim| u64::from(TIGHT.blocks * BLOCK_SIZE) * KvFormat::F32.row_bytes(head_dim);
    let keys = plan.kv_layers.iter().map(|layer| row_bytes(layer.head_dim));
    let least = plan
        .buffers
        .iter()
        .map(rows)
        .chain(states)
        .chain(keys)
        .max()
        .expect("a plan has buffers");
    least.next_multiple_of(16)
}

/// The same with the smallest bindings that each family allows, in one of the four ways with small bindings, in turn.
#[test]
fn every_other_family_is_right_in_pieces() {
    // Devices by way and binding, so that kernels are compiled once for several families.
    let mut devices = BTreeMap::new();
    let mut split = BTreeSet::new();
    let others = TODAY.into_iter().chain(LATENTS).chain(STATES).chain(NEWER);
    for (index, (family, _)) in others.enumerate() {
        let model = open_golden(family);
        let binding = least_binding(&model);
        let is_split = |weight: &WeightSpec| weight.bytes() > binding;
        split.extend(
            model
                .record(Storage::F32)
                .weights
                .iter()
                .any(is_split)
                .then_some(family),
        );
        devices
            .entry((4 + index % 4, binding))
            .or_insert_with(Vec::new)
            .push((family, model));
    }
    // The others have keys or states that are larger than their weights.
    assert!(split.len() >= 30, "weights are split in {split:?} only");
    for adapter in adapters() {
        for ((index, binding), models) in &devices {
            let way = Way::of(*index);
            let mut backend = open(&way.options(adapter, *binding));
            for (family, model) in models {
                let cases = &golden_cases(family)[1..3];
                let sizes = Sizes {
                    deterministic: way.sizes().deterministic,
                    ..TIGHT
                };
                let mut device = Device::with(&mut backend, model, KvFormat::F32, sizes);
                let mut worst = 0.0_f32;
                for (case, run) in cases.iter().zip(device.generate(cases, CHUNK_SMALL, true)) {
                    let place = format!(
                        "{family} in {binding} bytes as {way:?}, prompt of {}",
                        case.prompt.len()
                    );
                    worst = worst.max(compare(&place, case, &run, WGPU.logits_f32));
                }
                println!(
                    "{family} in {binding} bytes as {way:?}: logits differ by at most {worst:.1e}"
                );
            }
        }
    }
}

/// Checks the golden logits and tokens of a family as one batch in chunks.
fn prove_others(
    way: Way,
    backend: &mut WgpuBackend,
    (family, logits_f16): (&str, f32),
    deterministic: bool,
) {
    let model = open_golden(family);
    let cases = golden_cases(family);
    let kv_format = way.kv_format();
    let tolerance = if kv_format == KvFormat::F32 {
        WGPU.logits_f32
    } else {
        logits_f16
    };
    let mut device = Device::with(
        backend,
        &model,
        kv_format,
        Sizes {
            deterministic,
            ..way.sizes()
        },
    );
    let mut worst = 0.0_f32;
    for (case, run) in cases.iter().zip(device.generate(&cases, CHUNK, true)) {
        let place = format!("{family} as {way:?}, prompt of {}", case.prompt.len());
        worst = worst.max(compare(&place, case, &run, tolerance));
    }
    println!("{family} as {way:?}: logits differ by at most {worst:.1e}");
}

/// Checks the golden logits and tokens of a family as one batch in chunks. Under the device's own limits, also checks a
/// whole prompt, and the answers as prompts.
fn prove_family(way: Way, backend: &mut WgpuBackend, (family, logits_f16): (&str, f32)) {
    let model = open_golden(family);
    let cases = golden_cases(family);
    let kv_format = way.kv_format();
    let tolerance = if kv_format == KvFormat::F32 {
        WGPU.logits_f32
    } else {
        logits_f16
    };
    let mut device = Device::with(backend, &model, kv_format, way.sizes());
    let place = format!("{family} as {way:?}");
    let chunk = if way.small_bindings {
        CHUNK_SMALL
    } else {
        CHUNK
    };
    let runs = device.generate(&cases, chunk, true);
    let mut worst = 0.0_f32;
    for (case, run) in cases.iter().zip(&runs) {
        worst = worst.max(compare(
            &format!("{place}, prompt of {}", case.prompt.len()),
            case,
            run,
            tolerance,
        ));
    }
    if !way.small_bindings {
        let longest = &cases[cases.len() - 1];
        let short = Case {
            prompt: longest.prompt.clone(),
            greedy: longest.greedy[..2].to_vec(),
            ..longest.clone()
        };
        let run = device
            .generate(std::slice::from_ref(&short), WHOLE, false)
            .remove(0);
        worst = worst.max(compare(
            &format!("{place}, a whole prompt"),
            &short,
            &run,
            tolerance,
        ));
        prove_prompts(&place, &mut device, &cases, &runs, tolerance);
    }
    println!("{place}: logits differ by at most {worst:.1e}");
}

#[test]
fn every_layout_of_gguf_is_right_on_the_kernels_of_every_class_and_tier() {
    let files = gguf::files();
    let mut formats = BTreeSet::new();
    for adapter in adapters() {
        for index in 0..8 {
            let way = Way::of(index);
            let mut backend = open(&way.options(adapter, GGUF_BINDING));
            for model in models_of(index, files.len()) {
                formats.extend(prove_file(way, &mut backend, &files[model]));
            }
        }
    }
    // AWQ and FP8 are not published as GGUF; MXFP4 holds experts only and has a test of its own below. `published` has
    // files of those after IQ4_XS.
    let elsewhere = [
        WeightFormat::Q4Zero,
        WeightFormat::E4m3,
        WeightFormat::Mxfp4,
    ];
    let mut expected = WeightFormat::ALL
        .into_iter()
        .filter(|format| *format <= WeightFormat::Iq4K && !elsewhere.contains(format));
    assert!(
        adapters().is_empty() || expected.all(|format| formats.contains(&format)),
        "only {formats:?} ran"
    );
}

#[test]
fn experts_in_mxfp4_are_right_on_the_kernels_of_every_class_and_tier() {
    let (plain, packed) = converted::mxfp4_experts();
    let expected = converted::logits(&plain, &mut ReferenceBackend::new());
    for adapter in adapters() {
        for way in [0, 3].map(Way::of) {
            let mut backend = open(&way.options(adapter, FAMILY_BINDING));
            let difference =
                largest_difference(&expected, &converted::logits(&packed, &mut backend));
            assert!(
                difference <= WGPU.logits_f32,
                "MXFP4 as {way:?}: logits differ by {difference}"
            );
        }
    }
}

/// Compares a GGUF file with its reference. Returns the formats of its weights.
fn prove_file(way: Way, backend: &mut WgpuBackend, file: &File) -> BTreeSet<WeightFormat> {
    let model = file.open();
    let mut device = Device::with(backend, &model, KvFormat::F32, way.sizes());
    let chunk = if way.small_bindings {
        CHUNK_SMALL
    } else {
        WHOLE
    };
    let (worst, tokens) = file.compare(&format!("as {way:?}"), &mut device, chunk, WGPU.logits_f32);
    println!(
        "{} as {way:?}: logits differ by at most {worst:.1e}, {tokens} tokens compared",
        file.name
    );
    device
        .plan
        .weights
        .iter()
        .flat_map(|weight| weight.sections.iter().map(|section| section.format))
        .collect()
}

/// Chromium's software driver has subgroups of four and no half-precision conversions of its own. The driver is
/// selected once per process, so this runs in a separate process: [`one_family_on_the_only_driver`].
#[test]
fn swiftshader_reproduces_a_family() {
    let places = [
        "/usr/lib/chromium",
        "/usr/lib/chromium-browser",
        "/opt/google/chrome",
    ];
    let named = std::env::var_os("FOLIO_SWIFTSHADER").map(Into::into);
    let manifest = named.or_else(|| {
        places
            .iter()
            .map(|folder| Path::new(folder).join("vk_swiftshader_icd.json"))
            .find(|file| file.exists())
    });
    let Some(manifest) = manifest else {
        println!(
            "SKIPPED: no SwiftShader. Install Chromium, or name its vk_swiftshader_icd.json in FOLIO_SWIFTSHADER."
        );
        return;
    };
    let program = std::env::current_exe().expect("a test knows its own program");
    let output = Command::new(program)
        .args([
            "--exact",
            "gpus::one_family_on_the_only_driver",
            "--nocapture",
        ])
        .env("VK_DRIVER_FILES", &manifest)
        .env("FOLIO_EXPECTED_ADAPTER", "SwiftShader")
        .current_dir(repository("."))
        .output()
        .expect("a test's own program starts");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{out}");
    assert!(
        output.status.success() && out.contains("llama as"),
        "{}: {out}{err}",
        manifest.display()
    );
}

/// Does nothing by itself: [`swiftshader_reproduces_a_family`] runs it in a process with SwiftShader as the only
/// driver.
#[test]
fn one_family_on_the_only_driver() {
    let Ok(expected) = std::env::var("FOLIO_EXPECTED_ADAPTER") else {
        return;
    };
    let name = |adapter: usize| WgpuBackend::adapters()[adapter].name.clone();
    let found = adapters()
        .into_iter()
        .find(|&adapter| name(adapter).contains(&expected));
    let adapter = found.unwrap_or_else(|| panic!("no adapter is called {expected}"));
    let (family, tolerance) = FAMILIES[0];
    assert_eq!(family, "llama");
    for way in [Way::of(0), Way::of(3)] {
        prove_family(
            way,
            &mut open(&way.options(adapter, FAMILY_BINDING)),
            (family, tolerance),
        );
    }
}
