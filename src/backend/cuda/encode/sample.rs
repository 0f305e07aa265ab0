//! `Sample` → launches for the sample rows of a batch.
//!
//! Plain greedy rows go through `sample_argmax`, which splits a row into parts. All other rows go through `sample`, one
//! block per row, and `sample_logprobs` if any row reports logprobs. The kernels read from the row itself which of them
//! handles it, so a mixed batch runs all of them. Bias, penalties and masks need the row's adjusted logits in scratch;
//! rows are then processed in slices of as many as the scratch holds.

use super::super::super::{BackendError, Capacity};
use super::{Kernel, Recorder, params};
use crate::plan::inputs::SampleShape;
use crate::plan::{Plan, Sample, Step, Tail};

params! {
    ArgmaxParams {
        metadata: u64,
        logits: u64,
        states: u64,
        feed: u64,
        results: u64,
        vocab: u32,
        part_fours: u32,
    }
}

params! {
    Params { metadata: u64, logits: u64, scratch: u64, feed: u64, results: u64, row_first: u32, vocab: u32 }
}

/// Groups of four logits in one part of an argmax: each thread makes four 16-byte loads.
const PART_FOURS: u32 = 1024;
/// Threads per block of `sample_argmax`.
const ARGMAX_THREADS: u32 = 256;
/// Threads per block of `sample` and `sample_logprobs`.
const THREADS: u32 = 1024;
/// Bytes of scratch for adjusted rows, unless a single row is larger.
const SCRATCH_BYTES: u64 = 64 << 20;
/// Bytes of state that the parts of an argmax row share.
const STATE_BYTES: u64 = 16;

/// The sampling options recorded at start: greedy decoding, and sampling without any other option.
pub(super) fn usual_shapes() -> [SampleShape; 2] {
    let none = SampleShape::default();
    [
        SampleShape {
            plain: true,
            ..none
        },
        SampleShape { full: true, ..none },
    ]
}

/// Words of an adjusted row, rounded up to 16 bytes.
fn row_words(vocab: u32) -> u64 {
    u64::from(vocab.max(1)).next_multiple_of(4)
}

/// Number of rows whose adjusted logits fit in the scratch.
fn scratch_rows(vocab: u32, samples_max: u32) -> u32 {
    let rows = SCRATCH_BYTES / (row_words(vocab) * 4);
    u32::try_from(rows)
        .unwrap_or(u32::MAX)
        .clamp(1, samples_max.max(1))
}

/// Columns of the logits that the plan samples from.
fn vocab_of(plan: &Plan) -> u32 {
    let sampled = plan.tail(Tail::Sample).iter().find_map(|step| match step {
        Step::Sample(step) => Some(plan.buffer_spec(step.logits).columns),
        _ => None,
    });
    sampled.unwrap_or(plan.vocab)
}

/// Bytes of the argmax states, which come first in the scratch.
fn state_bytes(capacity: &Capacity) -> u64 {
    u64::from(capacity.samples_max.max(1)) * STATE_BYTES
}

/// Bytes of scratch. It must be zero at the start: [`encode_argmax`] leaves its states zero, and nothing else uses
/// them.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity) -> u64 {
    let vocab = vocab_of(plan);
    let adjusted = u64::from(scratch_rows(vocab, capacity.samples_max)) * row_words(vocab) * 4;
    state_bytes(capacity) + adjusted
}

/// Records the launches for all sample rows of the bucket.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &Sample) -> Result<(), BackendError> {
    let (shape, rows) = (recorder.shape.sample, recorder.shape.samples);
    debug_assert!(
        rows <= recorder.capacity.samples_max,
        "{rows} sample rows exceed the capacity"
    );
    if shape.plain {
        encode_argmax(recorder, step)?;
    }
    if !shape.full {
        return Ok(());
    }
    let (arena, vocab) = (recorder.arena, recorder.columns(step.logits));
    let mut params = Params {
        metadata: arena.metadata,
        logits: recorder.row_buffer(step.logits),
        scratch: arena.sample_scratch + state_bytes(recorder.capacity),
        feed: arena.feed,
        results: arena.results,
        row_first: 0,
        vocab,
    };
    let kernel = Kernel::new("sample");
    let slice = if shape.adjust {
        scratch_rows(vocab, recorder.capacity.samples_max)
    } else {
        rows.max(1)
    };
    for row_first in (0..rows).step_by(slice as usize) {
        params.row_first = row_first;
        let grid = [slice.min(rows - row_first), 1, 1];
        recorder.launch(&kernel, &params, grid, THREADS, 0)?;
        if shape.logprobs {
            recorder.launch(&Kernel::new("sample_logprobs"), &params, grid, THREADS, 0)?;
        }
    }
    Ok(())
}

fn encode_argmax(recorder: &mut Recorder<'_>, step: &Sample) -> Result<(), BackendError> {
    let (arena, vocab) = (recorder.arena, recorder.columns(step.logits));
    let params = ArgmaxParams {
        metadata: arena.metadata,
        logits: recorder.row_buffer(step.logits),
        states: arena.sample_scratch,
        feed: arena.feed,
        results: arena.results,
        vocab,
        part_fours: PART_FOURS,
    };
    let parts = vocab.div_ceil(4 * PART_FOURS);
    let grid = [parts, recorder.shape.samples, 1];
    recorder.launch(
        &Kernel::new("sample_argmax"),
        &params,
        grid,
        ARGMAX_THREADS,
        0,
    )
}
