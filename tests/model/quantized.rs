//! What quantizing on load costs: the demo model's loss on held-out text from its own recipe (`make_corpus.py`, seed 4,
//! the held-out side), over the assistant's tokens.

use super::kv_coded::{self, FLIPS, TOKENS, alone, moved, rows};
use super::newer::NEWER;
use super::states::STATES;
use super::{
    BLOCK_SIZE, CHUNK, CPU, Case, Device, TOKENS_MAX, WGPU, WHOLE, families, largest_difference,
    limited, open_golden, push_tables, read_json, support,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::{Model, Quantization, demo};
use folio::plan::inputs::{BatchInputs, GroupInputs, SampleRow, SequenceRows};
use folio::plan::{KvFormat, Tail};
use folio::platform::block_on;
use folio::text::Tokenizer;

/// Token ids, and whether each of them counts.
pub(super) type Text = (Vec<u32>, Vec<bool>);

#[test]
fn quantising_on_load_costs_little() {
    let texts = held_out();
    let mut cpu = ReferenceBackend::new();
    let (stored, count) = loss(&mut cpu, &Model::demo(), KvFormat::F32, &texts);
    assert!(count > 1000, "only {count} tokens count");
    println!("held-out loss: bf16 {stored:.4}");
    for (quantization, allowed) in [(Quantization::Q8, 0.005), (Quantization::Q4, 0.08)] {
        let model = Model::demo()
            .quantized(quantization)
            .expect("it is quantized");
        let (found, _) = loss(&mut cpu, &model, KvFormat::F32, &texts);
        let change = found / stored - 1.0;
        println!(
            "held-out loss: {quantization:?} {found:.4} ({:+.2} %)",
            100.0 * change
        );
        assert!(
            change.abs() <= allowed,
            "{quantization:?}: {change} is more than {allowed}"
        );
        assert!(
            found.to_bits() != stored.to_bits(),
            "{quantization:?} changes something"
        );
    }
}

/// Rounding activations to bytes, which concerns batches of one token: for a text; for the two of
/// `docs/formats.md` in both formats with `FOLIO_MODEL_FULL=1`.
#[test]
fn activations_in_bytes_cost_little() {
    let full = std::env::var("FOLIO_MODEL_FULL").is_ok_and(|value| value == "1");
    let (texts, quantizations) = if full {
        (2, &[Quantization::Q4, Quantization::Q8][..])
    } else {
        (1, &[Quantization::Q4][..])
    };
    let texts: Vec<Text> = held_out().into_iter().take(texts).collect();
    for quantization in quantizations {
        let model = Model::demo()
            .quantized(*quantization)
            .expect("it is quantized");
        let [exact, rounded] = [false, true].map(|int8| {
            let mut backend = ReferenceBackend::with_int8_activations(int8);
            loss_in_batches(&mut backend, &model, KvFormat::F32, &texts, 1)
        });
        let change = rounded.0 / exact.0 - 1.0;
        let (found, tokens) = rounded;
        println!(
            "held-out loss of {tokens} tokens, {quantization:?}: {found:.4} ({:+.3} %)",
            100.0 * change
        );
        assert!(
            change.abs() <= 0.005,
            "{quantization:?}: {change} is more than 0.5 %"
        );
        assert!(
            rounded.0.to_bits() != exact.0.to_bits(),
            "{quantization:?}: rounding changes something"
        );
    }
}

/// Maximum change of the logits by quantizing, relative to their spread. These models have random weights, which
/// amplify errors many times; unrelated logits would differ by √2. The test above measures the cost for a trained
/// model.
const MOVED_MAX: [(Quantization, &str, f64); 2] =
    [(Quantization::Q8, "q8", 0.4), (Quantization::Q4, "q4", 1.3)];

#[test]
fn every_family_runs_quantised() {
    let is_newer = |family: &str| NEWER.iter().any(|(newer, _)| *newer == family);
    run_quantised(families().filter(|(family, _)| !is_newer(family)));
}

#[test]
fn every_newer_family_runs_quantised() {
    run_quantised(super::selected(NEWER));
}

#[test]
fn every_family_with_states_runs_quantised() {
    run_quantised(super::selected(STATES));
}

fn run_quantised(families: impl Iterator<Item = (&'static str, f32)>) {
    let mut adapters = opened_adapters();
    for (family, _) in families {
        runs_quantised(
            family,
            |quantization| open(family, quantization),
            &kv_coded::cases(family),
            &mut adapters,
        );
    }
}

/// A golden model as it is stored, or quantized.
pub(super) fn open(family: &str, quantization: Option<Quantization>) -> Model {
    let model = open_golden(family);
    match quantization {
        Some(quantization) => {
            let quantized = model.quantized(quantization).expect("it is quantized");
            limited(family, quantized)
        }
        None => model,
    }
}

pub(super) fn opened_adapters() -> Vec<WgpuBackend> {
    let open = |adapter| {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens")
    };
    WgpuBackend::adapters()
        .into_iter()
        .map(|adapter| open(adapter.index))
        .collect()
}

/// Checks a family in 8 and 4 bits: on the reference close to the unquantized model, on the CPU and on every adapter
/// equal to the reference. `cases` are its prompts, of which short ones are left out.
pub(super) fn runs_quantised(
    family: &str,
    open: impl Fn(Option<Quantization>) -> Model,
    cases: &[Case],
    adapters: &mut [WgpuBackend],
) {
    let cases: Vec<Case> = cases
        .iter()
        .filter(|case| case.prompt.len() > 7)
        .cloned()
        .collect();
    let (mut reference, mut cpu) = (ReferenceBackend::new(), super::cpu());
    let stored = alone(
        &mut Device::new(&mut reference, &open(None), KvFormat::F32),
        &cases,
        WHOLE,
    );
    for (quantization, name, moved_max) in MOVED_MAX {
        let model = open(Some(quantization));
        let expected = alone(
            &mut Device::new(&mut reference, &model, KvFormat::F32),
            &cases,
            WHOLE,
        );
        let moved = moved(family, &rows(&stored, &expected));
        let moved_max = if FLIPS.contains(&family) {
            1.3
        } else {
            moved_max
        };
        assert!(
            moved > 0.0 && moved <= moved_max,
            "{family} in {name}: {moved}"
        );
        let on_cpu = alone(
            &mut Device::new(&mut cpu, &model, KvFormat::F32),
            &cases,
            CHUNK,
        );
        let on_adapters = adapters.iter_mut().map(|backend| {
            (
                &WGPU,
                alone(
                    &mut Device::new(backend, &model, KvFormat::F32),
                    &cases,
                    CHUNK,
                ),
            )
        });
        for (target, found) in [(&CPU, on_cpu)].into_iter().chain(on_adapters) {
            let compared = rows(&expected, &found);
            let worst = compared
                .iter()
                .map(|(a, b)| largest_difference(a, b))
                .fold(0.0, f32::max);
            println!(
                "{family} in {name}: moved by {moved:.3} of its spread; a device differs by {worst:.1e}"
            );
            assert!(
                worst <= target.logits_f32,
                "{family} in {name} on {}: {worst}",
                target.name
            );
            // These cases were not chosen to avoid ties, so a few rows may be missing.
            assert!(
                compared.len() * 10 >= TOKENS * cases.len() * 8,
                "{family} in {name}: equal tokens"
            );
            support::ran("families", family, name, target.name);
        }
    }
}

pub(super) fn held_out() -> Vec<Text> {
    let file = super::repository("tests/data/held-out.json");
    let tokenizer = Tokenizer::from_json(demo::TOKENIZER_JSON).expect("the demo's tokenizer");
    let conversations = read_json(&file)
        .as_array()
        .expect("a list of conversations")
        .clone();
    let text = |conversation: &serde_json::Value| {
        let (mut ids, mut counts) = (Vec::new(), Vec::new());
        for part in conversation.as_array().expect("a list of parts") {
            let part_ids = tokenizer
                .encode(part[0].as_str().expect("a text"), false)
                .expect("it encodes");
            counts.extend(part_ids.iter().map(|_| part[1] == 1));
            ids.extend(part_ids);
        }
        ids.truncate(TOKENS_MAX as usize);
        counts.truncate(TOKENS_MAX as usize);
        (ids, counts)
    };
    conversations.iter().map(text).collect()
}

/// Mean negative logprob of the counted tokens, and their number.
pub(super) fn loss<B: Backend + Inspect>(
    backend: &mut B,
    model: &Model,
    kv_format: KvFormat,
    texts: &[Text],
) -> (f64, usize) {
    loss_in_batches(backend, model, kv_format, texts, TOKENS_MAX)
}

/// Like [`loss`], computed with batches of at most `rows_max` tokens.
fn loss_in_batches<B: Backend + Inspect>(
    backend: &mut B,
    model: &Model,
    kv_format: KvFormat,
    texts: &[Text],
    rows_max: u32,
) -> (f64, usize) {
    let device = Device::new(backend, model, kv_format);
    let (mut sum, mut count) = (0.0, 0);
    for (ids, counts) in texts {
        let rows = ids.len() as u32;
        let blocks: Vec<u32> = (0..rows.div_ceil(BLOCK_SIZE)).collect();
        for start in (0..rows).step_by(rows_max as usize) {
            let end = rows.min(start + rows_max);
            // The logits of a token predict the next one.
            let next = start as usize + 1..ids.len().min(end as usize + 1);
            let counted: Vec<usize> = next.filter(|&place| counts[place]).collect();
            let mut inputs = BatchInputs {
                tails: vec![Tail::Sample],
                ..BatchInputs::default()
            };
            inputs.token_ids = ids[start as usize..end as usize].to_vec();
            inputs.positions = (start..end).collect();
            inputs.sequences = vec![SequenceRows {
                row_start: 0,
                row_count: end - start,
                context_len: end,
            }];
            inputs.groups = vec![GroupInputs::default()];
            push_tables(&mut inputs.groups[0], &blocks, start..end, None);
            inputs.logits_rows = counted
                .iter()
                .map(|&place| place as u32 - 1 - start)
                .collect();
            inputs.samples = (0..)
                .zip(&counted)
                .map(|(row, _)| SampleRow::greedy(row, 0))
                .collect();
            let ticket = device
                .backend
                .submit(&inputs)
                .expect("the batch is accepted");
            block_on(device.backend.read(ticket)).expect("the batch is read");
            let logits = block_on(
                device
                    .backend
                    .read_buffer(device.logits, counted.len() as u32),
            )
            .expect("logits");
            for (place, logits) in counted
                .iter()
                .zip(logits.chunks_exact(device.plan.vocab as usize))
            {
                let largest = logits.iter().copied().fold(f32::MIN, f32::max);
                let total: f64 = logits
                    .iter()
                    .map(|logit| f64::from(logit - largest).exp())
                    .sum();
                sum += total.ln() - f64::from(logits[ids[*place] as usize] - largest);
                count += 1;
            }
        }
    }
    (sum / count as f64, count)
}
