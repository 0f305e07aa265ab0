//! Checks a plan before any device exists: everything is written before it is read, shapes agree, ids name something,
//! and no row is longer than a kernel may bind.
//!
//! A plan that passes can be executed by every backend; model code and kernel tests meet their mistakes here, by name.

use super::{BufferId, BufferSpec, HeadNorm, KvLayer, Plan, Rope, Rows, Step, Storage, WeightFormat, WeightId};
use std::collections::BTreeSet;

/// Elements of a head, at most.
pub const HEAD_DIM_MAX: u32 = 256;
/// Query heads that share a key/value head, at most.
pub const GROUP_SIZE_MAX: u32 = 16;

/// Experts that work on one token, at most.
pub const ROUTES_MAX: u32 = 32;

/// What a device and a configuration allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest range one kernel may bind.
    pub binding_bytes_max: u64,
    /// Token rows of one batch.
    pub tokens_max: u32,
}

impl Limits {
    /// Allows everything.
    pub const NONE: Self = Self { binding_bytes_max: u64::MAX, tokens_max: 1 };
}

/// A mistake in a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct PlanError {
    /// Where: `body step 3 (matmul)`, or the part of the plan that is wrong as a whole.
    pub place: String,
    /// What.
    pub fault: Fault,
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// An id that names nothing.
    #[error("there is no {what} {id}")]
    Unknown {
        /// `buffer`, `weight`, `KV layer` or `KV group`.
        what: &'static str,
        /// The id.
        id: u32,
    },
    /// Two things of one name, or a tail or a layer stored twice.
    #[error("{name} is there twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// Read before anything wrote it.
    #[error("{name} is read before it is written")]
    NotWritten {
        /// Buffer, or KV layer.
        name: String,
    },
    /// An output that is an input as well.
    #[error("{name} is input and output")]
    Aliased {
        /// Buffer.
        name: String,
    },
    /// Sizes that should agree.
    #[error("{what} is {found}, not {expected}")]
    Size {
        /// What was measured.
        what: String,
        /// Its size.
        found: u64,
        /// What its neighbours ask for.
        expected: u64,
    },
    /// Rows of the wrong kind.
    #[error("{name} has rows {found}, not {expected}")]
    RowKind {
        /// Buffer.
        name: String,
        /// Its rows.
        found: Rows,
        /// What the step works on.
        expected: Rows,
    },
    /// A number that no kernel is made for.
    #[error("{what} is {found}: {rule}")]
    Range {
        /// What.
        what: String,
        /// Its value.
        found: String,
        /// What it must be.
        rule: &'static str,
    },
    /// More than one binding holds.
    #[error("{what} needs a binding of {bytes} bytes, the device allows {limit}")]
    Binding {
        /// What.
        what: String,
        /// Its bytes.
        bytes: u64,
        /// The device's limit.
        limit: u64,
    },
}

/// Checks the whole plan. Each tail is checked as if it ran alone after the body.
pub fn check(plan: &Plan, limits: &Limits) -> Result<(), PlanError> {
    let at = |place: &str| {
        let place = place.to_owned();
        |fault| PlanError { place, fault }
    };
    check_names(plan).map_err(at("names"))?;
    check_kv(plan).map_err(at("kv"))?;
    check_bindings(plan, limits).map_err(at("bindings"))?;
    let mut body = Checker::new(plan);
    body.steps("body", &plan.body)?;
    for (tail, steps) in &plan.tails {
        body.clone().steps(&format!("tail {tail}"), steps)?;
    }
    Ok(())
}

/// Token rows that one batch may have so that every row buffer fits one binding.
pub fn tokens_max(plan: &Plan, binding_bytes_max: u64) -> u64 {
    let token_bytes = |buffer: &BufferSpec| u64::from(buffer.rows.count(1, 0)) * row_bytes(buffer);
    let buffers = plan.buffers.iter().map(token_bytes).filter(|bytes| *bytes > 0);
    buffers.map(|bytes| binding_bytes_max / bytes).min().unwrap_or(u64::MAX)
}

fn row_bytes(buffer: &BufferSpec) -> u64 {
    u64::from(buffer.columns) * u64::from(buffer.storage.bytes())
}

fn check_names(plan: &Plan) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    let buffers = plan.buffers.iter().map(|buffer| format!("buffer {}", buffer.name));
    let weights = plan.weights.iter().map(|weight| format!("weight {}", weight.name));
    let tails = plan.tails.iter().map(|(tail, _)| format!("tail {tail}"));
    match buffers.chain(weights).chain(tails).find(|name| !seen.insert(name.clone())) {
        Some(name) => Err(Fault::Twice { name }),
        None => Ok(()),
    }
}

fn check_kv(plan: &Plan) -> Result<(), Fault> {
    for (index, group) in plan.kv_groups.iter().enumerate() {
        if group.window == Some(0) {
            let what = format!("window of KV group {index}");
            return Err(Fault::Range { what, found: "0".into(), rule: "a query sees at least its own key" });
        }
        if plan.kv_groups[..index].contains(group) {
            return Err(Fault::Twice { name: format!("KV group {index}") });
        }
    }
    for (index, layer) in plan.kv_layers.iter().enumerate() {
        if layer.group as usize >= plan.kv_groups.len() {
            return Err(Fault::Unknown { what: "KV group", id: layer.group });
        }
        if layer.heads == 0 || layer.head_dim == 0 || !layer.head_dim.is_multiple_of(8) || layer.head_dim > HEAD_DIM_MAX
        {
            let what = format!("KV layer {index}");
            let found = format!("{} heads of {}", layer.heads, layer.head_dim);
            return Err(Fault::Range { what, found, rule: "heads have a multiple of 8 elements, up to 256" });
        }
    }
    Ok(())
}

/// Weights are cut by rows, sampled rows are taken in groups: there one row must fit. Token rows are not cut.
fn check_bindings(plan: &Plan, limits: &Limits) -> Result<(), Fault> {
    let limit = limits.binding_bytes_max;
    let buffers = plan.buffers.iter().map(|buffer| {
        let rows = u64::from(buffer.rows.count(limits.tokens_max, 1));
        (format!("buffer {}", buffer.name), rows.saturating_mul(row_bytes(buffer)))
    });
    let weights = plan.weights.iter().map(|weight| (format!("a row of {}", weight.name), weight.row_bytes_max()));
    for (what, bytes) in buffers.chain(weights) {
        if bytes == 0 {
            return Err(Fault::Range { what, found: "empty".into(), rule: "rows have elements" });
        }
        if bytes > limit {
            return Err(Fault::Binding { what, bytes, limit });
        }
    }
    Ok(())
}

/// What has been written so far.
#[derive(Clone)]
struct Checker<'a> {
    plan: &'a Plan,
    written: BTreeSet<BufferId>,
    stored: BTreeSet<u32>,
}

impl<'a> Checker<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self { plan, written: BTreeSet::new(), stored: BTreeSet::new() }
    }

    fn steps(&mut self, part: &str, steps: &[Step]) -> Result<(), PlanError> {
        for (index, step) in steps.iter().enumerate() {
            let place = || format!("{part} step {index} ({})", step.stem());
            self.step(step).map_err(|fault| PlanError { place: place(), fault })?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Fault> {
        match *step {
            Step::CopyBlocks => Ok(()),
            Step::Embed { table, out, .. } => {
                let columns = self.buffer(out)?.columns;
                self.weight(table, self.plan.vocab, columns, None)?;
                self.write(out, Rows::Tokens, columns, &[])
            }
            Step::RmsNorm { x, delta, weight, accumulate, out, .. } => {
                let BufferSpec { rows, columns, .. } = *self.read(x)?;
                if let Some(delta) = delta {
                    self.read_as(delta, rows, columns)?;
                    self.write(x, rows, columns, &[delta])?;
                }
                self.weight(weight, 1, columns, None)?;
                if accumulate {
                    self.read(out)?;
                }
                self.write(out, rows, columns, &[x, delta.unwrap_or(x)])
            }
            Step::MatMul { x, weight, bias, accumulate, out } => {
                let (input, columns) = (self.read(x)?.clone(), self.buffer(out)?.columns);
                self.weight(weight, columns, input.columns, None)?;
                if let Some(bias) = bias {
                    self.weight(bias, 1, columns, None)?;
                }
                if accumulate {
                    self.read(out)?;
                }
                self.write(out, input.rows, columns, &[x])
            }
            Step::RopeStoreKv { qkv, layer, query_heads, q_norm, k_norm, rope, q } => {
                let kv = self.kv_layer(layer, query_heads)?;
                self.read_as(qkv, Rows::Tokens, (query_heads + 2 * kv.heads) * kv.head_dim)?;
                self.head_options(kv.head_dim, [(q_norm, query_heads), (k_norm, kv.heads)], rope)?;
                if !self.stored.insert(layer) {
                    return Err(Fault::Twice { name: format!("the store of KV layer {layer}") });
                }
                self.write(q, Rows::Tokens, query_heads * kv.head_dim, &[qkv])
            }
            Step::AttendPaged { q, layer, query_heads, softcap, alibi, sinks, out, .. } => {
                check_softcap(softcap)?;
                for weight in [alibi, sinks].into_iter().flatten() {
                    self.weight(weight, 1, query_heads, Some(WeightFormat::F32))?;
                }
                self.attend(q, layer, query_heads, out)
            }
            Step::GatedActivation { gate_up, out, .. } => {
                let (rows, columns) = (self.read(gate_up)?.rows, self.buffer(out)?.columns);
                self.read_as(gate_up, rows, 2 * columns)?;
                self.write(out, rows, columns, &[gate_up])
            }
            Step::RouteExperts { logits, routes, .. } => self.route_experts(logits, routes),
            Step::MatMulExperts { .. } => self.matmul_experts(step),
            Step::GatherRows { x, out } => {
                let columns = self.read(x)?.columns;
                self.read_as(x, Rows::Tokens, columns)?;
                self.write(out, Rows::Samples, columns, &[x])
            }
            Step::ScaleLogits { logits, softcap, .. } => {
                check_softcap(softcap)?;
                self.read_as(logits, Rows::Samples, self.plan.vocab)
            }
            Step::Sample { logits } => self.sample(logits),
            Step::Pool { x } => self.read_as(x, Rows::Tokens, self.read(x)?.columns),
        }
    }

    fn sample(&self, logits: BufferId) -> Result<(), Fault> {
        self.read_as(logits, Rows::Samples, self.plan.vocab)?;
        match self.buffer(logits)?.storage {
            Storage::F32 => Ok(()),
            other => Err(Fault::Range { what: "logits".into(), found: other.to_string(), rule: "f32" }),
        }
    }

    fn route_experts(&mut self, logits: BufferId, routes: BufferId) -> Result<(), Fault> {
        let experts = self.read(logits)?.columns;
        self.read_as(logits, Rows::Tokens, experts)?;
        for buffer in [logits, routes] {
            let BufferSpec { name, storage, .. } = self.buffer(buffer)?;
            if *storage != Storage::F32 {
                return Err(Fault::Range { what: (*name).into(), found: storage.to_string(), rule: "routing is f32" });
            }
        }
        let per_token = self.routes_per_token(routes, experts)?;
        self.write(routes, Rows::Routes(per_token), 2, &[logits])
    }

    fn matmul_experts(&mut self, step: &Step) -> Result<(), Fault> {
        let Step::MatMulExperts { x, routes, weight, bias, accumulate, out } = *step else {
            unreachable!("the caller matched the step")
        };
        let known = self.plan.weights.get(weight.0 as usize);
        let experts = known.ok_or(Fault::Unknown { what: "weight", id: weight.0 })?.experts;
        let of_routes = Rows::Routes(self.routes_per_token(routes, experts)?);
        self.read_as(routes, of_routes, 2)?;
        let either = |rows| if rows == Rows::Tokens { Rows::Tokens } else { of_routes };
        let (input, output) = (self.read(x)?, self.buffer(out)?);
        shaped(input, either(input.rows), input.columns)?;
        let stacked = experts.saturating_mul(output.columns);
        self.weight(weight, stacked, input.columns, None)?;
        if let Some(bias) = bias {
            self.weight(bias, 1, stacked, None)?;
        }
        if accumulate {
            shaped(self.read(out)?, Rows::Tokens, output.columns)?;
        }
        self.write(out, either(output.rows), output.columns, &[x, routes])
    }

    fn attend(&mut self, q: BufferId, layer: u32, query_heads: u32, out: BufferId) -> Result<(), Fault> {
        let kv = self.kv_layer(layer, query_heads)?;
        if !self.stored.contains(&layer) {
            return Err(Fault::NotWritten { name: format!("KV layer {layer}") });
        }
        self.read_as(q, Rows::Tokens, query_heads * kv.head_dim)?;
        self.write(out, Rows::Tokens, query_heads * kv.head_dim, &[q])
    }

    /// Norms of q and k, each with its heads, and the rotation.
    fn head_options(
        &self,
        head_dim: u32,
        norms: [(Option<HeadNorm>, u32); 2],
        rope: Option<Rope>,
    ) -> Result<(), Fault> {
        for (norm, heads) in norms {
            let Some(norm) = norm else { continue };
            self.weight(norm.weight, 1, if norm.whole_row { heads * head_dim } else { head_dim }, None)?;
        }
        let Some(rope) = rope else { return Ok(()) };
        if rope.rotary_dim == 0 || !rope.rotary_dim.is_multiple_of(2) || rope.rotary_dim > head_dim {
            let found = rope.rotary_dim.to_string();
            return Err(Fault::Range { what: "rotary_dim".into(), found, rule: "even, and within a head" });
        }
        self.weight(rope.frequencies, 1, rope.rotary_dim / 2, Some(WeightFormat::F32))
    }

    /// Rows a token of a buffer of routes.
    fn routes_per_token(&self, routes: BufferId, experts: u32) -> Result<u32, Fault> {
        match self.buffer(routes)?.rows {
            Rows::Routes(per_token) if (1..=experts.min(ROUTES_MAX)).contains(&per_token) => Ok(per_token),
            rows => {
                let found = format!("{rows}, of {experts} experts");
                let rule = "a token goes to 1 to 32 experts, each once";
                Err(Fault::Range { what: "routes".into(), found, rule })
            }
        }
    }

    fn buffer(&self, id: BufferId) -> Result<&'a BufferSpec, Fault> {
        self.plan.buffers.get(id.0 as usize).ok_or(Fault::Unknown { what: "buffer", id: id.0 })
    }

    fn read(&self, id: BufferId) -> Result<&'a BufferSpec, Fault> {
        let buffer = self.buffer(id)?;
        if !self.written.contains(&id) {
            return Err(Fault::NotWritten { name: buffer.name.into() });
        }
        Ok(buffer)
    }

    fn read_as(&self, id: BufferId, rows: Rows, columns: u32) -> Result<(), Fault> {
        shaped(self.read(id)?, rows, columns)
    }

    fn write(&mut self, id: BufferId, rows: Rows, columns: u32, inputs: &[BufferId]) -> Result<(), Fault> {
        let buffer = self.buffer(id)?;
        shaped(buffer, rows, columns)?;
        if inputs.contains(&id) {
            return Err(Fault::Aliased { name: buffer.name.into() });
        }
        self.written.insert(id);
        Ok(())
    }

    fn weight(&self, id: WeightId, rows: u32, columns: u32, format: Option<WeightFormat>) -> Result<(), Fault> {
        let weight = self.plan.weights.get(id.0 as usize).ok_or(Fault::Unknown { what: "weight", id: id.0 })?;
        same(|| format!("rows of {}", weight.name), weight.rows, rows)?;
        same(|| format!("columns of {}", weight.name), weight.columns, columns)?;
        match format {
            Some(format) if format != weight.format_of(0) => {
                let (what, found) = (weight.name.clone(), weight.format_of(0).to_string());
                Err(Fault::Range { what, found, rule: "this vector is f32" })
            }
            _ => Ok(()),
        }
    }

    fn kv_layer(&self, layer: u32, query_heads: u32) -> Result<KvLayer, Fault> {
        let kv = *self.plan.kv_layers.get(layer as usize).ok_or(Fault::Unknown { what: "KV layer", id: layer })?;
        let (groups, rest) = (query_heads / kv.heads, query_heads % kv.heads);
        if groups == 0 || rest != 0 || groups > GROUP_SIZE_MAX {
            let found = format!("{query_heads} over {} KV heads", kv.heads);
            let rule = "each KV head serves 1 to 16 query heads";
            return Err(Fault::Range { what: "query_heads".into(), found, rule });
        }
        Ok(kv)
    }
}

fn shaped(buffer: &BufferSpec, rows: Rows, columns: u32) -> Result<(), Fault> {
    if buffer.rows != rows {
        return Err(Fault::RowKind { name: buffer.name.into(), found: buffer.rows, expected: rows });
    }
    same(|| format!("columns of {}", buffer.name), buffer.columns, columns)
}

fn check_softcap(softcap: Option<f32>) -> Result<(), Fault> {
    match softcap {
        Some(cap) if !(cap.is_finite() && cap > 0.0) => {
            Err(Fault::Range { what: "softcap".into(), found: cap.to_string(), rule: "a cap is positive" })
        }
        _ => Ok(()),
    }
}

fn same(what: impl FnOnce() -> String, found: u32, expected: u32) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(Fault::Size { what: what(), found: u64::from(found), expected: u64::from(expected) })
}
