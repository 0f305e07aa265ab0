//! A plan as text, one line a step: for golden files and for people. Options that are off are not shown; an id that
//! names nothing is shown as a number, so that a broken plan can be printed too.

use super::{Activation, BufferId, HeadNorm, Plan, Rope, Rows, Step, Storage, Tail, WeightFormat, WeightId};
use std::fmt::{self, Display, Formatter};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "vocabulary {}, positions {}", self.vocab, self.positions_max)?;
        writeln!(f, "buffers")?;
        for buffer in &self.buffers {
            writeln!(f, "  {}: {} × {} {}", buffer.name, buffer.rows, buffer.columns, buffer.storage)?;
        }
        writeln!(f, "weights")?;
        for weight in &self.weights {
            let experts = if weight.experts == 1 { String::new() } else { format!(", {} experts", weight.experts) };
            let formats: Vec<String> = weight.sections.iter().map(|section| section.format.to_string()).collect();
            let formats = formats.join(" + ");
            writeln!(f, "  {}: {} × {} {formats}{experts}", weight.name, weight.rows, weight.columns)?;
        }
        writeln!(f, "kv groups")?;
        for (index, group) in self.kv_groups.iter().enumerate() {
            match group.window {
                Some(window) => writeln!(f, "  {index}: window {window}")?,
                None => writeln!(f, "  {index}: full")?,
            }
        }
        writeln!(f, "kv layers")?;
        for (index, layer) in self.kv_layers.iter().enumerate() {
            writeln!(f, "  {index}: group {}, {} heads of {}", layer.group, layer.heads, layer.head_dim)?;
        }
        writeln!(f, "body")?;
        for step in &self.body {
            writeln!(f, "  {}", self.step(step))?;
        }
        for (tail, steps) in &self.tails {
            writeln!(f, "tail {tail}")?;
            for step in steps {
                writeln!(f, "  {}", self.step(step))?;
            }
        }
        Ok(())
    }
}

impl Plan {
    /// One step of this plan as a line.
    fn step(&self, step: &Step) -> String {
        let b = |id: &BufferId| self.buffer_name(*id);
        let w = |id: &WeightId| self.weight_name(*id);
        match step {
            Step::CopyBlocks => "copy_blocks()".into(),
            Step::Embed { table, scale, out } => {
                format!("{} = embed({}{})", b(out), w(table), unless(", scale ", scale, 1.0))
            }
            Step::RmsNorm { x, delta, weight, epsilon, one_plus, accumulate, out } => {
                let sign = if *accumulate { "+=" } else { "=" };
                let delta = delta.map(|delta| format!(" += {}", b(&delta))).unwrap_or_default();
                let norm = norm_options(*epsilon, *one_plus);
                format!("{} {sign} rms_norm({}{delta}, {}, {norm})", b(out), b(x), w(weight))
            }
            Step::MatMul { x, weight, bias, accumulate, out } => {
                let sign = if *accumulate { "+=" } else { "=" };
                let bias = bias.map(|bias| format!(", bias {}", w(&bias))).unwrap_or_default();
                format!("{} {sign} matmul({}, {}{bias})", b(out), b(x), w(weight))
            }
            Step::RopeStoreKv { qkv, layer, query_heads, q_norm, k_norm, rope, q } => {
                let q_norm = self.head_norm("q norm", q_norm.as_ref());
                let k_norm = self.head_norm("k norm", k_norm.as_ref());
                let rope = self.rope(rope.as_ref());
                let source = b(qkv);
                format!(
                    "{} = rope_store_kv({source}, layer {layer}, {query_heads} query heads{q_norm}{k_norm}{rope})",
                    b(q)
                )
            }
            Step::AttendPaged { .. } => self.attend(step),
            Step::GatedActivation { gate_up, activation, out } => {
                format!("{} = gated_activation({}, {activation})", b(out), b(gate_up))
            }
            Step::RouteExperts { logits, renormalize, routes } => {
                let weights = if *renormalize { ", weights add up to 1" } else { "" };
                format!("{} = route_experts({}{weights})", b(routes), b(logits))
            }
            Step::MatMulExperts { x, routes, weight, bias, accumulate, out } => {
                let sign = if *accumulate { "+=" } else { "=" };
                let bias = bias.map(|bias| format!(", bias {}", w(&bias))).unwrap_or_default();
                format!("{} {sign} matmul_experts({}, {}, {}{bias})", b(out), b(x), b(routes), w(weight))
            }
            Step::GatherRows { x, out } => format!("{} = gather_rows({})", b(out), b(x)),
            Step::ScaleLogits { logits, scale, softcap } => {
                let softcap = softcap.map(|cap| format!(", softcap {cap}")).unwrap_or_default();
                format!("{} = scale_logits(scale {scale}{softcap})", b(logits))
            }
            Step::Sample { logits } => format!("sample({})", b(logits)),
            Step::Pool { x } => format!("pool({})", b(x)),
        }
    }

    fn attend(&self, step: &Step) -> String {
        let Step::AttendPaged { q, layer, query_heads, scale, softcap, alibi, sinks, out } = step else {
            unreachable!("only attention is printed here")
        };
        let mut options = format!("scale {scale}");
        if let Some(softcap) = softcap {
            options += &format!(", softcap {softcap}");
        }
        for (name, weight) in [("alibi", alibi), ("sinks", sinks)] {
            if let Some(weight) = weight {
                options += &format!(", {name} {}", self.weight_name(*weight));
            }
        }
        let (out, q) = (self.buffer_name(*out), self.buffer_name(*q));
        format!("{out} = attend_paged({q}, layer {layer}, {query_heads} query heads, {options})")
    }

    fn head_norm(&self, name: &str, norm: Option<&HeadNorm>) -> String {
        norm.map(|norm| {
            let options = norm_options(norm.epsilon, norm.one_plus);
            let span = if norm.whole_row { " of the whole row" } else { "" };
            format!(", {name} {} {options}{span}", self.weight_name(norm.weight))
        })
        .unwrap_or_default()
    }

    fn rope(&self, rope: Option<&Rope>) -> String {
        rope.map(|rope| {
            let pairs = if rope.interleaved { " interleaved" } else { "" };
            let scale = unless(" scale ", &rope.scale, 1.0);
            format!(", rope {} over {}{pairs}{scale}", self.weight_name(rope.frequencies), rope.rotary_dim)
        })
        .unwrap_or_default()
    }

    fn buffer_name(&self, id: BufferId) -> String {
        self.buffers.get(id.0 as usize).map_or_else(|| format!("buffer#{}", id.0), |buffer| buffer.name.into())
    }

    fn weight_name(&self, id: WeightId) -> String {
        self.weights.get(id.0 as usize).map_or_else(|| format!("weight#{}", id.0), |weight| weight.name.clone())
    }
}

fn unless(label: &str, value: &f32, usual: f32) -> String {
    if *value == usual { String::new() } else { format!("{label}{value}") }
}

fn norm_options(epsilon: f32, one_plus: bool) -> String {
    format!("epsilon {epsilon:e}{}", if one_plus { ", 1 + w" } else { "" })
}

impl Display for Rows {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens => f.write_str("tokens"),
            Self::Samples => f.write_str("samples"),
            Self::Routes(per_token) => write!(f, "routes ({per_token} a token)"),
        }
    }
}

impl Display for Storage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

impl Display for WeightFormat {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Q4Zero => "q4z",
            Self::Q5 => "q5",
            Self::Iq4 => "iq4",
            Self::Mxfp4 => "mxfp4",
            Self::E4m3 => "e4m3",
            Self::Q2K => "q2k",
            Self::Q3K => "q3k",
            Self::Q4K => "q4k",
            Self::Q5K => "q5k",
            Self::Q6K => "q6k",
            Self::Iq4K => "iq4k",
        })
    }
}

impl Display for Activation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silu => f.write_str("silu"),
            Self::GeluTanh => f.write_str("gelu_tanh"),
            Self::ClampedSwiglu { alpha, limit } => write!(f, "clamped_swiglu alpha {alpha} limit {limit}"),
        }
    }
}

impl Display for Tail {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sample => "sample",
            Self::Pool => "pool",
        })
    }
}

impl Step {
    /// The step's stem: the name of its twin and its kernels.
    pub const fn stem(&self) -> &'static str {
        match self {
            Self::CopyBlocks => "copy_blocks",
            Self::Embed { .. } => "embed",
            Self::RmsNorm { .. } => "rms_norm",
            Self::MatMul { .. } => "matmul",
            Self::RopeStoreKv { .. } => "rope_store_kv",
            Self::AttendPaged { .. } => "attend_paged",
            Self::GatedActivation { .. } => "gated_activation",
            Self::RouteExperts { .. } => "route_experts",
            Self::MatMulExperts { .. } => "matmul_experts",
            Self::GatherRows { .. } => "gather_rows",
            Self::ScaleLogits { .. } => "scale_logits",
            Self::Sample { .. } => "sample",
            Self::Pool { .. } => "pool",
        }
    }
}
