//! Maps the tensors of a checkpoint to the weights of a plan.
//!
//! A table of `tensor_names` says which tensors form each weight. q, k and v are stacked into one matrix, and so are
//! gate and up, so that a plan has one product for each. [`WeightTable`] is the table filled in for one model and
//! checked against the checkpoint's actual tensors before anything is read.

mod attention;
mod latent;
mod part;
mod required;
mod sections;
mod state;

use super::error::{LoadError, UploadError};
use super::layer_weight::LayerWeight;
use super::predictor::Predictor;
use super::source::{Element, TensorInfo, TensorSource};
use super::spec::{GatedNormSpec, HeadNorms, ModelSpec};
use super::tensor_names::{Nesting, Order};
use crate::plan::{Plan, Section, WeightFormat, WeightId, WeightSpec};
use crate::platform;
use bytes::Bytes;
use part::Change;
pub(super) use part::Part;
use required::{Required, of_predictor, required};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Maximum bytes of a chunk in [`WeightTable::upload`], unless one row is longer. Small enough that the allocator
/// reuses the memory of the previous chunk: at 32 MiB, each would be mapped and zeroed anew, which costs a sixth of a
/// load.
const CHUNK_BYTES_MAX: u64 = 4 << 20;

/// The content of a weight. Tensors are listed with the formats in which they are stored.
#[derive(Debug)]
enum Content {
    /// The rows of several tensors, stacked.
    Matrix(Vec<(Part, WeightFormat)>),
    /// The elements of several tensors, concatenated: a single row.
    Vector(Vec<(Part, WeightFormat)>),
    /// Numbers computed from the config: a single row.
    Computed(Vec<f32>),
    /// Zeros, until the engine writes rows between two steps.
    Written,
}

/// A weight of the future plan.
#[derive(Debug)]
pub(super) struct Weight {
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) sections: Vec<Section>,
    /// Number of experts whose rows are stacked; 1 for other weights.
    pub(super) experts: u32,
    content: Content,
}

/// A matrix of a plan that adapters may change.
pub(super) struct Adaptable {
    pub(super) name: String,
    pub(super) columns: u32,
    pub(super) parts: Vec<AdaptablePart>,
}

/// The rows that a matrix has of a module.
pub(super) struct AdaptablePart {
    /// The module's name from `layers.` on.
    pub(super) module: String,
    /// All rows of the module.
    pub(super) rows: u32,
    pub(super) runs: Vec<Range<u32>>,
    /// What its elements are multiplied by when they are read.
    pub(super) factor: f32,
}

/// The matrices of a model that adapters may change.
pub(super) fn adaptable(spec: &ModelSpec) -> Vec<Adaptable> {
    let matrices = required::adaptable(spec)
        .into_iter()
        .map(|matrix| Adaptable {
            columns: matrix.parts[0].columns().expect("a matrix has columns"),
            name: matrix.name,
            parts: matrix.parts.iter().map(AdaptablePart::new).collect(),
        });
    matrices.collect()
}

impl AdaptablePart {
    fn new(part: &Part) -> Self {
        let module = part.tensor.trim_end_matches(".weight");
        let start = module.find("layers.").unwrap_or(0);
        Self {
            module: module[start..].to_owned(),
            rows: part.stored_rows(),
            runs: part.all_runs(),
            factor: match part.change {
                Change::Times(factor) => factor,
                _ => 1.0,
            },
        }
    }
}

/// All weights of a model, by their names in the plan.
#[derive(Debug)]
pub(super) struct WeightTable {
    weights: BTreeMap<String, Weight>,
}

impl WeightTable {
    /// Finds every weight of `spec` among the tensors of a source; `name` is the source's name for errors.
    pub(super) fn resolve(
        spec: &ModelSpec,
        name: &str,
        tensors: &BTreeMap<String, TensorInfo>,
    ) -> Result<Self, LoadError> {
        let nesting = Nesting::find(spec.tensors.embedding, |tensor| {
            tensors.contains_key(tensor)
        });
        let mut all = required(spec);
        all.iter_mut()
            .flat_map(|weight| &mut weight.parts)
            .for_each(|part| part.tensor = nesting.of(&part.tensor));
        let mut table = Self {
            weights: BTreeMap::new(),
        };
        table.add(all, name, tensors)?;
        table.compute_ropes(spec);
        table.compute_norms(spec);
        table.compute_head_norms(spec);
        table.compute_slopes(spec);
        if let Some(tower) = &spec.tower {
            table.reserve("patches", spec.vocab, tower.columns());
        }
        Ok(table)
    }

    /// Finds the weights of a predictor.
    pub(super) fn add_predictor(
        &mut self,
        predictor: &Predictor,
        name: &str,
        tensors: &BTreeMap<String, TensorInfo>,
    ) -> Result<(), LoadError> {
        let all = of_predictor(predictor);
        let parts = all.iter().flat_map(|weight| &weight.parts);
        let read = parts.map(|part| part.tensor.clone()).collect();
        predictor.refuse_unread(name, &read, tensors)?;
        self.add(all, name, tensors)
    }

    /// Finds weights among the tensors of a source.
    fn add(
        &mut self,
        mut all: Vec<Required>,
        name: &str,
        tensors: &BTreeMap<String, TensorInfo>,
    ) -> Result<(), LoadError> {
        if stored_by_rows(&all, tensors) {
            all.iter_mut()
                .flat_map(|weight| &mut weight.parts)
                .for_each(|part| *part = part.clone().by_rows());
        }
        // Of several ways to store a weight, the first that is there; if none is, the first is missing.
        let is_there = |weight: &Required| {
            weight
                .parts
                .iter()
                .all(|part| tensors.contains_key(&part.tensor))
        };
        let found: BTreeSet<String> = all
            .iter()
            .filter(|weight| is_there(weight))
            .map(|weight| weight.name.clone())
            .collect();
        for weight in all {
            let is_other_way = self.weights.contains_key(&weight.name)
                || found.contains(&weight.name) && !is_there(&weight);
            if !is_other_way {
                let resolved = resolve_weight(weight.experts, weight.parts, name, tensors)?;
                self.weights.insert(weight.name, resolved);
            }
        }
        Ok(())
    }

    /// Makes room for rows in f32 that the engine writes between two steps.
    pub(super) fn reserve(&mut self, name: &str, rows: u32, columns: u32) {
        let format = WeightFormat::F32;
        let weight = Weight {
            rows,
            columns,
            sections: vec![Section { rows, format }],
            experts: 1,
            content: Content::Written,
        };
        self.weights.insert(name.into(), weight);
    }

    /// Whether the table has a weight of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    /// Computes the rotary frequencies of `spec`.
    pub(super) fn compute_ropes(&mut self, spec: &ModelSpec) {
        for (index, rope) in spec.ropes.iter().enumerate() {
            self.compute(
                format!("rope.{index}"),
                rope.frequencies(spec.positions_max),
            );
        }
    }

    /// Computes the weights of norms of embedded rows, q and k that have none.
    fn compute_head_norms(&mut self, spec: &ModelSpec) {
        if spec.norm.embedding && spec.tensors.embedding_norm[0].is_empty() {
            self.compute("embedding_norm".into(), vec![1.0; spec.hidden as usize]);
        }
        if spec.attention.head_norms != HeadNorms::Unweighted {
            return;
        }
        let normed = spec.layers.iter().enumerate();
        for (index, layer) in normed.filter(|(_, layer)| layer.head_norms) {
            for (weight, factor) in [
                (LayerWeight::QNorm, spec.attention.query_norm_factor),
                (LayerWeight::KNorm, 1.0),
            ] {
                let values = vec![factor; layer.head_dim as usize];
                self.compute(weight.of_layer(index), values);
            }
        }
    }

    /// Adds a vector that is computed.
    fn compute(&mut self, name: String, values: Vec<f32>) {
        let columns = u32::try_from(values.len()).expect("a vector has few elements");
        let weight = Weight {
            rows: 1,
            columns,
            sections: f32_row(),
            experts: 1,
            content: Content::Computed(values),
        };
        self.weights.insert(name, weight);
    }

    /// Computes the weights of the gated norms of states that have no norm.
    fn compute_norms(&mut self, spec: &ModelSpec) {
        let Some(norm) = spec
            .state
            .map(|state| state.norm)
            .filter(|norm| !norm.present)
        else {
            return;
        };
        let stateful = (0..)
            .zip(&spec.layers)
            .filter(|(_, layer)| layer.kind.has_state());
        for (index, _) in stateful {
            let values = vec![spec.factors.state * GatedNormSpec::NONE_ROOT; norm.run as usize];
            self.compute(LayerWeight::StateNorm.of_layer(index), values);
        }
    }

    /// Computes the slopes by which scores fall with the distance, one for each query head (ALiBi).
    fn compute_slopes(&mut self, spec: &ModelSpec) {
        if !spec.attention.alibi {
            return;
        }
        let weight = Weight {
            rows: 1,
            columns: spec.query_heads,
            sections: f32_row(),
            experts: 1,
            content: Content::Computed(slopes(spec.query_heads)),
        };
        self.weights.insert("slopes".into(), weight);
    }

    /// The weight called `name` in the plan.
    pub(super) fn get(&self, name: &str) -> &Weight {
        self.weights
            .get(name)
            .unwrap_or_else(|| panic!("a plan only names weights of its model's table, not {name}"))
    }

    /// Reads every weight of `plan` in chunks of whole rows and passes them to `write`.
    pub(super) async fn upload<E>(
        &self,
        source: &dyn TensorSource,
        plan: &Plan,
        mut write: impl FnMut(WeightId, u32, Bytes) -> Result<(), E>,
    ) -> Result<(), UploadError<E>> {
        let own = &plan.with_adapters(false).weights;
        for (id, spec) in (0..).map(WeightId).zip(own) {
            let weight = self.get(&spec.name);
            assert_eq!(
                (weight.rows, weight.columns),
                (spec.rows, spec.columns),
                "the plan is of this model"
            );
            match &weight.content {
                Content::Computed(values) => {
                    let row = values
                        .iter()
                        .flat_map(|value| value.to_le_bytes())
                        .collect();
                    write(id, 0, row).map_err(UploadError::Write)?;
                }
                Content::Written => clear(id, spec, &mut write).map_err(UploadError::Write)?,
                Content::Vector(parts) => {
                    let row = read_vector(source, parts).await?;
                    write(id, 0, row).map_err(UploadError::Write)?;
                }
                Content::Matrix(parts) => {
                    let mut first_row = 0;
                    for part in parts {
                        let mut write_part = |row: u32, rows| write(id, first_row + row, rows);
                        match part.0.order {
                            Order::Patches => {
                                upload_patches(source, part, weight.columns, &mut write_part)
                                    .await?;
                            }
                            Order::Merged(merged) => {
                                upload_merged(source, part, merged, &mut write_part).await?;
                            }
                            Order::HeadKeys => {
                                latent::upload_keys(source, part, &mut write_part).await?;
                            }
                            Order::Transposed
                            | Order::TransposedInterleaved
                            | Order::ExpertsInterleaved => {
                                upload_experts(source, part, weight, &mut write_part).await?;
                            }
                            _ => upload_rows(source, part, weight.columns, &mut write_part).await?,
                        }
                        first_row += part.0.rows();
                    }
                    assert_eq!(first_row, weight.rows, "the parts fill the weight");
                }
            }
        }
        clear_slots(plan, own.len(), &mut write).map_err(UploadError::Write)?;
        Ok(source.check()?)
    }
}

/// The slopes of ALiBi: 2^(−8i/n) for n heads, a power of two; otherwise those of the power of two below, then every
/// second one of twice that power.
fn slopes(heads: u32) -> Vec<f32> {
    let below = 1 << heads.ilog2();
    let of_power =
        |heads: u32, head: u32| (-8.0 * f64::from(head + 1) / f64::from(heads)).exp2() as f32;
    let first = (0..below).map(|head| of_power(below, head));
    let rest = (0..heads - below).map(|head| of_power(2 * below, 2 * head));
    first.chain(rest).collect()
}

/// Writes zeros to the slots for adapters, the weights of a plan from `first` on.
fn clear_slots<E>(
    plan: &Plan,
    first: usize,
    write: &mut impl FnMut(WeightId, u32, Bytes) -> Result<(), E>,
) -> Result<(), E> {
    let mut slots = (0..).map(WeightId).zip(&plan.weights).skip(first);
    slots.try_for_each(|(id, spec)| clear(id, spec, write))
}

/// Writes zeros to a weight.
fn clear<E>(
    id: WeightId,
    spec: &WeightSpec,
    write: &mut impl FnMut(WeightId, u32, Bytes) -> Result<(), E>,
) -> Result<(), E> {
    let row_bytes = spec.row_bytes_max();
    let rows_max = u32::try_from(CHUNK_BYTES_MAX / row_bytes).map_or(1, |rows| rows.max(1));
    for first_row in (0..spec.rows).step_by(rows_max as usize) {
        let rows = (spec.rows - first_row).min(rows_max);
        let zeros = vec![0; (u64::from(rows) * row_bytes) as usize];
        write(id, first_row, zeros.into())?;
    }
    Ok(())
}

/// Uploads the product with patches, whose rows are longer than the stored ones.
async fn upload_patches<E>(
    source: &dyn TensorSource,
    (part, stored): &(Part, WeightFormat),
    columns: u32,
    write: &mut impl FnMut(u32, Bytes) -> Result<(), E>,
) -> Result<(), UploadError<E>> {
    let numbers: u64 = part.shape[1..].iter().product();
    let stored_bytes = stored.row_bytes(u32::try_from(numbers).expect("a patch is small"));
    let all = stored_bytes * u64::from(part.stored_rows());
    let bytes = source.read(&part.tensor, 0..all).await?;
    let row_bytes = stored.row_bytes(columns) as usize;
    let rows = bytes.chunks_exact(stored_bytes as usize).flat_map(|row| {
        let zeros = std::iter::repeat_n(0, row_bytes - row.len());
        row.iter().copied().chain(zeros)
    });
    write(0, rows.collect()).map_err(UploadError::Write)
}

/// Uploads the product with rows that are merged, in f32: one merged row after the other.
async fn upload_merged<E>(
    source: &dyn TensorSource,
    (part, stored): &(Part, WeightFormat),
    merged: u32,
    write: &mut impl FnMut(u32, Bytes) -> Result<(), E>,
) -> Result<(), UploadError<E>> {
    let columns = part.columns().expect("a product is a matrix");
    let row_bytes = stored.row_bytes(columns);
    let bytes = source.read(&part.tensor, 0..row_bytes * u64::from(part.stored_rows()));
    let (columns, merged) = (columns as usize, merged as usize);
    let channels = columns / merged;
    for (row, bytes) in (0..).zip(bytes.await?.chunks_exact(row_bytes as usize)) {
        let numbers = (0..columns).flat_map(|column| {
            let (of_row, channel) = (column / channels, column % channels);
            let from = channel * merged + of_row;
            stored.decode(bytes, columns, from).to_le_bytes()
        });
        write(row, numbers.collect()).map_err(UploadError::Write)?;
    }
    Ok(())
}

/// Uploads the rows of one tensor. The chunks are the source's own, without a copy, unless elements change.
async fn upload_rows<E>(
    source: &dyn TensorSource,
    (part, stored): &(Part, WeightFormat),
    columns: u32,
    write: &mut impl FnMut(u32, Bytes) -> Result<(), E>,
) -> Result<(), UploadError<E>> {
    let stored_bytes = stored.row_bytes(columns);
    // Elements that change become f32.
    let largest = match part.change {
        Change::None => stored_bytes,
        _ => stored_bytes.max(WeightFormat::F32.row_bytes(columns)),
    };
    let rows_max = u32::try_from(CHUNK_BYTES_MAX / largest)
        .expect("a chunk has few rows")
        .max(1);
    let mut to = 0;
    for run in part.all_runs() {
        let mut row = run.start;
        while row < run.end {
            let end = run.end.min(row + rows_max);
            let bytes = source
                .read(
                    &part.tensor,
                    u64::from(row) * stored_bytes..u64::from(end) * stored_bytes,
                )
                .await?;
            assert_eq!(
                bytes.len() as u64,
                u64::from(end - row) * stored_bytes,
                "a source returns the range asked for"
            );
            let bytes = if part.change == Change::None {
                bytes
            } else {
                changed(&bytes, *stored, columns, part.change)
            };
            write(to, bytes).map_err(UploadError::Write)?;
            to += end - row;
            row = end;
        }
    }
    Ok(())
}

/// Rows of a matrix, with their elements changed, in f32.
fn changed(rows: &[u8], stored: WeightFormat, columns: u32, change: Change) -> Bytes {
    let columns = columns as usize;
    rows.chunks_exact(stored.row_bytes(columns as u32) as usize)
        .flat_map(|row| {
            (0..columns)
                .flat_map(|column| {
                    change
                        .apply(stored.decode(row, columns, column))
                        .to_le_bytes()
                })
                .collect::<Vec<u8>>()
        })
        .collect()
}

/// Uploads a tensor of all experts whose layout differs from the weight's: transposed, or with alternating rows.
async fn upload_experts<E>(
    source: &dyn TensorSource,
    (part, stored): &(Part, WeightFormat),
    weight: &Weight,
    write: &mut impl FnMut(u32, Bytes) -> Result<(), E>,
) -> Result<(), UploadError<E>> {
    let row_bytes = stored.row_bytes(weight.columns) as usize;
    // The contiguous unit: an element, or a whole row.
    let size = match part.order {
        Order::Transposed | Order::TransposedInterleaved => stored
            .element_bytes()
            .expect("elements that lie as columns have bytes of their own")
            as usize,
        _ => row_bytes,
    };
    let rows = (weight.rows / weight.experts) as usize;
    let chunk_rows = (CHUNK_BYTES_MAX as usize / row_bytes).clamp(1, rows);
    for expert in 0..weight.experts as usize {
        let start = (expert * rows * row_bytes) as u64;
        let stored = source
            .read(&part.tensor, start..start + (rows * row_bytes) as u64)
            .await?;
        for first in (0..rows).step_by(chunk_rows) {
            let mut chunk = vec![0; chunk_rows.min(rows - first) * row_bytes];
            platform::for_each_chunk(&mut chunk, row_bytes, |row, out| {
                let from = part.order.stored_row(first + row, rows);
                for (column, out) in out.chunks_exact_mut(size).enumerate() {
                    out.copy_from_slice(&stored[(column * rows + from) * size..][..size]);
                }
            });
            write((expert * rows + first) as u32, chunk.into()).map_err(UploadError::Write)?;
        }
    }
    Ok(())
}

/// Reads a vector, widened to f32.
async fn read_vector(
    source: &dyn TensorSource,
    parts: &[(Part, WeightFormat)],
) -> Result<Bytes, LoadError> {
    let mut row = Vec::new();
    for (part, stored) in parts {
        let each = part.each();
        let each_bytes = stored.row_bytes(each);
        let experts = part.stored_rows() / each;
        let bytes = source
            .read(&part.tensor, 0..u64::from(experts) * each_bytes)
            .await?;
        for run in bytes.chunks_exact(each_bytes as usize) {
            let each = each as usize;
            let value = |n| {
                part.change
                    .apply(stored.decode(run, each, part.order.stored_row(n, each)))
            };
            let elements = part.all_runs().into_iter().flatten().map(|n| n as usize);
            // The runs of a vector of all experts are those of each expert.
            let elements = if experts > 1 {
                (0..each).collect()
            } else {
                elements.collect::<Vec<_>>()
            };
            row.extend(elements.into_iter().flat_map(|n| value(n).to_le_bytes()));
        }
    }
    Ok(row.into())
}

/// Whether experts that are published by columns were saved again by rows. One of their tensors whose shape tells is
/// enough: of those whose rows are as many as their columns, none does.
fn stored_by_rows(required: &[Required], tensors: &BTreeMap<String, TensorInfo>) -> bool {
    let by_columns = required
        .iter()
        .flat_map(|weight| &weight.parts)
        .filter(|part| part.order == Order::Transposed);
    by_columns.into_iter().any(|part| {
        tensors.get(&part.tensor).is_some_and(|info| {
            info.shape != part.shape && info.shape == part.clone().by_rows().shape
        })
    })
}

/// The only section of a vector.
fn f32_row() -> Vec<Section> {
    vec![Section {
        rows: 1,
        format: WeightFormat::F32,
    }]
}

/// Names of all tensors that a model of this spec may read, in every way in which they may be stored.
pub(super) fn names_of(spec: &ModelSpec) -> BTreeSet<String> {
    required(spec)
        .into_iter()
        .flat_map(|weight| weight.parts)
        .map(|part| part.tensor)
        .collect()
}

/// Every checkpoint tensor that `spec` reads; of tensors that may be stored in several ways, the first way.
pub(super) fn tensors_of(spec: &ModelSpec) -> impl Iterator<Item = Part> {
    let mut seen = BTreeSet::new();
    let first = required(spec)
        .into_iter()
        .filter(move |required| seen.insert(required.name.clone()));
    first.flat_map(|required| required.parts)
}

fn resolve_weight(
    experts: u32,
    parts: Vec<Part>,
    name: &str,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Weight, LoadError> {
    let mut stored = Vec::with_capacity(parts.len());
    for part in parts {
        stored.push(find(part, name, tensors)?);
    }
    let rows = stored.iter().map(|(part, _)| part.rows()).sum();
    let Some(columns) = stored[0].0.columns() else {
        let content = Content::Vector(stored);
        return Ok(Weight {
            rows: 1,
            columns: rows,
            sections: f32_row(),
            experts: 1,
            content,
        });
    };
    let sections = stored
        .iter()
        .map(|(part, stored)| Section {
            rows: part.rows(),
            format: part.format(*stored),
        })
        .collect();
    Ok(Weight {
        rows,
        columns,
        sections,
        experts,
        content: Content::Matrix(stored),
    })
}

/// Looks up a tensor, which must have the required shape, and its stored type.
fn find(
    part: Part,
    name: &str,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<(Part, WeightFormat), LoadError> {
    let tensor = part.tensor.clone();
    let Some(TensorInfo {
        file,
        shape,
        element,
    }) = tensors.get(&tensor)
    else {
        return Err(LoadError::TensorMissing {
            file: name.into(),
            tensor,
        });
    };
    let part = if matches!(element, Element::Float(format) if format.is_quantised()) {
        part.by_rows()
    } else {
        part
    };
    // A vector may be stored as a matrix of one row.
    let is_row = part.columns().is_none() && **shape == [&[1], &part.shape[..]].concat();
    if *shape != part.shape && !is_row {
        let (found, expected) = (shape.clone(), part.shape.clone());
        return Err(LoadError::TensorShape {
            file: file.to_string(),
            tensor,
            found,
            expected,
        });
    }
    match element {
        Element::Float(format) => Ok((part, *format)),
        Element::Other(found) => Err(LoadError::TensorType {
            file: file.to_string(),
            tensor,
            found: found.clone(),
        }),
    }
}
