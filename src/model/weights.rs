//! Maps the tensors of a checkpoint to the weights of a plan.
//!
//! A table of `tensor_names` says which tensors form each weight. q, k and v are stacked into one matrix, and so are
//! gate and up, so that a plan has one product for each. [`WeightTable`] is the table filled in for one model and
//! checked against the checkpoint's actual tensors before anything is read.

use super::source::{Element, TensorInfo, TensorSource};
use super::spec::{ExpertsSpec, HeadNorms, LayerKind, ModelSpec, NormPlace};
use super::tensor_names::{LayerNames, Nesting, Order};
use super::{LoadError, UploadError};
use crate::plan::{Plan, Section, WeightFormat, WeightId};
use crate::platform;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Maximum bytes of a chunk in [`WeightTable::upload`], unless one row is longer. Small enough that the allocator
/// reuses the memory of the previous chunk: at 32 MiB, each would be mapped and zeroed anew, which costs a sixth of a
/// load.
const CHUNK_BYTES_MAX: u64 = 4 << 20;

/// A checkpoint tensor that is part of a weight.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) tensor: String,
    pub(super) shape: Vec<u64>,
    order: Order,
    /// Factor of the elements; only of vectors.
    factor: f32,
}

impl Part {
    /// Rows of the weight in this tensor; elements if the weight is a vector.
    fn rows(&self) -> u32 {
        let rows = match (self.order, &self.shape[..]) {
            (Order::Rows, []) => 1,
            (Order::Rows, [rows] | [rows, _]) => *rows,
            // A vector with more dimensions, such as the taps of a convolution.
            (Order::Rows, shape) => shape.iter().product(),
            (Order::Experts | Order::ExpertsInterleaved, [experts, rows, ..]) => experts * rows,
            (_, [experts, .., rows]) => experts * rows,
            _ => unreachable!("a tensor has a shape"),
        };
        u32::try_from(rows).expect("the rows of a weight fit 32 bits")
    }

    /// Elements per expert of a vector.
    fn each(&self) -> u32 {
        let experts = if self.order == Order::Rows { 1 } else { self.shape[0] };
        u32::try_from(u64::from(self.rows()) / experts).expect("a part is smaller than the whole")
    }

    /// Elements per row; `None` if the weight is a vector.
    fn columns(&self) -> Option<u32> {
        let columns = match (self.order, &self.shape[..]) {
            (Order::Rows, [_, columns])
            | (Order::Experts | Order::ExpertsInterleaved, [_, _, columns])
            | (Order::Transposed | Order::TransposedInterleaved, [_, columns, _]) => *columns,
            _ => return None,
        };
        Some(u32::try_from(columns).expect("a dimension of the spec fits 32 bits"))
    }

    /// The same tensor stored by rows: quantized checkpoints store all matrices by rows, others some by columns.
    fn by_rows(mut self) -> Self {
        let order = match self.order {
            Order::Transposed => Order::Experts,
            Order::TransposedInterleaved => Order::ExpertsInterleaved,
            _ => return self,
        };
        if let [_, columns, rows] = &mut self.shape[..] {
            std::mem::swap(columns, rows);
            self.order = order;
        }
        self
    }
}

/// A weight of the plan, and the tensors that form it.
struct Required {
    name: String,
    experts: u32,
    parts: Vec<Part>,
}

/// Shapes of the parts stacked to form a weight, repeated for each expert.
struct Sections {
    experts: u32,
    shapes: Vec<Vec<u64>>,
    /// Factor of the elements; only of vectors.
    factor: f32,
}

/// The content of a weight. Tensors are listed with the formats in which they are stored.
#[derive(Debug)]
enum Content {
    /// The rows of several tensors, stacked.
    Matrix(Vec<(Part, WeightFormat)>),
    /// The elements of several tensors, concatenated: a single row.
    Vector(Vec<(Part, WeightFormat)>),
    /// Numbers computed from the config: a single row.
    Computed(Vec<f32>),
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
        let mut weights = BTreeMap::new();
        let nesting = Nesting::find(spec.tensors.embedding, |tensor| tensors.contains_key(tensor));
        for Required { name: weight, experts, mut parts } in required(spec) {
            parts.iter_mut().for_each(|part| part.tensor = nesting.of(&part.tensor));
            weights.insert(weight, resolve_weight(experts, parts, name, tensors)?);
        }
        let mut table = Self { weights };
        table.compute_ropes(spec);
        Ok(table)
    }

    /// Computes the rotary frequencies of `spec`.
    pub(super) fn compute_ropes(&mut self, spec: &ModelSpec) {
        for (index, rope) in spec.ropes.iter().enumerate() {
            let frequencies = rope.frequencies(spec.positions_max);
            let columns = u32::try_from(frequencies.len()).expect("a head has few elements");
            let content = Content::Computed(frequencies);
            let weight = Weight { rows: 1, columns, sections: f32_row(), experts: 1, content };
            self.weights.insert(format!("rope.{index}"), weight);
        }
    }

    /// The weight called `name` in the plan.
    pub(super) fn get(&self, name: &str) -> &Weight {
        self.weights.get(name).unwrap_or_else(|| panic!("a plan only names weights of its model's table, not {name}"))
    }

    /// Reads every weight of `plan` in chunks of whole rows and passes them to `write`.
    pub(super) async fn upload<E>(
        &self,
        source: &dyn TensorSource,
        plan: &Plan,
        mut write: impl FnMut(WeightId, u32, Bytes) -> Result<(), E>,
    ) -> Result<(), UploadError<E>> {
        for (id, spec) in (0..).map(WeightId).zip(&plan.weights) {
            let weight = self.get(&spec.name);
            assert_eq!((weight.rows, weight.columns), (spec.rows, spec.columns), "the plan is of this model");
            match &weight.content {
                Content::Computed(values) => {
                    let row = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    write(id, 0, row).map_err(UploadError::Write)?;
                }
                Content::Vector(parts) => {
                    let row = read_vector(source, parts).await?;
                    write(id, 0, row).map_err(UploadError::Write)?;
                }
                Content::Matrix(parts) => {
                    let mut first_row = 0;
                    for part in parts {
                        let mut write_part = |row: u32, rows| write(id, first_row + row, rows);
                        match part.0.order {
                            Order::Rows | Order::Experts => {
                                upload_rows(source, part, weight.columns, &mut write_part).await?;
                            }
                            _ => upload_experts(source, part, weight, &mut write_part).await?,
                        }
                        first_row += part.0.rows();
                    }
                    assert_eq!(first_row, weight.rows, "the parts fill the weight");
                }
            }
        }
        Ok(source.check()?)
    }
}

/// Uploads one tensor. The chunks are the source's own: no copy is made.
async fn upload_rows<E>(
    source: &dyn TensorSource,
    (part, stored): &(Part, WeightFormat),
    columns: u32,
    write: &mut impl FnMut(u32, Bytes) -> Result<(), E>,
) -> Result<(), UploadError<E>> {
    let stored_bytes = stored.row_bytes(columns);
    let rows_max = u32::try_from(CHUNK_BYTES_MAX / stored_bytes).expect("a chunk has few rows").max(1);
    let rows = part.rows();
    let mut row = 0;
    while row < rows {
        let end = rows.min(row + rows_max);
        let bytes = source.read(&part.tensor, u64::from(row) * stored_bytes..u64::from(end) * stored_bytes).await?;
        assert_eq!(bytes.len() as u64, u64::from(end - row) * stored_bytes, "a source returns the range asked for");
        write(row, bytes).map_err(UploadError::Write)?;
        row = end;
    }
    Ok(())
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
        Order::Transposed | Order::TransposedInterleaved => {
            stored.element_bytes().expect("elements that lie as columns have bytes of their own") as usize
        }
        _ => row_bytes,
    };
    let rows = (weight.rows / weight.experts) as usize;
    let chunk_rows = (CHUNK_BYTES_MAX as usize / row_bytes).clamp(1, rows);
    for expert in 0..weight.experts as usize {
        let start = (expert * rows * row_bytes) as u64;
        let stored = source.read(&part.tensor, start..start + (rows * row_bytes) as u64).await?;
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
async fn read_vector(source: &dyn TensorSource, parts: &[(Part, WeightFormat)]) -> Result<Bytes, LoadError> {
    let mut row = Vec::new();
    for (part, stored) in parts {
        let each = part.each();
        let each_bytes = stored.row_bytes(each);
        let bytes = source.read(&part.tensor, 0..u64::from(part.rows() / each) * each_bytes).await?;
        for run in bytes.chunks_exact(each_bytes as usize) {
            let each = each as usize;
            let value = |n| stored.decode(run, each, part.order.stored_row(n, each));
            row.extend((0..each).flat_map(|n| (value(n) * part.factor).to_le_bytes()));
        }
    }
    Ok(row.into())
}

/// The only section of a vector.
fn f32_row() -> Vec<Section> {
    vec![Section { rows: 1, format: WeightFormat::F32 }]
}

/// The weights of the plan by name, each with the checkpoint tensors that form it.
fn required(spec: &ModelSpec) -> Vec<Required> {
    let names = spec.tensors;
    let table = [u64::from(spec.vocab), u64::from(spec.hidden)];
    let whole = |name: &str, tensor: &str, shape: &[u64]| {
        let parts = vec![Part { tensor: tensor.into(), shape: shape.into(), order: Order::Rows, factor: 1.0 }];
        Required { name: name.into(), experts: 1, parts }
    };
    let mut required =
        vec![whole("embedding", names.embedding, &table), whole("final_norm", names.final_norm, &table[1..])];
    if !spec.tied_embeddings {
        required.push(whole("head", names.head, &table));
    }
    if spec.norm.bias {
        required.push(whole("final_norm_bias", names.final_norm_bias, &table[1..]));
    }
    if let Some(columns) = spec.layer_embedding {
        let all = u64::from(columns) * spec.layers.len() as u64;
        let [embedding, projection, norm] = names.layer_embedding;
        required.push(whole("layer_embedding", embedding, &[table[0], all]));
        required.push(whole("layer_projection", projection, &[all, table[1]]));
        required.push(whole("layer_projection_norm", norm, &[u64::from(columns)]));
        required.iter_mut().rev().take(1).for_each(|norm| norm.parts[0].factor = std::f32::consts::FRAC_1_SQRT_2);
    }
    for layer in 0..spec.layers.len() {
        for row in names.layer.iter().copied().flatten() {
            if let Some(sections) = sections(spec, layer, row.weight) {
                let (name, experts) = (format!("layers.{layer}.{}", row.weight), sections.experts);
                let mut parts = layer_parts(row, layer, sections);
                if row.weight == "qkv" && spec.layers[layer].value_is_key {
                    parts[2].tensor = parts[1].tensor.clone();
                }
                required.push(Required { name, experts, parts });
            }
        }
    }
    required
}

/// Pairs a row's tensors with the sections of its weight; a single tensor holds all sections.
fn layer_parts(row: &LayerNames, layer: usize, Sections { experts, mut shapes, factor }: Sections) -> Vec<Part> {
    // A layer that computes q only has no tensors for k and v.
    let names = if shapes.len() == 1 { &row.tensors[..1] } else { row.tensors };
    if names.len() == 1 {
        let rows = shapes.iter().map(|shape| shape[0]).sum();
        shapes.truncate(1);
        shapes[0][0] = rows;
    }
    assert_eq!(names.len(), shapes.len(), "a table names one tensor, or one for each section");
    let order = row.order;
    let tensors = names.iter().map(|name| name.replace("{}", &layer.to_string()));
    if order != Order::Rows {
        let is_transposed = matches!(order, Order::Transposed | Order::TransposedInterleaved);
        let stack = |mut shape: Vec<u64>| {
            if is_transposed {
                shape.reverse();
            }
            shape.insert(0, u64::from(experts));
            shape
        };
        let parts = tensors.zip(shapes.into_iter().map(stack));
        return parts.map(|(tensor, shape)| Part { tensor, shape, order, factor }).collect();
    }
    let all: Vec<(String, Vec<u64>)> = tensors.zip(shapes).collect();
    let of_expert = |expert: u32| {
        let parts = all.iter().map(move |(name, shape)| (name.replace("{e}", &expert.to_string()), shape.clone()));
        parts.map(|(tensor, shape)| Part { tensor, shape, order, factor })
    };
    (0..experts).flat_map(of_expert).collect()
}

/// The sections of `layers.N.<weight>`; `None` if this layer has no such weight.
fn sections(spec: &ModelSpec, layer: usize, weight: &str) -> Option<Sections> {
    let layer = &spec.layers[layer];
    if ["expert_", "router", "shared_", "dense_"].iter().any(|prefix| weight.starts_with(prefix)) {
        let experts = spec.experts.filter(|_| layer.experts)?;
        return expert_sections(spec, &experts, weight);
    }
    if weight.starts_with("convolution") {
        return convolution_sections(spec, layer.kind, weight);
    }
    let of_attention = ["qkv", "q_norm", "k_norm", "sinks", "output"].iter().any(|name| weight.starts_with(name));
    if of_attention && layer.kind != LayerKind::Attention {
        return None;
    }
    let [hidden, mlp, head_dim] = [spec.hidden, layer.mlp, layer.head_dim].map(u64::from);
    let [query, kv] = [spec.query_columns(layer), layer.kv_columns()].map(u64::from);
    let (attention, place) = (&spec.attention, spec.norm.place);
    let is_dense = spec.is_dense(layer);
    let stored = layer.kv_from.is_none();
    let embedded = spec.layer_embedding;
    let qkv = if stored { vec![query, kv, kv] } else { vec![query] };
    let gates = if spec.mlp.gated { vec![mlp, mlp] } else { vec![mlp] };
    let matrices = |rows: &[u64]| rows.iter().map(|&rows| vec![rows, hidden]).collect::<Vec<_>>();
    let vectors = |rows: &[u64]| rows.iter().map(|&rows| vec![rows]).collect::<Vec<_>>();
    let (present, shapes): (bool, Vec<Vec<u64>>) = match weight {
        "attention_norm" => (place.before(), vec![vec![hidden]]),
        "mlp_norm" => (place.before() && place != NormPlace::BeforeBoth, vec![vec![hidden]]),
        "attention_norm_bias" | "mlp_norm_bias" => (spec.norm.bias, vec![vec![hidden]]),
        "attention_post_norm" | "mlp_post_norm" => (place.after(), vec![vec![hidden]]),
        "qkv" => (true, matrices(&qkv)),
        "qkv_bias" => (attention.qkv_bias, vectors(&qkv)),
        "k_norm" if !stored => (false, Vec::new()),
        "q_norm" | "k_norm" => match attention.head_norms {
            HeadNorms::None => (false, Vec::new()),
            HeadNorms::EachHead | HeadNorms::EachHeadRotated => (true, vec![vec![head_dim]]),
            HeadNorms::WholeRow => (true, vec![vec![if weight == "q_norm" { query } else { kv }]]),
        },
        "sinks" => (attention.sinks, vec![vec![u64::from(spec.query_heads)]]),
        "output" => (true, vec![vec![hidden, query]]),
        "output_bias" => (attention.output_bias, vec![vec![hidden]]),
        "gate_up" => (is_dense, matrices(&gates)),
        "gate_up_bias" => (is_dense && spec.mlp.bias, vectors(&gates)),
        "down" => (is_dense, vec![vec![hidden, mlp]]),
        "down_bias" => (is_dense && spec.mlp.bias, vec![vec![hidden]]),
        "xielu" => (true, vec![vec![1], vec![1], vec![], vec![]]),
        "scalar" => (spec.layer_scalar, vec![vec![1]]),
        "layer_gate" => (embedded.is_some(), vec![vec![u64::from(embedded.unwrap_or(0)), hidden]]),
        "layer_output" => (embedded.is_some(), vec![vec![hidden, u64::from(embedded.unwrap_or(0))]]),
        "layer_output_norm" => (embedded.is_some(), vec![vec![hidden]]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    present.then_some(Sections { experts: 1, shapes, factor: 1.0 })
}

/// [`sections`] for weights that only layers with a short convolution have.
fn convolution_sections(spec: &ModelSpec, kind: LayerKind, weight: &str) -> Option<Sections> {
    let convolution = spec.convolution.filter(|_| kind == LayerKind::Convolution)?;
    let [hidden, taps] = [spec.hidden, convolution.taps].map(u64::from);
    let (present, shape) = match weight {
        "convolution_input" => (true, vec![3 * hidden, hidden]),
        "convolution_input_bias" => (convolution.bias, vec![3 * hidden]),
        "convolution" => (true, vec![hidden, 1, taps]),
        "convolution_bias" | "convolution_output_bias" => (convolution.bias, vec![hidden]),
        "convolution_output" => (true, vec![hidden, hidden]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    present.then_some(Sections { experts: 1, shapes: vec![shape], factor: 1.0 })
}

/// [`sections`] for weights that only layers with experts have.
fn expert_sections(spec: &ModelSpec, experts: &ExpertsSpec, weight: &str) -> Option<Sections> {
    let [hidden, count, mlp] = [spec.hidden, experts.count, experts.mlp].map(u64::from);
    let shared = experts.shared.map_or(0, |shared| u64::from(shared.mlp));
    let (present, copies, shapes) = match weight {
        "router" => (true, 1, vec![vec![count, hidden]]),
        "router_bias" => (experts.bias, 1, vec![vec![count]]),
        "router_choice_bias" => (experts.router.choice_bias, 1, vec![vec![count]]),
        "router_scales" => (experts.beside, 1, vec![vec![count]]),
        "router_norm" | "dense_post_norm" | "expert_norm" | "expert_post_norm" => {
            (experts.beside, 1, vec![vec![hidden]])
        }
        "shared_gate" => (experts.shared.is_some_and(|shared| shared.gated), 1, vec![vec![1, hidden]]),
        "shared_gate_up" => (experts.shared.is_some(), 1, vec![vec![shared, hidden], vec![shared, hidden]]),
        "shared_down" => (experts.shared.is_some(), 1, vec![vec![hidden, shared]]),
        "expert_gate_up" => (true, experts.count, vec![vec![mlp, hidden], vec![mlp, hidden]]),
        "expert_gate_up_bias" => (experts.bias, experts.count, vec![vec![mlp], vec![mlp]]),
        "expert_down" => (true, experts.count, vec![vec![hidden, mlp]]),
        "expert_down_bias" => (experts.bias, experts.count, vec![vec![hidden]]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    // The logits of a router with a norm of its own are divided by √hidden.
    let factor = if weight == "router_norm" { (hidden as f64).sqrt().recip() as f32 } else { 1.0 };
    present.then_some(Sections { experts: copies, shapes, factor })
}

/// Every checkpoint tensor that `spec` reads.
pub(super) fn tensors_of(spec: &ModelSpec) -> impl Iterator<Item = Part> {
    required(spec).into_iter().flat_map(|required| required.parts)
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
        return Ok(Weight { rows: 1, columns: rows, sections: f32_row(), experts: 1, content });
    };
    let sections = stored.iter().map(|(part, format)| Section { rows: part.rows(), format: *format }).collect();
    Ok(Weight { rows, columns, sections, experts, content: Content::Matrix(stored) })
}

/// Looks up a tensor, which must have the required shape, and its stored type.
fn find(part: Part, name: &str, tensors: &BTreeMap<String, TensorInfo>) -> Result<(Part, WeightFormat), LoadError> {
    let tensor = part.tensor.clone();
    let Some(TensorInfo { file, shape, element }) = tensors.get(&tensor) else {
        return Err(LoadError::TensorMissing { file: name.into(), tensor });
    };
    let part = if matches!(element, Element::Float(format) if format.is_quantised()) { part.by_rows() } else { part };
    if *shape != part.shape {
        let (found, expected) = (shape.clone(), part.shape.clone());
        return Err(LoadError::TensorShape { file: file.to_string(), tensor, found, expected });
    }
    match element {
        Element::Float(format) => Ok((part, *format)),
        Element::Other(found) => Err(LoadError::TensorType { file: file.to_string(), tensor, found: found.clone() }),
    }
}
