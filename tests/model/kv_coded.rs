//! Keys and values in q8 and fp8: how much the logits of every family change, that a batch gives the same results as
//! its members alone, that copied blocks include their scales, and the loss of the demo model on held-out text.

use super::quantized::{held_out, loss};
use super::states::STATES;
use super::{
    CHUNK, CPU, Case, Device, LOGITS_F16, Run, Target, WGPU, WHOLE, families, golden_cases,
    largest_difference, open_golden, support,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::config::Config;
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::engine::{Engine, handle};
use folio::model::Model;
use folio::plan::KvFormat;
use folio::platform::block_on;
use futures_util::StreamExt as _;

/// Maximum change of the logits by q8, relative to their spread (root mean squares of a row): about twice the measured
/// value. Rounding adds noise of 1/127/√12 = 0.23 % of a head's largest element to each key and value, forty times what
/// f16 does, and these models with random weights pass most of it on, because only attention distinguishes their
/// tokens. Families with a larger tolerance for f16 also have a larger one for q8, and so have those of Gemma 4, whose
/// scores are spread wider, and DeepSeek's: a latent and its rotated part share a scale. E4M3 adds noise of 1/16/√3 =
/// 3.6 % of each element.
fn moved_max(format: KvFormat, family: &str, logits_f16: f32) -> f64 {
    let q8 = match family {
        _ if family.starts_with("gemma4") || family.starts_with("deepseek") => 0.24,
        _ if logits_f16 > LOGITS_F16 => 0.24,
        _ => 0.12,
    };
    if format == KvFormat::Fp8 {
        3.0 * q8
    } else {
        q8
    }
}

/// Golden models that also run in fp8, which differs from q8 only in how a byte is decoded and encoded: heads of
/// several sizes, windows, softcaps, sinks, a latent, a recurrent state.
const IN_FP8: [&str; 6] = [
    "llama",
    "gemma2",
    "gpt-oss",
    "qwen3",
    "glm4_moe_lite",
    "qwen3_5",
];

/// The formats in which a family runs.
fn formats(family: &str) -> impl Iterator<Item = KvFormat> {
    KvFormat::CODED
        .into_iter()
        .filter(move |format| *format == KvFormat::Q8 || IN_FP8.contains(&family))
}

/// Golden models in which two experts have close scores, so that rounding makes a token take the other one. Of these,
/// the mean of all rows counts instead of the largest.
pub(super) const FLIPS: [&str; 17] = [
    "minimax_m2",
    "afmoe",
    "mellum",
    "qwen3_vl_moe",
    "glm4_moe",
    "gemma4-moe",
    "deepseek_v3",
    "glm4_moe_lite",
    "qwen3_next",
    "qwen3_5_moe-wrapped",
    "olmoe",
    "hy_v3",
    "exaone_moe",
    "ernie4_5_moe",
    "llama4",
    "phimoe",
    "laguna",
];

/// By how much pairs of rows of a family differ.
pub(super) fn moved(family: &str, rows: &[(&[f32], &[f32])]) -> f64 {
    let each = rows.iter().map(relative_difference);
    if FLIPS.contains(&family) {
        each.sum::<f64>() / rows.len() as f64
    } else {
        each.fold(0.0, f64::max)
    }
}

/// Number of generated tokens: the first comes from prefill, the rest from the decode kernels.
pub(super) const TOKENS: usize = 4;

pub(super) fn cases(family: &str) -> Vec<Case> {
    shortened(golden_cases(family))
}

/// The same cases with [`TOKENS`] generated tokens.
pub(super) fn shortened(mut cases: Vec<Case>) -> Vec<Case> {
    cases
        .iter_mut()
        .for_each(|case| case.greedy.truncate(TOKENS));
    cases
}

/// Runs each case alone, in chunks of `chunk` tokens.
pub(super) fn alone<B: Backend + Inspect>(
    device: &mut Device<'_, B>,
    cases: &[Case],
    chunk: u32,
) -> Vec<Run> {
    cases
        .iter()
        .map(|case| {
            device
                .generate(std::slice::from_ref(case), chunk, false)
                .remove(0)
        })
        .collect()
}

/// Pairs of logit rows that follow the same tokens.
pub(super) fn rows<'a>(expected: &'a [Run], found: &'a [Run]) -> Vec<(&'a [f32], &'a [f32])> {
    let mut rows = Vec::new();
    for (expected, found) in expected.iter().zip(found) {
        let same = expected
            .tokens
            .iter()
            .zip(&found.tokens)
            .take_while(|(a, b)| a == b)
            .count();
        let pairs = expected.logits.iter().zip(&found.logits).take(same + 1);
        rows.extend(pairs.map(|(expected, found)| (&expected[..], &found[..])));
    }
    rows
}

/// The differences of a row relative to the spread of its logits, both as root mean squares.
fn relative_difference((expected, found): &(&[f32], &[f32])) -> f64 {
    let mean = expected.iter().map(|logit| f64::from(*logit)).sum::<f64>() / expected.len() as f64;
    let spread: f64 = expected
        .iter()
        .map(|logit| (f64::from(*logit) - mean).powi(2))
        .sum();
    let moved: f64 = expected
        .iter()
        .zip(*found)
        .map(|(a, b)| f64::from(a - b).powi(2))
        .sum();
    (moved / spread).sqrt()
}

#[test]
fn logits_move_by_little_and_a_batch_is_its_members() {
    for (family, logits_f16) in families().chain(super::selected(STATES)) {
        let model = open_golden(family);
        formats(family).for_each(|format| {
            moves_by_little(format, (family, logits_f16), &model, &cases(family));
        });
    }
}

/// Checks a format on the reference: these cases of a model.
pub(super) fn moves_by_little(
    format: KvFormat,
    (family, logits_f16): (&str, f32),
    model: &Model,
    cases: &[Case],
) {
    let mut backend = ReferenceBackend::new();
    let exact = alone(
        &mut Device::new(&mut backend, model, KvFormat::F32),
        cases,
        WHOLE,
    );
    let mut device = Device::new(&mut backend, model, format);
    let found = alone(&mut device, cases, WHOLE);
    assert!(
        alone(&mut device, cases, CHUNK) == found,
        "{family}: chunks change nothing"
    );
    assert!(
        device.generate(cases, CHUNK, true) == found,
        "{family}: a batch equals its members, bit for bit"
    );
    let compared = rows(&exact, &found);
    let moved = moved(family, &compared);
    println!(
        "{family}: {format} moves logits by {moved:.4} of their spread in {} rows",
        compared.len()
    );
    let each: Vec<f64> = compared.iter().map(relative_difference).collect();
    assert!(
        moved > 0.0 && moved <= moved_max(format, family, logits_f16),
        "{family}: {moved}, by row {each:.3?}"
    );
}

/// Includes software adapters, like the other tests here.
#[test]
fn every_device_agrees_with_the_reference() {
    agrees(&CPU, &mut super::cpu(), None);
    for adapter in WgpuBackend::adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter.index),
            ..WgpuOptions::default()
        };
        let mut device =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        agrees(&WGPU, &mut device, Some(WGPU.logits_f32));
    }
}

fn agrees(target: &Target, backend: &mut impl Inspect, logits_max: Option<f32>) {
    for (family, logits_f16) in families().chain(super::selected(STATES)) {
        let model = open_golden(family);
        for format in formats(family) {
            agrees_in(
                target,
                backend,
                logits_max,
                format,
                (family, logits_f16),
                &model,
                &cases(family),
            );
        }
    }
}

/// A value near the middle of two codes may get the other one on a device that rounds differently, and models with
/// random weights amplify that with every token. So prompts of at most 7 tokens are compared as with f32; for the
/// others a difference is small against what the format changes by itself, unless the target promises more.
pub(super) fn agrees_in(
    target: &Target,
    backend: &mut impl Inspect,
    logits_max: Option<f32>,
    format: KvFormat,
    (family, logits_f16): (&str, f32),
    model: &Model,
    cases: &[Case],
) {
    let expected = alone(
        &mut Device::new(&mut ReferenceBackend::new(), model, format),
        cases,
        WHOLE,
    );
    let mut device = Device::new(backend, model, format);
    let found = alone(&mut device, cases, WHOLE);
    let batch = device.generate(cases, CHUNK, true);
    assert!(
        !target.bit_exact || found == batch,
        "{family} on {}: a batch equals its members",
        target.name
    );
    let short = cases
        .iter()
        .take_while(|case| case.prompt.len() <= 7)
        .count();
    for (how, found) in [("alone", found), ("batched", batch)] {
        let compared = rows(&expected, &found);
        let worst = |rows: &[(&[f32], &[f32])]| {
            rows.iter()
                .map(|(a, b)| largest_difference(a, b))
                .fold(0.0, f32::max)
        };
        let all = worst(&compared);
        println!(
            "{family} in {format} on {}, {how}: logits differ by at most {all:.1e}",
            target.name
        );
        assert_eq!(
            compared.len(),
            TOKENS * cases.len(),
            "{family}: equal tokens"
        );
        assert!(
            logits_max.is_none_or(|max| all <= max),
            "{family} on {}, {how}: {all}",
            target.name
        );
        let short = worst(&compared[..short * TOKENS]);
        // One code of a key moves the experts of a short prompt too.
        assert!(
            short <= target.logits_f32 || family == "olmoe",
            "{family} on {}, {how}, short prompts: {short}",
            target.name
        );
        let moved = moved(family, &compared);
        assert!(
            moved <= moved_max(format, family, logits_f16) / 4.0,
            "{family} on {}, {how}: {moved} of the spread",
            target.name
        );
    }
    support::ran("families", family, &format!("kv-{format}"), target.name);
}

/// Forks share the prompt's last, partly filled block until each writes to it. A copy without its scales would have no
/// valid keys.
#[test]
fn forks_take_their_scales_along() {
    KvFormat::CODED
        .into_iter()
        .for_each(forks_take_their_scales_along_in);
}

fn forks_take_their_scales_along_in(kv_format: KvFormat) {
    let config = Config {
        kv_format,
        kv_cache_bytes: Some(4 << 20),
        ..Config::default()
    };
    let prompt: Vec<u32> = (0..45).map(|place| 40 + place * 7 % 200).collect();
    let (handle, inbox) = handle::channel(4);
    let engine = block_on(Engine::start(
        ReferenceBackend::new(),
        Model::demo(),
        &config,
        inbox,
        |_| {},
    ))
    .expect("it starts");
    let submit = |n| {
        let greedy = SamplingParams {
            n,
            draw: DrawParams::greedy(),
            ignore_eos: true,
            max_tokens: Some(24),
            ..Default::default()
        };
        let request = Request {
            prompt: prompt.clone().into(),
            params: greedy,
            ..Request::default()
        };
        handle.submit(request).expect("the queue has room")
    };
    let receivers: Vec<_> = submit(1).into_iter().chain(submit(3)).collect();
    handle.drain();
    block_on(engine.run()).expect("the engine ends when all are served");
    let tokens = receivers.into_iter().map(|events| {
        let id = |event| {
            if let Event::Token(token) = event {
                Some(token.id)
            } else {
                None
            }
        };
        block_on(
            events
                .filter_map(|event| std::future::ready(id(event)))
                .collect::<Vec<_>>(),
        )
    });
    let tokens: Vec<_> = tokens.collect();
    assert_eq!(tokens[0].len(), 24);
    assert!(
        tokens.iter().all(|choice| *choice == tokens[0]),
        "{tokens:?}"
    );
}

#[test]
fn the_demo_model_loses_little() {
    let texts: Vec<_> = held_out().into_iter().step_by(2).collect();
    let of = |format| loss(&mut ReferenceBackend::new(), &Model::demo(), format, &texts).0;
    let f16 = of(KvFormat::F16);
    for format in KvFormat::CODED {
        let coded = of(format);
        let change = coded / f16 - 1.0;
        println!(
            "held-out loss: KV f16 {f16:.5}, KV {format} {coded:.5} ({:+.3} %)",
            100.0 * change
        );
        assert!(
            change.abs() <= 0.003,
            "KV {format}: {change} is more than 0.003"
        );
        assert!(
            coded.to_bits() != f16.to_bits(),
            "{format} changes something"
        );
    }
}
