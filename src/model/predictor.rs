//! Layers that predict further tokens (MTP): found by their tensors, and added to a model that is asked to draft.
//!
//! Row i of a predictor joins the row that the model's last norm gives for token i with the embedding of token i + 1,
//! and proposes token i + 2; its own row, after its own last norm, stands for the model's when it goes on. Its layers
//! are like those of the family with attention; embedding and LM head are the model's. Published checkpoints say
//! different things about them in `config.json`, or nothing; so their tensors decide.

use super::error::LoadError;
use super::source::TensorInfo;
use super::spec::{LayerKind, LayerSpec, ModelSpec};
use super::tensor_names::{Nesting, PredictorNames};
use std::collections::{BTreeMap, BTreeSet};

/// Tensors of a predictor that are read elsewhere: copies of the model's embedding and head, and rotary frequencies.
const COPIES: [&str; 3] = [
    ".embed_tokens.weight",
    ".shared_head.head.weight",
    ".rotary_emb.inv_freq",
];

/// The predictor of a checkpoint.
#[derive(Debug)]
pub(super) struct Predictor {
    /// The model's, with the predictor's layers after its own.
    pub(super) spec: ModelSpec,
    /// Index of its first layer.
    pub(super) first: usize,
    names: &'static PredictorNames,
    nesting: Nesting,
}

impl Predictor {
    /// The predictor of a checkpoint with these tensors; `None` if it has none that is known.
    pub(super) fn find(spec: &ModelSpec, tensors: &BTreeMap<String, TensorInfo>) -> Option<Self> {
        let first = spec.layers.len();
        let (names, nesting) = spec.tensors.predictors.iter().find_map(|names| {
            let join = numbered(names.join, first);
            let nesting = Nesting::find(&join, |name| tensors.contains_key(name));
            let is_there = tensors.contains_key(&nesting.of(&join));
            is_there.then_some((names, nesting))
        })?;
        let layers = [&spec.layers[..], &layers_of(spec)?].concat();
        Some(Self {
            spec: ModelSpec {
                layers,
                ..spec.clone()
            },
            first,
            names,
            nesting,
        })
    }

    /// Tensors and shapes of what is outside its layers, by their names in a plan.
    pub(super) fn outside_layers(&self) -> [(&'static str, String, Vec<u64>); 4] {
        let hidden = u64::from(self.spec.hidden);
        let names = self.names;
        [
            (TOKEN_NORM, names.token_norm, vec![hidden]),
            (ROW_NORM, names.row_norm, vec![hidden]),
            (JOIN, names.join, vec![hidden, 2 * hidden]),
            (NORM, names.norm, vec![hidden]),
        ]
        .map(|(weight, name, shape)| (weight, self.tensor(name), shape))
    }

    /// What the checkpoint calls one of its tensors: a name from the table of predictors, or one of a layer as the
    /// family's table has it.
    pub(super) fn tensor(&self, name: &str) -> String {
        let numbered = numbered(name, self.first);
        let renamed = self
            .names
            .layers
            .and_then(|prefixes| renamed(&numbered, prefixes, self.first));
        self.nesting.of(&renamed.unwrap_or(numbered))
    }

    /// Fails if the checkpoint has a tensor of a predictor that is not among those `read`: it would be another one.
    pub(super) fn refuse_unread(
        &self,
        file: &str,
        read: &BTreeSet<String>,
        tensors: &BTreeMap<String, TensorInfo>,
    ) -> Result<(), LoadError> {
        let join = self.tensor(self.names.join);
        let is_own = |name: &str| match (self.names.layers, join.split_once("mtp.")) {
            (Some(_), Some((prefix, _))) => name
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with("mtp.")),
            _ => is_beyond(name, self.first as u64),
        };
        let unread = tensors.keys().find(|name| {
            is_own(name) && !read.contains(*name) && !COPIES.iter().any(|copy| name.ends_with(copy))
        });
        match unread {
            None => Ok(()),
            Some(name) => Err(LoadError::Field {
                file: file.to_owned(),
                field: format!("tensor {name:?}"),
                message: "is not known of layers that predict further tokens; leave out the method \"mtp\" of \
                          --speculative-config"
                    .to_owned(),
            }),
        }
    }
}

/// Names in a plan.
pub(super) const TOKEN_NORM: &str = "predictor.token_norm";
pub(super) const ROW_NORM: &str = "predictor.row_norm";
pub(super) const JOIN: &str = "predictor.join";
pub(super) const NORM: &str = "predictor.norm";

/// The layers of a predictor: one like the model's last layer with attention; where that has no MLP, then one like the
/// last that has experts alone.
fn layers_of(spec: &ModelSpec) -> Option<Vec<LayerSpec>> {
    let last = |is_like: fn(&LayerSpec) -> bool| {
        let mut layers = spec.layers.iter().rev();
        layers.find(|layer| is_like(layer)).copied()
    };
    let attention = last(|layer| layer.kind == LayerKind::Attention)?;
    if attention.has_feed_forward() {
        return Some(vec![attention]);
    }
    let experts = last(|layer| layer.kind == LayerKind::FeedForward && layer.experts)?;
    Some(vec![attention, experts])
}

fn numbered(name: &str, first: usize) -> String {
    name.replace("{}", &first.to_string())
}

/// The name of a tensor of a layer, with another prefix and the layer's number counted from `first`.
fn renamed(name: &str, [of_model, own]: [&str; 2], first: usize) -> Option<String> {
    let (number, rest) = name.strip_prefix(of_model)?.split_once('.')?;
    let layer = number.parse::<usize>().ok()?.checked_sub(first)?;
    Some(format!("{own}{layer}.{rest}"))
}

/// Whether a tensor is of a layer after the last.
pub(super) fn is_beyond(name: &str, layers: u64) -> bool {
    let layer = [".layers.", "blk."].into_iter().find_map(|prefix| {
        let (_, rest) = name.split_once(prefix)?;
        rest.split('.').next()?.parse::<u64>().ok()
    });
    layer.is_some_and(|layer| layer >= layers)
}
