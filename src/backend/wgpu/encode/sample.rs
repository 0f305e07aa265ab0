//! `Sample` → dispatches for the sample rows of one run of the tail.
//!
//! `sample_survey` reads all logits once, each row in parts. Then `sample_merge` draws plain greedy rows, `sample` all
//! others with one workgroup per row; rows without top-k and top-p are drawn in parts by `sample_draw` first. Each
//! kernel decides from the row's record whether it draws the row, so a mixed batch runs them all. Bias, penalties and
//! masks need the row's adjusted keys in scratch: then rows are processed in slices of as many rows as the scratch
//! holds.

use super::super::super::{BackendError, Capacity};
use super::super::arena::Binding;
use super::super::device::{Class, Profile};
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params};
use crate::plan::inputs::{BatchInputs, SampleShape, TOP_LOGPROBS_MAX};
use crate::plan::{Plan, Sample, Step, Tail};

params! {
    Params {
        rows: u32, row_first: u32, logits_first: u32, vocab: u32, parts: u32, part_fours: u32, parts_first: u32,
    }
}

/// Largest keys that the record of a part has, and its words: besides those, the largest key and the largest score,
/// each with its id (`shaders/common/sample_parts.wgsl`).
const PART_MAXIMA: u32 = 8;
const PART_WORDS: u32 = PART_MAXIMA + 4;
/// Maximum bytes of adjusted rows in scratch, unless a single row is larger.
const SCRATCH_BYTES: u64 = 32 << 20;

/// Number of parts of a row, and groups of four logits in a part.
fn parts(vocab: u32, class: Class) -> (u32, u32) {
    let (part_fours_min, parts_max) = if class == Class::Software {
        (2048, 32)
    } else {
        (256, 128)
    };
    let fours = vocab.div_ceil(4).max(1);
    let part_fours = fours.div_ceil(parts_max).max(part_fours_min);
    (fours.div_ceil(part_fours), part_fours)
}

/// Number of rows whose adjusted keys fit the scratch.
fn scratch_rows(vocab: u32, samples_max: u32, profile: &Profile) -> u32 {
    let rows = SCRATCH_BYTES.min(profile.binding_bytes_max) / (u64::from(vocab.max(1)) * 4);
    u32::try_from(rows)
        .unwrap_or(u32::MAX)
        .clamp(1, samples_max.max(1))
}

/// Columns of the logits that the plan samples.
fn vocab_of(plan: &Plan) -> u32 {
    let sampled = plan.tail(Tail::Sample).iter().find_map(|step| match step {
        Step::Sample(step) => Some(plan.buffer_spec(step.logits).columns),
        _ => None,
    });
    sampled.unwrap_or(plan.vocab)
}

/// Bytes of scratch for the adjusted rows of one dispatch.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let vocab = vocab_of(plan);
    u64::from(scratch_rows(vocab, capacity.samples_max, profile)) * u64::from(vocab) * 4
}

/// Bytes of the parts of one run of the tail.
pub(crate) fn parts_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let (parts, _) = parts(vocab_of(plan), profile.class);
    u64::from(capacity.samples_max) * u64::from(parts * PART_WORDS) * 4
}

/// Whether some rows may be drawn from their whole vocabulary. The kernels decide it exactly, after rounding top-p.
pub(crate) fn has_open_rows(inputs: &BatchInputs) -> bool {
    inputs
        .samples
        .iter()
        .any(|row| row.draw.temperature != 0.0 && row.draw.top_p > 0.99)
}

/// The kernel `stem`, which reads or writes records of parts.
fn for_parts(stem: &'static str) -> Kernel {
    Kernel::new(stem)
        .number("PART_WORDS", PART_WORDS)
        .number("PART_MAXIMA", PART_MAXIMA)
}

/// The kernel `stem`, which reads rows of `vocab` logits.
fn for_vocab(stem: &'static str, vocab: u32, class: Class) -> Kernel {
    for_parts(stem)
        .number("WORKGROUP", workgroup(class))
        .define_if(vocab.is_multiple_of(4), "VECTORS")
}

fn kernel(shape: SampleShape, vocab: u32, class: Class) -> Kernel {
    // SwiftShader runs and compiles code for every word of workgroup memory, to zero it.
    let list = if class == Class::Software { 256 } else { 1024 };
    debug_assert!(list >= TOP_LOGPROBS_MAX && list >= parts(vocab, class).0 * PART_MAXIMA);
    let kernel = for_vocab("sample", vocab, class).number("LIST", list);
    kernel
        .define_if(shape.adjust, "ADJUST")
        .define_if(shape.logprobs, "LOGPROBS")
}

fn workgroup(class: Class) -> u32 {
    if class == Class::Software { 64 } else { 256 }
}

/// Records the dispatches for the sample rows of `recorder.group`.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &Sample) -> Result<(), BackendError> {
    let shape = recorder.shape.sample;
    let run = TailRun::new(recorder, step);
    run.record_in_parts(recorder, "sample_survey")?;
    if shape.plain {
        run.record_plain(recorder)?;
    }
    if !shape.full {
        return Ok(());
    }
    if recorder.shape.open_rows && !shape.adjust {
        run.record_in_parts(recorder, "sample_draw")?;
    }
    run.record_full(recorder)
}

/// The sample rows of one run of the tail.
struct TailRun<'a> {
    step: &'a Sample,
    /// Params of a dispatch for all rows.
    params: Params,
}

impl<'a> TailRun<'a> {
    fn new(recorder: &Recorder<'_>, step: &'a Sample) -> Self {
        let group = recorder.group;
        let vocab = recorder.columns(step.logits);
        let (parts, part_fours) = parts(vocab, recorder.profile.class);
        let params = Params {
            rows: group.samples,
            row_first: group.sample_start,
            logits_first: group.logits_start,
            vocab,
            parts,
            part_fours,
            parts_first: 0,
        };
        Self { step, params }
    }

    fn logits<'b>(&self, recorder: &Recorder<'b>) -> Binding<'b> {
        recorder.row_buffer(self.step.logits).read()
    }

    /// Records a dispatch with a workgroup per part of a row, which writes the part's record.
    fn record_in_parts(
        &self,
        recorder: &mut Recorder<'_>,
        stem: &'static str,
    ) -> Result<(), BackendError> {
        let Params {
            rows, parts, vocab, ..
        } = self.params;
        let arena = recorder.arena;
        debug_assert!(
            u64::from(rows * parts * PART_WORDS) * 4 <= arena.sample_parts.bytes,
            "parts of all rows fit"
        );
        let bindings = [
            arena.metadata.read(),
            self.logits(recorder),
            arena.sample_parts.read_write(),
        ];
        let kernel = for_vocab(stem, vocab, recorder.profile.class);
        recorder.dispatch(&kernel, &self.params, &bindings, rows * parts)
    }

    /// Records the dispatch that draws plain greedy rows.
    fn record_plain(&self, recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
        let arena = recorder.arena;
        let bindings = [
            arena.metadata.read(),
            arena.sample_parts.read(),
            arena.feed.read_write(),
            arena.results.read_write(),
        ];
        let workgroups = self.params.rows.div_ceil(64);
        recorder.dispatch(
            &for_parts("sample_merge"),
            &self.params,
            &bindings,
            workgroups,
        )
    }

    /// Records the dispatches that draw all other rows: one for as many rows as the scratch holds, or for all if they
    /// need none.
    fn record_full(&self, recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
        let Params { rows, vocab, .. } = self.params;
        let (arena, shape) = (recorder.arena, recorder.shape.sample);
        let rows_each = if shape.adjust {
            scratch_rows(vocab, recorder.capacity.samples_max, recorder.profile)
        } else {
            rows.max(1)
        };
        let adjusted_bytes = u64::from(rows_each.min(rows)) * u64::from(vocab) * 4;
        debug_assert!(
            !shape.adjust || adjusted_bytes <= arena.sample_scratch.bytes,
            "the adjusted rows fit the scratch"
        );
        let bindings = [
            arena.metadata.read(),
            self.logits(recorder),
            arena.sample_parts.read(),
            arena.sample_scratch.read_write(),
            arena.feed.read_write(),
            arena.results.read_write(),
        ];
        let kernel = kernel(shape, vocab, recorder.profile.class);
        for start in (0..rows).step_by(rows_each as usize) {
            let params = Params {
                rows: rows_each.min(rows - start),
                row_first: self.params.row_first + start,
                parts_first: start,
                ..self.params
            };
            recorder.dispatch(&kernel, &params, &bindings, params.rows)?;
        }
        Ok(())
    }
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let variant = |kernel| Variant::new::<Params>(kernel, Params::FIELDS);
    let mut variants = vec![variant(for_parts("sample_merge"))];
    for (class, vocab) in [
        (Class::Discrete, 4),
        (Class::Discrete, 5),
        (Class::Software, 4),
        (Class::Software, 5),
    ] {
        variants.push(variant(for_vocab("sample_survey", vocab, class)));
        variants.push(variant(for_vocab("sample_draw", vocab, class)));
        for (adjust, logprobs) in [(false, false), (false, true), (true, false), (true, true)] {
            let shape = SampleShape {
                plain: false,
                full: true,
                adjust,
                logprobs,
            };
            variants.push(variant(kernel(shape, vocab, class)));
        }
    }
    variants
}
