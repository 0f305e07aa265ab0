//! `Embed` → one dispatch per shard of the table.

use super::super::super::BackendError;
use super::super::device::Profile;
use super::super::pipelines::Kernel;
use super::{Recorder, RowParams, Variant, for_weight, params};
use crate::plan::{Embed, RowId, WeightFormat};

params! {
    Params {
        tokens: u32, eights: u32, row_start: u32, rows: u32, vocab: u32, scale: f32,
        id: u32, id_first: u32, accumulate: u32,
        row_vectors: u32, plane: u32, scales: u32, supers: u32,
    }
}

/// Invocations of a workgroup; each writes 8 elements.
const WORKGROUP: u32 = 64;

fn kernel(format: WeightFormat, profile: &Profile) -> Kernel {
    for_weight(
        Kernel::new("embed").define_if(profile.texels, "TEXELS"),
        format,
        profile,
    )
}

/// What selects a row of the table, as the kernels know it, and its first row.
fn id_params(id: RowId) -> (u32, u32) {
    match id {
        RowId::Token => (0, 0),
        RowId::Position(first) => (1, first),
        RowId::Text => (2, 0),
        RowId::Image => (3, 0),
    }
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &Embed) -> Result<(), BackendError> {
    let Embed {
        table, scale, out, ..
    } = *step;
    if step.id == RowId::Image && !recorder.shape.images {
        return Ok(());
    }
    let (id, id_first) = id_params(step.id);
    let accumulate = u32::from(step.accumulate);
    let arena = recorder.arena;
    let weight = recorder.weight(table);
    let vocab = recorder.plan.weight_spec(table).rows;
    debug_assert_eq!(
        weight.columns,
        recorder.columns(out),
        "a row of the table is a row of out"
    );
    let (tokens, eights) = (recorder.rows(out), weight.columns / 8);
    for shard in &weight.shards {
        let kernel = kernel(shard.format, recorder.profile);
        let RowParams {
            row_vectors,
            plane,
            scales,
            supers,
        } = RowParams::new(shard.format, weight.columns);
        let (row_start, rows) = (shard.row_start, shard.rows);
        let params = Params {
            tokens,
            eights,
            row_start,
            rows,
            vocab,
            scale,
            id,
            id_first,
            accumulate,
            row_vectors,
            plane,
            scales,
            supers,
        };
        let bindings = [
            arena.metadata.fetch(),
            arena.feed.read(),
            shard.buffer.fetch(),
            recorder.row_buffer(out).read_write(),
        ];
        recorder.dispatch(
            &kernel,
            &params,
            &bindings,
            (tokens * eights).div_ceil(WORKGROUP),
        )?;
    }
    Ok(())
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let variants = [false, true].map(|texels| {
        super::weight_variants(|format, profile| {
            let profile = Profile {
                texels,
                ..profile.clone()
            };
            Variant::new::<Params>(kernel(format, &profile), Params::FIELDS)
        })
    });
    variants.concat()
}
