//! `Sample` → dispatches for the sample rows of one run of the tail.
//!
//! Plain greedy rows use `sample_argmax`, split in parts; all others use `sample`, one workgroup per row. Each kernel
//! decides from the row's record whether it draws the row, so a mixed batch runs both. Bias, penalties and masks need
//! the row's adjusted keys in scratch: then rows are processed in slices of as many rows as the scratch holds.

use super::super::super::{BackendError, Capacity};
use super::super::device::{Class, Profile};
use super::super::pipelines::Kernel;
use super::{Recorder, SampleGroup, Variant, params};
use crate::plan::inputs::SampleShape;
use crate::plan::{Plan, Sample, Step, Tail};

params! {
    ArgmaxParams { rows: u32, row_first: u32, logits_first: u32, vocab: u32, parts: u32 }
}

params! {
    Params { rows: u32, row_first: u32, logits_first: u32, vocab: u32 }
}

/// Minimum logits per part of an argmax, and maximum parts.
const PART_LOGITS: u32 = 8192;
const PARTS_MAX: u32 = 32;
/// Maximum bytes of adjusted rows in scratch, unless a single row is larger.
const SCRATCH_BYTES: u64 = 32 << 20;

fn parts(vocab: u32) -> u32 {
    vocab.div_ceil(PART_LOGITS).clamp(1, PARTS_MAX)
}

/// Number of rows whose adjusted keys fit the scratch.
fn scratch_rows(vocab: u32, samples_max: u32, profile: &Profile) -> u32 {
    let rows = SCRATCH_BYTES.min(profile.binding_bytes_max) / (u64::from(vocab.max(1)) * 4);
    u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, samples_max.max(1))
}

/// Columns of the logits that the plan samples.
fn vocab_of(plan: &Plan) -> u32 {
    let sampled = plan.tail(Tail::Sample).iter().find_map(|step| match step {
        Step::Sample(step) => Some(plan.buffer_spec(step.logits).columns),
        _ => None,
    });
    sampled.unwrap_or(plan.vocab)
}

/// Bytes of scratch for one run of the tail.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let vocab = vocab_of(plan);
    let adjusted = u64::from(scratch_rows(vocab, capacity.samples_max, profile)) * u64::from(vocab) * 4;
    adjusted.max(u64::from(capacity.samples_max) * u64::from(parts(vocab)) * 8)
}

fn kernel(shape: SampleShape, class: Class) -> Kernel {
    let kernel = Kernel::new("sample").number("WORKGROUP", workgroup(class));
    kernel.define_if(shape.adjust, "ADJUST").define_if(shape.logprobs, "LOGPROBS")
}

fn argmax_kernel(class: Class) -> Kernel {
    Kernel::new("sample_argmax").number("WORKGROUP", workgroup(class))
}

fn workgroup(class: Class) -> u32 {
    if class == Class::Software { 64 } else { 256 }
}

/// Records the dispatches for the sample rows of `recorder.group`.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &Sample) -> Result<(), BackendError> {
    let shape = recorder.shape.sample;
    if shape.plain {
        encode_argmax(recorder, step)?;
    }
    if !shape.full {
        return Ok(());
    }
    let arena = recorder.arena;
    let (vocab, group) = (recorder.columns(step.logits), recorder.group);
    let kernel = kernel(shape, recorder.profile.class);
    let slice = if shape.adjust {
        scratch_rows(vocab, recorder.capacity.samples_max, recorder.profile)
    } else {
        group.samples.max(1)
    };
    let adjusted_bytes = u64::from(slice.min(group.samples)) * u64::from(vocab) * 4;
    debug_assert!(!shape.adjust || adjusted_bytes <= arena.sample_scratch.bytes, "the adjusted rows fit the scratch");
    for start in (0..group.samples).step_by(slice as usize) {
        let rows = slice.min(group.samples - start);
        let row_first = group.sample_start + start;
        let params = Params { rows, row_first, logits_first: group.logits_start, vocab };
        let inputs = [arena.metadata.read(), recorder.row_buffer(step.logits).read()];
        let [metadata, logits] = inputs;
        let (scratch, feed) = (arena.sample_scratch.read_write(), arena.feed.read_write());
        let bindings = [metadata, logits, scratch, feed, arena.results.read_write()];
        recorder.dispatch(&kernel, &params, &bindings, rows)?;
    }
    Ok(())
}

fn encode_argmax(recorder: &mut Recorder<'_>, step: &Sample) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let vocab = recorder.columns(step.logits);
    let SampleGroup { logits_start, sample_start, samples, .. } = recorder.group;
    let parts = parts(vocab);
    let params = ArgmaxParams { rows: samples, row_first: sample_start, logits_first: logits_start, vocab, parts };
    let scratch = &arena.sample_scratch;
    debug_assert!(u64::from(samples * parts) * 8 <= scratch.bytes, "the parts of all rows fit the scratch");
    let bindings = [arena.metadata.read(), recorder.row_buffer(step.logits).read(), scratch.read_write()];
    recorder.dispatch(&argmax_kernel(recorder.profile.class), &params, &bindings, samples * parts)?;
    let outputs = [arena.feed.read_write(), arena.results.read_write()];
    let bindings = [arena.metadata.read(), scratch.read(), outputs[0], outputs[1]];
    recorder.dispatch(&Kernel::new("sample_argmax_merge"), &params, &bindings, samples.div_ceil(64))
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = vec![Variant::new::<ArgmaxParams>(Kernel::new("sample_argmax_merge"), ArgmaxParams::FIELDS)];
    for class in [Class::Discrete, Class::Software] {
        variants.push(Variant::new::<ArgmaxParams>(argmax_kernel(class), ArgmaxParams::FIELDS));
        for (adjust, logprobs) in [(false, false), (false, true), (true, false), (true, true)] {
            let shape = SampleShape { plain: false, full: true, adjust, logprobs };
            variants.push(Variant::new::<Params>(kernel(shape, class), Params::FIELDS));
        }
    }
    variants
}
