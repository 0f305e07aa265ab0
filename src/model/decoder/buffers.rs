//! The row buffers of a decoder's plan.

use super::super::spec::{LatentSpec, ModelSpec, NormPlace, Projector};
use crate::plan::{BufferId, Plan, Rows, Storage};
use std::collections::{BTreeMap, BTreeSet};

/// The row buffers of a plan, shared by all layers. Those whose width depends on the layer are found by their columns.
pub(super) struct Buffers {
    /// Residual stream.
    pub(super) x: BufferId,
    pub(super) normed: BufferId,
    /// The other buffer of a stream whose norms are part of it, or that begins with one.
    pub(super) other: Option<BufferId>,
    /// q and k of rows that see each other, rotated.
    pub(super) rotated: BTreeMap<u32, BufferId>,
    pub(super) qkv: BTreeMap<u32, BufferId>,
    pub(super) q: BTreeMap<u32, BufferId>,
    pub(super) attended: BTreeMap<u32, BufferId>,
    /// Buffers of latent attention, besides `q` and `attended`.
    pub(super) latent: Option<LatentBuffers>,
    /// Gates and values of short convolutions, and their results.
    pub(super) convolution: Option<[BufferId; 2]>,
    /// Buffers of layers with a recurrent state.
    pub(super) state: Option<StateBuffers>,
    /// Buffers of layers with one MLP, by its size.
    pub(super) dense: BTreeMap<u32, MlpBuffers>,
    /// Buffers of layers with experts.
    pub(super) experts: Option<ExpertBuffers>,
    /// A branch's output before its norm; `None`: it is added to `x` at once.
    pub(super) branch: Option<BufferId>,
    /// The sum of MLP and experts, if a layer has both.
    pub(super) combined: Option<BufferId>,
    /// Embeddings that layers have of their own.
    pub(super) layer_embedding: Option<LayerEmbeddingBuffers>,
    /// Buffers of the LM head.
    pub(super) head: Option<HeadBuffers>,
    /// Buffers of a tower's ends.
    pub(super) tower: Option<TowerBuffers>,
}

#[derive(Clone, Copy)]
pub(super) struct TowerBuffers {
    /// The numbers of patches.
    pub(super) patches: BufferId,
    /// Rows that become one, side by side.
    pub(super) merged: BufferId,
    /// What they become.
    pub(super) rows: BufferId,
    /// Rows between products that turn the merged rows into them.
    pub(super) projected: Option<ProjectedBuffers>,
}

#[derive(Clone, Copy)]
pub(super) struct ProjectedBuffers {
    /// A merged row as long as the tower's.
    pub(super) merged: BufferId,
    /// What the first product of the MLP returns, and its activation.
    pub(super) mlp: MlpBuffers,
}

#[derive(Clone, Copy)]
pub(super) struct PredictorBuffers {
    /// What a batch leaves for the predictor: normed rows, of the model or of the predictor itself.
    pub(super) carried: BufferId,
    /// Normed rows of tokens beside normed rows before them.
    pub(super) joined: BufferId,
}

#[derive(Clone, Copy)]
pub(super) struct HeadBuffers {
    /// The rows of `x` to sample from.
    pub(super) sampled: BufferId,
    pub(super) sampled_normed: BufferId,
    pub(super) logits: BufferId,
}

#[derive(Clone, Copy)]
pub(super) struct StateBuffers {
    /// Channels, z and gates.
    pub(super) mixed: BufferId,
    pub(super) convolved: BufferId,
    pub(super) scanned: BufferId,
    pub(super) gated: BufferId,
}

#[derive(Clone, Copy)]
pub(super) struct LatentBuffers {
    /// The latent of q, and its norm.
    pub(super) query_latent: Option<[BufferId; 2]>,
    pub(super) query: BufferId,
    /// The part of q that was multiplied by the projection of keys.
    pub(super) absorbed: BufferId,
    pub(super) latent: BufferId,
    pub(super) values: BufferId,
}

#[derive(Clone, Copy)]
pub(super) struct MlpBuffers {
    /// Gate and up, or up alone.
    pub(super) gate_up: BufferId,
    pub(super) activated: BufferId,
}

#[derive(Clone, Copy)]
pub(super) struct ExpertBuffers {
    /// One logit per expert.
    pub(super) router: BufferId,
    pub(super) routes: BufferId,
    /// One row per route.
    pub(super) mlp: MlpBuffers,
    /// What experts between projections read and write.
    pub(super) latent: Option<[BufferId; 2]>,
    /// The MLP that every token passes besides.
    pub(super) shared: Option<MlpBuffers>,
    /// The logit of the shared MLP, and the route to it.
    pub(super) shared_gate: Option<[BufferId; 2]>,
}

#[derive(Clone, Copy)]
pub(super) struct LayerEmbeddingBuffers {
    /// The embeddings of all layers.
    pub(super) all: BufferId,
    /// The part of them that is computed from the model's embedding.
    pub(super) projected: BufferId,
    pub(super) gate: BufferId,
    pub(super) activated: BufferId,
}

/// Declares a buffer for each of these widths, in ascending order, with the names in order.
fn by_columns(
    plan: &mut Plan,
    names: &[&'static str],
    columns: impl Iterator<Item = u32>,
    activations: Storage,
) -> BTreeMap<u32, BufferId> {
    let columns: BTreeSet<u32> = columns.collect();
    assert!(columns.len() <= names.len(), "layers are of few kinds");
    let named = names.iter().zip(columns);
    named
        .map(|(name, columns)| {
            let buffer = plan.buffer(name, Rows::Tokens, columns, activations);
            (columns, buffer)
        })
        .collect()
}

/// The buffers of attention, by their columns.
struct AttentionBuffers {
    rotated: BTreeMap<u32, BufferId>,
    qkv: BTreeMap<u32, BufferId>,
    q: BTreeMap<u32, BufferId>,
    attended: BTreeMap<u32, BufferId>,
}

impl AttentionBuffers {
    fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Self {
        let attending = || spec.layers.iter().filter(|layer| layer.kind.attends());
        let query = || attending().map(|layer| spec.query_columns(layer));
        let qkv = || attending().map(|layer| spec.qkv_columns(layer));
        Self {
            qkv: match spec.latent {
                Some(_) => BTreeMap::new(),
                None => by_columns(plan, &QKV, qkv(), activations),
            },
            q: if spec.is_encoder() {
                BTreeMap::new()
            } else {
                by_columns(plan, &Q, query(), activations)
            },
            rotated: by_columns(
                plan,
                &ROTATED,
                attending()
                    .filter(|layer| spec.is_encoder() && layer.rope.is_some())
                    .map(|layer| spec.query_columns(layer) + layer.kv_columns()),
                activations,
            ),
            attended: by_columns(plan, &ATTENDED, query(), activations),
        }
    }
}

impl PredictorBuffers {
    pub(super) fn new(plan: &mut Plan, hidden: u32, activations: Storage) -> Self {
        Self {
            carried: plan.buffer("carried", Rows::Tokens, hidden, activations),
            joined: plan.buffer("joined", Rows::Tokens, 2 * hidden, activations),
        }
    }
}

impl MlpBuffers {
    /// The columns of both buffers, for an MLP of this size.
    fn columns(spec: &ModelSpec, mlp: u32) -> [u32; 2] {
        [if spec.mlp.gated { 2 * mlp } else { mlp }, mlp]
    }

    fn new(
        plan: &mut Plan,
        names: [&'static str; 2],
        rows: Rows,
        [gate_up, mlp]: [u32; 2],
        storage: Storage,
    ) -> Self {
        let gate_up = plan.buffer(names[0], rows, gate_up, storage);
        Self {
            gate_up,
            activated: plan.buffer(names[1], rows, mlp, storage),
        }
    }
}

/// Names of buffers of each kind of layer.
const QKV: [&str; 4] = ["qkv", "qkv_2", "qkv_3", "qkv_4"];
const Q: [&str; 4] = ["q", "q_2", "q_3", "q_4"];
const ROTATED: [&str; 2] = ["rotated", "rotated_2"];
const ATTENDED: [&str; 4] = ["attended", "attended_2", "attended_3", "attended_4"];
const MLP: [[&str; 2]; 2] = [["gate_up", "activated"], ["gate_up_2", "activated_2"]];

impl Buffers {
    pub(super) fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Self {
        let x = plan.buffer("x", Rows::Tokens, spec.hidden, Storage::F32);
        let normed = plan.buffer("normed", Rows::Tokens, spec.hidden, activations);
        let has_other = spec.norm.embedding
            || spec
                .layers
                .iter()
                .any(|layer| layer.norms == NormPlace::AfterSum);
        let other = has_other.then(|| plan.buffer("x_2", Rows::Tokens, spec.hidden, Storage::F32));
        let AttentionBuffers {
            rotated,
            qkv,
            q,
            attended,
        } = AttentionBuffers::new(plan, spec, activations);
        let latent = spec
            .latent
            .map(|latent| LatentBuffers::new(plan, spec.query_heads, &latent, activations));
        let after = spec
            .layers
            .iter()
            .any(|layer| layer.norms.after() && layer.norms != NormPlace::AfterSum);
        let beside = spec.experts.is_some_and(|experts| experts.beside);
        Self {
            x,
            normed,
            other,
            rotated,
            qkv,
            q,
            attended,
            latent,
            convolution: convolution(plan, spec, activations),
            dense: dense(plan, spec, activations),
            state: StateBuffers::new(plan, spec, activations),
            experts: ExpertBuffers::new(plan, spec, activations),
            branch: after.then(|| plan.buffer("branch", Rows::Tokens, spec.hidden, activations)),
            combined: beside
                .then(|| plan.buffer("combined", Rows::Tokens, spec.hidden, activations)),
            layer_embedding: LayerEmbeddingBuffers::new(plan, spec, activations),
            head: (!spec.is_encoder()).then(|| HeadBuffers::new(plan, spec, activations)),
            tower: TowerBuffers::new(plan, spec, activations),
        }
    }
}

impl HeadBuffers {
    fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Self {
        let mut samples =
            |name, columns, storage| plan.buffer(name, Rows::Samples, columns, storage);
        Self {
            sampled: samples("sampled", spec.hidden, Storage::F32),
            sampled_normed: samples("sampled_normed", spec.hidden, activations),
            logits: samples("logits", spec.vocab, Storage::F32),
        }
    }
}

impl TowerBuffers {
    fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Option<Self> {
        let tower = spec.tower?;
        let merged = tower.merged * spec.hidden;
        Some(Self {
            patches: plan.buffer("patches", Rows::Tokens, tower.columns(), activations),
            merged: plan.buffer("merged", Rows::Samples, merged, activations),
            rows: plan.buffer("rows", Rows::Samples, tower.out, Storage::F32),
            projected: match tower.projector {
                Projector::Product => None,
                Projector::MergeAndMlp(between) => Some(ProjectedBuffers {
                    merged: plan.buffer("row", Rows::Samples, spec.hidden, activations),
                    mlp: MlpBuffers::new(
                        plan,
                        ["projected", "projected_activated"],
                        Rows::Samples,
                        [between; 2],
                        activations,
                    ),
                }),
            },
        })
    }
}

fn convolution(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Option<[BufferId; 2]> {
    spec.convolution?;
    let buffers = [("gated", 3 * spec.hidden), ("convolved", spec.hidden)];
    Some(buffers.map(|(name, columns)| plan.buffer(name, Rows::Tokens, columns, activations)))
}

/// The buffers of MLPs, for each of their sizes.
fn dense(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> BTreeMap<u32, MlpBuffers> {
    let dense = spec.layers.iter().filter(|layer| spec.is_dense(layer));
    let sizes: BTreeSet<u32> = dense.map(|layer| layer.mlp).collect();
    assert!(sizes.len() <= MLP.len(), "layers have few sizes of MLPs");
    let named = MLP.into_iter().zip(sizes);
    named
        .map(|(names, mlp)| {
            let columns = MlpBuffers::columns(spec, mlp);
            let buffers = MlpBuffers::new(plan, names, Rows::Tokens, columns, activations);
            (mlp, buffers)
        })
        .collect()
}

impl StateBuffers {
    fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Option<Self> {
        let state = spec.state?;
        let mut tokens = |name, columns| plan.buffer(name, Rows::Tokens, columns, activations);
        Some(Self {
            mixed: tokens("state_mixed", state.mixed()),
            convolved: tokens("state_convolved", state.channels()),
            scanned: tokens("state_scanned", state.values()),
            gated: tokens("state_gated", state.values()),
        })
    }
}

impl LatentBuffers {
    fn new(plan: &mut Plan, heads: u32, spec: &LatentSpec, activations: Storage) -> Self {
        let mut tokens = |name, columns| plan.buffer(name, Rows::Tokens, columns, activations);
        Self {
            query_latent: spec
                .query_rank
                .map(|rank| [tokens("query_latent", rank), tokens("query_normed", rank)]),
            query: tokens("query", heads * (spec.plain + spec.rotated)),
            absorbed: tokens("absorbed", heads * spec.rank),
            latent: tokens("latent", spec.rank + spec.rotated),
            values: tokens("values", heads * spec.value),
        }
    }
}

impl ExpertBuffers {
    fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Option<Self> {
        let experts = spec.experts?;
        let rows = Rows::Routes(experts.per_token);
        let router = plan.buffer("router", Rows::Tokens, experts.count, Storage::F32);
        let routes = plan.buffer("routes", rows, 2, Storage::F32);
        let mlp = MlpBuffers::new(
            plan,
            ["expert_gate_up", "expert_activated"],
            rows,
            MlpBuffers::columns(spec, experts.mlp),
            activations,
        );
        let latent = experts.latent.map(|columns| {
            ["expert_input", "expert_output"]
                .map(|name| plan.buffer(name, Rows::Tokens, columns, activations))
        });
        let shared = experts.shared.map(|shared| {
            let names = ["shared_gate_up", "shared_activated"];
            MlpBuffers::new(
                plan,
                names,
                Rows::Tokens,
                MlpBuffers::columns(spec, shared.mlp),
                activations,
            )
        });
        let shared_gate = experts.shared.filter(|shared| shared.gated).map(|_| {
            let logit = plan.buffer("shared_gate", Rows::Tokens, 1, Storage::F32);
            [
                logit,
                plan.buffer("shared_route", Rows::Routes(1), 2, Storage::F32),
            ]
        });
        Some(Self {
            router,
            routes,
            mlp,
            latent,
            shared,
            shared_gate,
        })
    }
}

impl LayerEmbeddingBuffers {
    fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Option<Self> {
        let columns = spec.layer_embedding?;
        let all = columns * u32::try_from(spec.layers.len()).expect("a model has few layers");
        Some(Self {
            all: plan.buffer("layer_embeddings", Rows::Tokens, all, activations),
            projected: plan.buffer("layer_projections", Rows::Tokens, all, activations),
            gate: plan.buffer("layer_gate", Rows::Tokens, columns, activations),
            activated: plan.buffer("layer_activated", Rows::Tokens, columns, activations),
        })
    }
}
