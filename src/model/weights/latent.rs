//! The projections of latent attention: keys and values of all heads are products with one tensor.

use super::part::Part;
use super::sections::Layer;
use crate::model::error::UploadError;
use crate::model::source::TensorSource;
use crate::model::tensor_names::{LayerNames, Order};
use crate::plan::WeightFormat;
use bytes::Bytes;

/// The keys' or the values' part of a layer's product for both.
pub(super) fn parts(layer: &Layer<'_>, row: &LayerNames) -> Vec<Part> {
    let heads = layer.spec.query_heads;
    let spec = layer.spec.latent.expect("the model has latents");
    let each = spec.plain + spec.value;
    let (first, count, order) = match row.order {
        Order::HeadKeys => (0, spec.plain, Order::HeadKeys),
        _ => (spec.plain, spec.value, Order::Rows),
    };
    let runs = (0..heads)
        .map(|head| head * each + first..head * each + first + count)
        .collect();
    let shape = [heads * each, spec.rank].map(u64::from);
    vec![Part {
        order,
        runs,
        ..Part::new(layer.tensor(row.tensors[0]), &shape)
    }]
}

/// Uploads the keys' part: for each head, its rows of keys as columns.
pub(super) async fn upload_keys<E>(
    source: &dyn TensorSource,
    (part, stored): &(Part, WeightFormat),
    write: &mut impl FnMut(u32, Bytes) -> Result<(), E>,
) -> Result<(), UploadError<E>> {
    let columns = part.shape[1] as usize;
    let row_bytes = stored.row_bytes(columns as u32);
    let mut first = 0;
    for run in part.all_runs() {
        let rows = source
            .read(
                &part.tensor,
                u64::from(run.start) * row_bytes..u64::from(run.end) * row_bytes,
            )
            .await?;
        let rows: Vec<&[u8]> = rows.chunks_exact(row_bytes as usize).collect();
        let mut out = Vec::new();
        for column in 0..columns {
            for row in &rows {
                match stored.element_bytes() {
                    Some(size) => {
                        out.extend_from_slice(&row[column * size as usize..][..size as usize]);
                    }
                    None => out.extend(
                        half::f16::from_f32(stored.decode(row, columns, column)).to_le_bytes(),
                    ),
                }
            }
        }
        write(first, out.into()).map_err(UploadError::Write)?;
        first += columns as u32;
    }
    Ok(())
}
