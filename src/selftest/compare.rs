//! The table of tolerances, and the comparison.
//!
//! | what | allowed deviation |
//! |---|---|
//! | f32 products | 1e-5 · Σ of the absolute products (and bias, and old value) |
//! | products with activations in bytes | one code of one element more |
//! | norms, activations, embedding, rotation | 1e-5 of the value (of the length of a rotated pair) |
//! | attention | 1e-4 of the largest visible value |
//! | attention over 16-bit rows | 2⁻¹¹ more: probabilities are rounded to the operands' type, half precision |
//! | q8 keys and values | half a code of the row, from the value before quantization |
//! | recurrences, outputs and states | 2e-5 of the largest value of the head |
//! | norms with a gate | 2e-5 of the value |
//! | states of short convolutions | 1e-6 of the value: they are products |
//! | pooled sums | 1e-5 · Σ of the magnitudes |
//! | weights of routes | 3e-5 of the value: they sum exponentials of very different size |
//! | copies, feed slots, drawn ids, top ids | none |
//! | logprobs | 1e-4, and 1e-5 of the value |
//!
//! Every float may also deviate by one unit in the last place of its storage. Values below 1e-30 count as zero: devices
//! may flush subnormals. Sampled rows whose decision is a near-tie within 1e-4 are left out, and counted.

use super::Outcome;
use super::RowKind;
use super::fixture::{Check, EXACT, Fixture, Run};
use crate::backend::reference::sample::is_certain;
use crate::plan::inputs::{NONE, Sampled};
use crate::plan::{KvFormat, Storage};

/// Tolerance of products, relative to the sum of absolute products.
pub(super) const PRODUCTS: f64 = 1e-5;
/// The same if x and weights are rounded to halves first, towards zero: 2⁻¹⁰ for each, and what the products allow.
pub(super) const HALVES: f64 = 2.1 * 0.0009765625;
/// Tolerance relative to the value.
pub(super) const RELATIVE: f64 = 1e-5;
/// Tolerance of the weight of a route, relative to it.
pub(super) const ROUTES: f64 = 3e-5;
/// Tolerance of recurrences, relative to the largest value of the head.
pub(super) const SCANS: f64 = 2e-5;
/// Tolerance of attention, relative to the largest visible value.
const ATTENTION: f64 = 1e-4;
/// Additional tolerance of attention with 16-bit rows: half precision has 11 bits.
const PROBABILITIES: f64 = 1.0 / 2048.0;
/// Additional tolerance of attention whose operands are rounded to halves: that changes a score by up to 2⁻¹¹ of the
/// sum of its absolute products, which is about 20 in the test cases.
const HALF_ATTENTION: f64 = 1e-2;
/// Margin below which a decision is a near-tie.
const NEAR_TIE: f64 = 1e-4;
/// Absolute tolerance of a logprob.
const LOGPROB: f64 = 1e-4;
/// Magnitude that a device may flush to zero, with a margin for a few factors.
const FLUSHED: f64 = 1e-30;

/// Tolerance of attention over rows of this kind, relative to the largest visible value.
pub(super) fn attention(kind: RowKind, format: KvFormat) -> f64 {
    // Keys and values of f32 are not rounded.
    let halves = kind.halves && format != KvFormat::F32;
    let share = if kind.storage == Storage::F32 {
        ATTENTION
    } else {
        ATTENTION + PROBABILITIES
    };
    if halves {
        share + HALF_ATTENTION
    } else {
        share
    }
}

/// The largest deviation of a run, as a multiple of its tolerance.
#[derive(Default)]
pub(super) struct Worst {
    pub(super) ratio: f64,
    pub(super) compared: usize,
    pub(super) left_out: usize,
}

/// Compares all outputs of a run; an error names the mismatched value.
pub(super) fn compare_run(
    fixture: &Fixture,
    run: &Run,
    expected: &Outcome,
    found: &Outcome,
) -> Result<Worst, String> {
    let mut worst = Worst::default();
    for (index, check) in run.checks.iter().enumerate() {
        let (expected_values, found_values) = (&expected.values[index], &found.values[index]);
        match check {
            Check::Rows {
                buffer, allowed, ..
            } => {
                let spec = fixture.plan.buffer_spec(*buffer);
                let allowed = allowed(expected_values);
                compare_values(
                    expected_values,
                    found_values,
                    &allowed,
                    spec.storage,
                    &mut worst,
                )
                .map_err(|(at, message)| {
                    let (row, column) = (at / spec.columns as usize, at % spec.columns as usize);
                    format!("{}[{row}][{column}] {message}", spec.name)
                })?;
            }
            Check::Kv {
                layer,
                half,
                allowed,
            } => {
                let allowed = allowed(expected_values);
                compare_values(
                    expected_values,
                    found_values,
                    &allowed,
                    decoded(fixture.kv_format),
                    &mut worst,
                )
                .map_err(|(at, message)| {
                    format!("layer {layer} {half:?} element {at} {message}")
                })?;
            }
            Check::State { layer, allowed } => {
                let allowed = allowed(expected_values);
                compare_values(
                    expected_values,
                    found_values,
                    &allowed,
                    Storage::F32,
                    &mut worst,
                )
                .map_err(|(at, message)| format!("state layer {layer} element {at} {message}"))?;
            }
            Check::Sampled => compare_sampled(fixture, run, expected, found, &mut worst)?,
            Check::Pooled { allowed } => {
                let allowed = allowed(expected_values);
                compare_values(
                    expected_values,
                    found_values,
                    &allowed,
                    Storage::F32,
                    &mut worst,
                )
                .map_err(|(at, message)| format!("pooled element {at} {message}"))?;
            }
        }
    }
    Ok(worst)
}

/// Share of the largest value, for attention to keys and values that the same batch has stored: one between two codes
/// may be rounded to either, which changes a score or a value by a code.
pub(super) fn attention_of_stored(kind: RowKind, format: KvFormat) -> f64 {
    let codes = match format {
        KvFormat::F32 | KvFormat::F16 => 0.0,
        KvFormat::Q8 => 19.0 * ATTENTION,
        KvFormat::Fp8 => 99.0 * ATTENTION,
    };
    attention(kind, format) + codes
}

/// Storage type that an element of the pool decodes to.
fn decoded(format: KvFormat) -> Storage {
    if format == KvFormat::F16 {
        Storage::F16
    } else {
        Storage::F32
    }
}

/// One unit in the last place, relative to the value.
fn unit(storage: Storage) -> f64 {
    match storage {
        Storage::F32 => 2f64.powi(-23),
        Storage::F16 => 2f64.powi(-10),
        Storage::Bf16 => 2f64.powi(-7),
    }
}

fn compare_values(
    expected: &[f32],
    found: &[f32],
    allowed: &[f64],
    storage: Storage,
    worst: &mut Worst,
) -> Result<(), (usize, String)> {
    assert_eq!(expected.len(), allowed.len(), "one tolerance per value");
    if expected.len() != found.len() {
        return Err((
            0,
            format!("has {} values, expected {}", found.len(), expected.len()),
        ));
    }
    // Half precision has its own subnormals, which no device flushes when it stores them.
    let smallest = if storage == Storage::F16 {
        2f64.powi(-24)
    } else {
        FLUSHED
    };
    for (at, ((&expected, &found), &allowed)) in expected.iter().zip(found).zip(allowed).enumerate()
    {
        if expected.is_nan() && found.is_nan() || expected == found {
            continue;
        }
        let exact = allowed == EXACT;
        let value = f64::from(expected).abs();
        let tolerance = if exact {
            FLUSHED
        } else {
            allowed + unit(storage) * value + smallest
        };
        let ratio = (f64::from(expected) - f64::from(found)).abs() / tolerance;
        // Written so that NaN fails.
        if !matches!(
            ratio.partial_cmp(&1.0),
            Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)
        ) {
            return Err((
                at,
                format!("is {found:e}, expected {expected:e} (±{tolerance:.1e})"),
            ));
        }
        worst.ratio = worst.ratio.max(ratio);
    }
    worst.compared += expected.len();
    Ok(())
}

fn compare_sampled(
    fixture: &Fixture,
    run: &Run,
    expected: &Outcome,
    found: &Outcome,
    worst: &mut Worst,
) -> Result<(), String> {
    if found.sampled.len() != expected.sampled.len() {
        return Err(format!(
            "{} sampled rows, expected {}",
            found.sampled.len(),
            expected.sampled.len()
        ));
    }
    // Slots whose content depends on a near-tie.
    let mut open = vec![false; fixture.feed_slots as usize];
    for (index, (expected, found)) in expected.sampled.iter().zip(&found.sampled).enumerate() {
        let row = &run.inputs.samples[index];
        let pending = (row.pending_slot != NONE).then(|| run.feed[row.pending_slot as usize]);
        let certain = run.logits.as_ref().is_none_or(|logits| {
            let vocab = fixture.plan.vocab as usize;
            let logits = &logits[row.logits_row as usize * vocab..][..vocab];
            run.exact || is_certain(logits, row, &run.inputs, pending, NEAR_TIE)
        });
        if !certain {
            worst.left_out += 1;
            if row.feed_slot != NONE {
                open[row.feed_slot as usize] = true;
            }
            compare_top(&expected.top, &found.top, worst)
                .map_err(|message| format!("row {index}: {message}"))?;
            continue;
        }
        compare_row(expected, found, worst).map_err(|message| format!("row {index}: {message}"))?;
    }
    for (slot, (expected, found)) in expected.feed.iter().zip(&found.feed).enumerate() {
        if expected != found && !open[slot] {
            return Err(format!("feed slot {slot} is {found}, expected {expected}"));
        }
    }
    Ok(())
}

fn compare_row(expected: &Sampled, found: &Sampled, worst: &mut Worst) -> Result<(), String> {
    worst.compared += 1;
    if expected.token_id != found.token_id {
        return Err(format!(
            "token {}, expected {}",
            found.token_id, expected.token_id
        ));
    }
    if expected.rank != found.rank {
        return Err(format!("rank {}, expected {}", found.rank, expected.rank));
    }
    compare_logprob(expected.logprob, found.logprob, worst)?;
    compare_top(&expected.top, &found.top, worst)
}

fn compare_top(
    expected: &[(u32, f32)],
    found: &[(u32, f32)],
    worst: &mut Worst,
) -> Result<(), String> {
    if ids(expected) != ids(found) {
        return Err(format!(
            "top ids {:?}, expected {:?}",
            ids(found),
            ids(expected)
        ));
    }
    expected
        .iter()
        .zip(found)
        .try_for_each(|(expected, found)| compare_logprob(expected.1, found.1, worst))
}

fn ids(top: &[(u32, f32)]) -> Vec<u32> {
    top.iter().map(|(id, _)| *id).collect::<Vec<_>>()
}

fn compare_logprob(expected: f32, found: f32, worst: &mut Worst) -> Result<(), String> {
    let tolerance = LOGPROB + RELATIVE * f64::from(expected).abs();
    let ratio = (f64::from(expected) - f64::from(found)).abs() / tolerance;
    if expected == found {
        return Ok(());
    }
    if !matches!(
        ratio.partial_cmp(&1.0),
        Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)
    ) {
        return Err(format!(
            "logprob {found}, expected {expected} (±{tolerance:.1e})"
        ));
    }
    worst.ratio = worst.ratio.max(ratio);
    Ok(())
}
