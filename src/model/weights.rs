//! From the names of a checkpoint to the weights of a plan.
//!
//! A [`TensorNames`] table, one per naming scheme, says which tensors make each weight; q, k and v are stacked into one
//! matrix, gate and up into another, so that a plan has one product for each. [`WeightTable`] is the table filled in
//! for one model and checked against what the checkpoint really holds, before anything is read.

use super::source::{Element, TensorInfo, TensorSource};
use super::spec::{ExpertsSpec, HeadNorms, ModelSpec};
use super::{LoadError, UploadError};
use crate::plan::{Plan, Section, WeightFormat, WeightId};
use crate::platform;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Bytes of a chunk of [`WeightTable::upload`], unless one row is longer.
const CHUNK_BYTES_MAX: u64 = 32 << 20;

/// What a family of checkpoints calls its tensors. In the names of a layer, `{}` is the layer's number.
#[derive(Debug, PartialEq)]
pub(super) struct TensorNames {
    embedding: &'static str,
    final_norm: &'static str,
    head: &'static str,
    layer: &'static [&'static [LayerNames]],
}

/// Tensors whose rows, one below the other, make the plan's weight `layers.N.<weight>`. With `{e}` in their names there
/// are as many of them for each expert in turn.
#[derive(Debug, PartialEq)]
struct LayerNames {
    weight: &'static str,
    tensors: &'static [&'static str],
    order: Order,
}

/// How the elements of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As the rows of the weight.
    Rows,
    /// All experts in one tensor, `[experts, rows, columns]`: one below the other.
    Experts,
    /// The same, and the rows of gate and up take turns.
    ExpertsInTurns,
    /// All experts in one tensor, `[experts, columns, rows]`; a bias is `[experts, rows]`.
    Transposed,
    /// The same, and the rows of gate and up take turns.
    TransposedInTurns,
}

const fn names(weight: &'static str, tensors: &'static [&'static str]) -> LayerNames {
    LayerNames { weight, tensors, order: Order::Rows }
}

const fn stacked(weight: &'static str, tensors: &'static [&'static str], order: Order) -> LayerNames {
    LayerNames { weight, tensors, order }
}

/// q, k and v stacked, and the output projection.
const ATTENTION: &[LayerNames] = &[
    names(
        "qkv",
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
        ],
    ),
    names(
        "qkv_bias",
        &[
            "model.layers.{}.self_attn.q_proj.bias",
            "model.layers.{}.self_attn.k_proj.bias",
            "model.layers.{}.self_attn.v_proj.bias",
        ],
    ),
    names("q_norm", &["model.layers.{}.self_attn.q_norm.weight"]),
    names("k_norm", &["model.layers.{}.self_attn.k_norm.weight"]),
    names("output", &["model.layers.{}.self_attn.o_proj.weight"]),
    names("output_bias", &["model.layers.{}.self_attn.o_proj.bias"]),
];

/// Gate and up stacked, and down.
const GATED_MLP: &[LayerNames] = &[
    names("gate_up", &["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"]),
    names("gate_up_bias", &["model.layers.{}.mlp.gate_proj.bias", "model.layers.{}.mlp.up_proj.bias"]),
    names("down", &["model.layers.{}.mlp.down_proj.weight"]),
    names("down_bias", &["model.layers.{}.mlp.down_proj.bias"]),
];

/// [`ATTENTION`], stacked in the checkpoint already.
const FUSED_ATTENTION: &[LayerNames] = &[
    names("qkv", &["model.layers.{}.self_attn.qkv_proj.weight"]),
    names("output", &["model.layers.{}.self_attn.o_proj.weight"]),
];

/// [`GATED_MLP`], stacked in the checkpoint already.
const FUSED_MLP: &[LayerNames] = &[
    names("gate_up", &["model.layers.{}.mlp.gate_up_proj.weight"]),
    names("down", &["model.layers.{}.mlp.down_proj.weight"]),
];

/// A norm before attention and one before the MLP.
const NORMS_BEFORE: &[LayerNames] = &[
    names("attention_norm", &["model.layers.{}.input_layernorm.weight"]),
    names("mlp_norm", &["model.layers.{}.post_attention_layernorm.weight"]),
];

/// Norms on both sides of attention and of the MLP.
const NORMS_AROUND: &[LayerNames] = &[
    names("attention_norm", &["model.layers.{}.input_layernorm.weight"]),
    names("attention_post_norm", &["model.layers.{}.post_attention_layernorm.weight"]),
    names("mlp_norm", &["model.layers.{}.pre_feedforward_layernorm.weight"]),
    names("mlp_post_norm", &["model.layers.{}.post_feedforward_layernorm.weight"]),
];

/// A norm after attention and one after the MLP.
const NORMS_AFTER: &[LayerNames] = &[
    names("attention_post_norm", &["model.layers.{}.post_attention_layernorm.weight"]),
    names("mlp_post_norm", &["model.layers.{}.post_feedforward_layernorm.weight"]),
];

/// Experts with tensors of their own: three matrices each, and in GGUF perhaps biases.
const EXPERTS_APART: &[LayerNames] = &[
    names("router", &["model.layers.{}.mlp.gate.weight"]),
    names("router_bias", &["model.layers.{}.mlp.gate.bias"]),
    names(
        "expert_gate_up_bias",
        &["model.layers.{}.mlp.experts.{e}.gate_proj.bias", "model.layers.{}.mlp.experts.{e}.up_proj.bias"],
    ),
    names("expert_down_bias", &["model.layers.{}.mlp.experts.{e}.down_proj.bias"]),
    names(
        "expert_gate_up",
        &["model.layers.{}.mlp.experts.{e}.gate_proj.weight", "model.layers.{}.mlp.experts.{e}.up_proj.weight"],
    ),
    names("expert_down", &["model.layers.{}.mlp.experts.{e}.down_proj.weight"]),
];

/// Experts of gpt-oss: all in one tensor.
const GPT_OSS_EXPERTS: &[LayerNames] = &[
    names("router", &["model.layers.{}.mlp.router.weight"]),
    names("router_bias", &["model.layers.{}.mlp.router.bias"]),
    stacked("expert_gate_up", &["model.layers.{}.mlp.experts.gate_up_proj"], Order::TransposedInTurns),
    stacked("expert_gate_up_bias", &["model.layers.{}.mlp.experts.gate_up_proj_bias"], Order::TransposedInTurns),
    stacked("expert_down", &["model.layers.{}.mlp.experts.down_proj"], Order::Transposed),
    stacked("expert_down_bias", &["model.layers.{}.mlp.experts.down_proj_bias"], Order::Transposed),
];

const SINKS: &[LayerNames] = &[names("sinks", &["model.layers.{}.self_attn.sinks"])];

const SINKS_APART: &[LayerNames] = &[names("sinks", &["model.layers.{}.self_attn.sinks.weight"])];

/// The scheme of Llama and most others.
pub(super) const HUGGING_FACE: TensorNames = TensorNames {
    embedding: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
    layer: &[NORMS_BEFORE, ATTENTION, GATED_MLP],
};

/// Gemma 2 and 3.
pub(super) const GEMMA: TensorNames = TensorNames { layer: &[NORMS_AROUND, ATTENTION, GATED_MLP], ..HUGGING_FACE };

/// Phi 3: one tensor for q, k and v, one for gate and up.
pub(super) const PHI3: TensorNames = TensorNames { layer: &[NORMS_BEFORE, FUSED_ATTENTION, FUSED_MLP], ..HUGGING_FACE };

/// OLMo 2.
pub(super) const OLMO2: TensorNames = TensorNames { layer: &[NORMS_AFTER, ATTENTION, GATED_MLP], ..HUGGING_FACE };

/// Qwen 3 with experts; some layers may have one MLP.
pub(super) const QWEN3_MOE: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, GATED_MLP, EXPERTS_APART], ..HUGGING_FACE };

/// gpt-oss, in 16 bits or MXFP4.
pub(super) const GPT_OSS: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, SINKS, GPT_OSS_EXPERTS], ..HUGGING_FACE };

/// gpt-oss in GGUF.
const GPT_OSS_APART: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, SINKS_APART, EXPERTS_APART], ..HUGGING_FACE };

impl TensorNames {
    /// The names of the same weights where experts have tensors of their own, as in GGUF.
    pub(super) fn with_experts_apart(&'static self) -> &'static Self {
        if *self == GPT_OSS { &GPT_OSS_APART } else { self }
    }
}

/// One tensor of a checkpoint, as a weight needs it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) tensor: String,
    pub(super) shape: Vec<u64>,
    order: Order,
}

impl Part {
    /// Rows of the weight that it holds, or elements if the weight is a vector.
    fn rows(&self) -> u32 {
        let rows = match (self.order, &self.shape[..]) {
            (Order::Rows, [rows, ..]) => *rows,
            (Order::Experts | Order::ExpertsInTurns, [experts, rows, ..]) => experts * rows,
            (_, [experts, .., rows]) => experts * rows,
            _ => unreachable!("a tensor has a shape"),
        };
        u32::try_from(rows).expect("the rows of a weight fit 32 bits")
    }

    /// Elements of a vector that one expert has.
    fn each(&self) -> u32 {
        let experts = if self.order == Order::Rows { 1 } else { self.shape[0] };
        u32::try_from(u64::from(self.rows()) / experts).expect("a part is smaller than the whole")
    }

    /// Elements of a row; `None`: the weight is a vector.
    fn columns(&self) -> Option<u32> {
        let columns = match (self.order, &self.shape[..]) {
            (Order::Rows, [_, columns])
            | (Order::Experts | Order::ExpertsInTurns, [_, _, columns])
            | (Order::Transposed | Order::TransposedInTurns, [_, columns, _]) => *columns,
            _ => return None,
        };
        Some(u32::try_from(columns).expect("a dimension of the spec fits 32 bits"))
    }

    /// As quantised checkpoints have it: matrices that others store by columns are stored by rows.
    fn by_rows(mut self) -> Self {
        if let [experts, columns, rows] = self.shape[..] {
            self.shape = vec![experts, rows, columns];
            self.order = match self.order {
                Order::Transposed => Order::Experts,
                Order::TransposedInTurns => Order::ExpertsInTurns,
                other => other,
            };
        }
        self
    }
}

/// One weight of the plan, and the tensors that make it.
struct Wanted {
    name: String,
    experts: u32,
    parts: Vec<Part>,
}

/// Shapes that make a weight, one below the other, and all of them again for each expert.
struct Sections {
    experts: u32,
    shapes: Vec<Vec<u64>>,
}

/// Where a weight comes from. Tensors stand with the format each is stored in.
#[derive(Debug)]
enum Content {
    /// The rows of several tensors, one below the other.
    Matrix(Vec<(Part, WeightFormat)>),
    /// The elements of several tensors, one after the other: a single row.
    Vector(Vec<(Part, WeightFormat)>),
    /// Numbers worked out from the config: a single row.
    Computed(Vec<f32>),
}

/// One weight of the plan to be.
#[derive(Debug)]
pub(super) struct Weight {
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) sections: Vec<Section>,
    /// Experts whose rows lie one below the other; 1 for other weights.
    pub(super) experts: u32,
    content: Content,
}

/// All weights of a model by their names in the plan.
#[derive(Debug)]
pub(super) struct WeightTable {
    weights: BTreeMap<String, Weight>,
}

impl WeightTable {
    /// Finds every weight of `spec` among the tensors that the file `name` lists.
    pub(super) fn resolve(
        spec: &ModelSpec,
        name: &str,
        tensors: &BTreeMap<String, TensorInfo>,
    ) -> Result<Self, LoadError> {
        let mut weights = BTreeMap::new();
        for Wanted { name: weight, experts, parts } in wanted(spec) {
            weights.insert(weight, resolve_weight(experts, parts, name, tensors)?);
        }
        for (index, rope) in spec.ropes.iter().enumerate() {
            let frequencies = rope.frequencies();
            let columns = u32::try_from(frequencies.len()).expect("a head has at most 256 elements");
            let content = Content::Computed(frequencies);
            let weight = Weight { rows: 1, columns, sections: f32_row(), experts: 1, content };
            weights.insert(format!("rope.{index}"), weight);
        }
        Ok(Self { weights })
    }

    /// The weight called `name` in the plan.
    pub(super) fn get(&self, name: &str) -> &Weight {
        self.weights.get(name).unwrap_or_else(|| panic!("a plan only names weights of its model's table, not {name}"))
    }

    /// Reads every weight of `plan` in chunks of whole rows and hands them to `write`.
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

/// Uploads one tensor. The chunks are what the source returns: no copy.
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

/// Uploads a tensor of all experts whose rows are not those of the weight: they lie as columns, or take turns.
async fn upload_experts<E>(
    source: &dyn TensorSource,
    (part, stored): &(Part, WeightFormat),
    weight: &Weight,
    write: &mut impl FnMut(u32, Bytes) -> Result<(), E>,
) -> Result<(), UploadError<E>> {
    let row_bytes = stored.row_bytes(weight.columns) as usize;
    // What lies together: an element, or a whole row.
    let size = match part.order {
        Order::Transposed | Order::TransposedInTurns => {
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

impl Order {
    /// Where row `row` of `rows` of an expert is stored.
    fn stored_row(self, row: usize, rows: usize) -> usize {
        match self {
            Self::Rows | Self::Experts | Self::Transposed => row,
            Self::ExpertsInTurns | Self::TransposedInTurns => row % (rows / 2) * 2 + row / (rows / 2),
        }
    }
}

/// A vector, widened to f32.
async fn read_vector(source: &dyn TensorSource, parts: &[(Part, WeightFormat)]) -> Result<Bytes, LoadError> {
    let mut row = Vec::new();
    for (part, stored) in parts {
        let each = part.each();
        let each_bytes = stored.row_bytes(each);
        let bytes = source.read(&part.tensor, 0..u64::from(part.rows() / each) * each_bytes).await?;
        for run in bytes.chunks_exact(each_bytes as usize) {
            let each = each as usize;
            let value = |n| stored.decode(run, each, part.order.stored_row(n, each));
            row.extend((0..each).flat_map(|n| value(n).to_le_bytes()));
        }
    }
    Ok(row.into())
}

/// The one section of a vector.
fn f32_row() -> Vec<Section> {
    vec![Section { rows: 1, format: WeightFormat::F32 }]
}

/// Weights of the plan by name, each with the tensors of the checkpoint that make it.
fn wanted(spec: &ModelSpec) -> Vec<Wanted> {
    let names = spec.tensors;
    let table = [u64::from(spec.vocab), u64::from(spec.hidden)];
    let whole = |name: &str, tensor: &str, shape: &[u64]| {
        let parts = vec![Part { tensor: tensor.into(), shape: shape.into(), order: Order::Rows }];
        Wanted { name: name.into(), experts: 1, parts }
    };
    let mut wanted =
        vec![whole("embedding", names.embedding, &table), whole("final_norm", names.final_norm, &table[1..])];
    if !spec.tied_embeddings {
        wanted.push(whole("head", names.head, &table));
    }
    for layer in 0..spec.layers.len() {
        for row in names.layer.iter().copied().flatten() {
            if let Some(sections) = sections(spec, layer, row.weight) {
                let (name, experts) = (format!("layers.{layer}.{}", row.weight), sections.experts);
                wanted.push(Wanted { name, experts, parts: layer_parts(row, layer, sections) });
            }
        }
    }
    wanted
}

/// Pairs the tensors of a row with the sections of its weight; a single tensor holds all sections.
fn layer_parts(row: &LayerNames, layer: usize, Sections { experts, mut shapes }: Sections) -> Vec<Part> {
    if row.tensors.len() == 1 {
        let rows = shapes.iter().map(|shape| shape[0]).sum();
        shapes.truncate(1);
        shapes[0][0] = rows;
    }
    assert_eq!(row.tensors.len(), shapes.len(), "a table names one tensor, or one for each section");
    let order = row.order;
    let tensors = row.tensors.iter().map(|name| name.replace("{}", &layer.to_string()));
    if order != Order::Rows {
        let stack = |shape: Vec<u64>| std::iter::once(u64::from(experts)).chain(shape.into_iter().rev()).collect();
        let parts = tensors.zip(shapes.into_iter().map(stack));
        return parts.map(|(tensor, shape)| Part { tensor, shape, order }).collect();
    }
    let all: Vec<(String, Vec<u64>)> = tensors.zip(shapes).collect();
    let of_expert = |expert: u32| {
        let parts = all.iter().map(move |(name, shape)| (name.replace("{e}", &expert.to_string()), shape.clone()));
        parts.map(|(tensor, shape)| Part { tensor, shape, order })
    };
    (0..experts).flat_map(of_expert).collect()
}

/// What makes `layers.N.<weight>`; `None` if this layer has no such weight.
fn sections(spec: &ModelSpec, layer: usize, weight: &str) -> Option<Sections> {
    if weight.starts_with("expert_") || weight.starts_with("router") {
        let experts = spec.experts.filter(|_| spec.layers[layer].experts)?;
        return expert_sections(spec, &experts, weight);
    }
    let [hidden, mlp, head_dim] = [spec.hidden, spec.mlp, spec.head_dim].map(u64::from);
    let [query, kv] = [spec.query_columns(), spec.kv_columns()].map(u64::from);
    let (attention, place) = (&spec.attention, spec.norm.place);
    let is_dense = !spec.layers[layer].experts;
    let (present, shapes): (bool, Vec<Vec<u64>>) = match weight {
        "attention_norm" | "mlp_norm" => (place.before(), vec![vec![hidden]]),
        "attention_post_norm" | "mlp_post_norm" => (place.after(), vec![vec![hidden]]),
        "qkv" => (true, [query, kv, kv].map(|rows| vec![rows, hidden]).into()),
        "qkv_bias" => (attention.qkv_bias, [query, kv, kv].map(|rows| vec![rows]).into()),
        "q_norm" | "k_norm" => match attention.head_norms {
            HeadNorms::None => (false, Vec::new()),
            HeadNorms::EachHead => (true, vec![vec![head_dim]]),
            HeadNorms::WholeRow => (true, vec![vec![if weight == "q_norm" { query } else { kv }]]),
        },
        "sinks" => (attention.sinks, vec![vec![u64::from(spec.query_heads)]]),
        "output" => (true, vec![vec![hidden, query]]),
        "output_bias" => (attention.output_bias, vec![vec![hidden]]),
        "gate_up" => (is_dense, [mlp, mlp].map(|rows| vec![rows, hidden]).into()),
        "gate_up_bias" => (is_dense && spec.mlp_bias, [mlp, mlp].map(|rows| vec![rows]).into()),
        "down" => (is_dense, vec![vec![hidden, mlp]]),
        "down_bias" => (is_dense && spec.mlp_bias, vec![vec![hidden]]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    present.then_some(Sections { experts: 1, shapes })
}

/// [`sections`] of the weights that only a layer with experts has.
fn expert_sections(spec: &ModelSpec, experts: &ExpertsSpec, weight: &str) -> Option<Sections> {
    let [hidden, count, mlp] = [spec.hidden, experts.count, experts.mlp].map(u64::from);
    let (present, copies, shapes) = match weight {
        "router" => (true, 1, vec![vec![count, hidden]]),
        "router_bias" => (experts.bias, 1, vec![vec![count]]),
        "expert_gate_up" => (true, experts.count, vec![vec![mlp, hidden], vec![mlp, hidden]]),
        "expert_gate_up_bias" => (experts.bias, experts.count, vec![vec![mlp], vec![mlp]]),
        "expert_down" => (true, experts.count, vec![vec![hidden, mlp]]),
        "expert_down_bias" => (experts.bias, experts.count, vec![vec![hidden]]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    present.then_some(Sections { experts: copies, shapes })
}

/// Every tensor of the checkpoint that `spec` reads.
pub(super) fn tensors_of(spec: &ModelSpec) -> impl Iterator<Item = Part> {
    wanted(spec).into_iter().flat_map(|wanted| wanted.parts)
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

/// A tensor as it is stored, which must be in the shape wanted.
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
