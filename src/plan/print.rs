//! Prints a plan as text, one line per step, for golden files and for people. Each step formats its own line
//! ([`super::step`]). An unknown id is printed as a number, so that an invalid plan can be printed too.

use super::{Activation, Plan, Rows, Storage, Tail, WeightFormat, Window};
use std::fmt::{self, Display, Formatter};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "vocabulary {}, positions {}",
            self.vocab, self.positions_max
        )?;
        writeln!(f, "buffers")?;
        for buffer in &self.buffers {
            writeln!(
                f,
                "  {}: {} × {} {}",
                buffer.name, buffer.rows, buffer.columns, buffer.storage
            )?;
        }
        writeln!(f, "weights")?;
        for weight in &self.weights {
            let experts = if weight.experts == 1 {
                String::new()
            } else {
                format!(", {} experts", weight.experts)
            };
            let formats: Vec<String> = weight
                .sections
                .iter()
                .map(|section| section.format.to_string())
                .collect();
            let formats = formats.join(" + ");
            writeln!(
                f,
                "  {}: {} × {} {formats}{experts}",
                weight.name, weight.rows, weight.columns
            )?;
        }
        writeln!(f, "kv groups")?;
        for (index, group) in self.kv_groups.iter().enumerate() {
            match group.window {
                Some(Window::Last(tokens)) => writeln!(f, "  {index}: window {tokens}")?,
                Some(Window::Chunk(tokens)) => writeln!(f, "  {index}: chunks of {tokens}")?,
                None => writeln!(f, "  {index}: full")?,
            }
        }
        writeln!(f, "kv layers")?;
        for (index, layer) in self.kv_layers.iter().enumerate() {
            writeln!(
                f,
                "  {index}: group {}, {} heads of {}",
                layer.group, layer.heads, layer.head_dim
            )?;
        }
        if !self.state_layers.is_empty() {
            writeln!(f, "state layers")?;
        }
        for (index, layer) in self.state_layers.iter().enumerate() {
            writeln!(f, "  {index}: {} elements", layer.elements)?;
        }
        writeln!(f, "body")?;
        let operands = self.operands();
        for step in &self.body {
            writeln!(f, "  {}", step.line(&operands))?;
        }
        for (tail, steps) in &self.tails {
            writeln!(f, "tail {tail}")?;
            for step in steps {
                writeln!(f, "  {}", step.line(&operands))?;
            }
        }
        Ok(())
    }
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
            Self::Q2 => "q2",
            Self::Q3 => "q3",
            Self::Q6 => "q6",
            Self::Q8Min => "q8m",
            Self::Q2Zero => "q2z",
            Self::Q3Zero => "q3z",
            Self::Q8Zero => "q8z",
            Self::Int8 => "i8",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Iq1 => "iq1",
            Self::Iq2 => "iq2",
            Self::Iq3Xxs => "iq3xxs",
            Self::Iq3S => "iq3s",
            Self::Q1 => "q1",
            Self::Ternary => "t2",
        })
    }
}

impl Display for Activation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silu => f.write_str("silu"),
            Self::GeluTanh => f.write_str("gelu_tanh"),
            Self::Gelu => f.write_str("gelu"),
            Self::Relu => f.write_str("relu"),
            Self::ClampedSwiglu { alpha, limit } => {
                write!(f, "clamped_swiglu alpha {alpha} limit {limit}")
            }
            Self::ClampedSilu { limit } => write!(f, "clamped_silu limit {limit}"),
            Self::Relu2 => f.write_str("relu2"),
            Self::Softplus => f.write_str("softplus"),
            Self::Sigmoid => f.write_str("sigmoid"),
            Self::Xielu => f.write_str("xielu"),
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
