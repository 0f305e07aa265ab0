//! What follows the vector of a text: the layers of a head for classes, or modules of sentence-transformers. They are
//! small beside the model, so the host computes them, whatever the device is.

use super::error::LoadError;
use super::source::{Element, TensorInfo, TensorSource};
use crate::plan::erf;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Maximum elements of a layer's matrix: 256 MiB of them.
const ELEMENTS_MAX: u64 = 64 << 20;

/// A function of the elements of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// The vector itself.
    Identity,
    /// Hyperbolic tangent.
    Tanh,
    /// `½ x (1 + erf(x / √2))`.
    Gelu,
    /// The same with the tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x σ(x)`.
    Silu,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `eˣ`, scaled so that the elements add up to 1.
    Softmax,
}

impl Squash {
    /// The function that a class of torch computes, by the last word of its name; `None` for one that is not known.
    pub fn of_torch(class: &str) -> Option<Self> {
        let named = class.strip_prefix("torch.nn.")?.rsplit('.').next()?;
        Some(match named {
            "Identity" => Self::Identity,
            "Tanh" => Self::Tanh,
            "GELU" => Self::Gelu,
            "ReLU" => Self::Relu,
            "SiLU" => Self::Silu,
            "Sigmoid" => Self::Sigmoid,
            "Softmax" => Self::Softmax,
            _ => return None,
        })
    }

    /// The function that a config of transformers names; `None` for one that is not known.
    pub fn of_config(name: &str) -> Option<Self> {
        Some(match name {
            "linear" => Self::Identity,
            "tanh" => Self::Tanh,
            "gelu" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Self::GeluTanh,
            "relu" => Self::Relu,
            "silu" | "swish" => Self::Silu,
            "sigmoid" => Self::Sigmoid,
            _ => return None,
        })
    }

    /// Applies it to a vector.
    pub fn apply(self, vector: &mut [f64]) {
        if self != Self::Softmax {
            vector.iter_mut().for_each(|x| *x = self.of(*x));
            return;
        }
        let largest = vector.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        vector.iter_mut().for_each(|x| *x = (*x - largest).exp());
        let sum: f64 = vector.iter().sum();
        vector.iter_mut().for_each(|x| *x /= sum);
    }

    /// Its value at one element; of the softmax, of a vector of one.
    fn of(self, x: f64) -> f64 {
        match self {
            Self::Identity => x,
            Self::Tanh => x.tanh(),
            Self::Gelu => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
            Self::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            }
            Self::Relu => x.max(0.0),
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Softmax => 1.0,
        }
    }
}

/// The names of a layer's tensors, and its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledNames {
    /// `[outputs, inputs]`.
    pub weight: String,
    /// `[outputs]`.
    pub bias: Option<String>,
    /// The weight of a LayerNorm after the function, `[outputs]`, and its epsilon.
    pub norm: Option<(String, f32)>,
    /// Applied to the product.
    pub squash: Squash,
    /// Elements that it takes.
    pub inputs: u32,
    /// Elements that it gives.
    pub outputs: u32,
}

/// A layer: `norm(squash(weight · x + bias))`.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledLayer {
    inputs: usize,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    norm: Option<(Vec<f32>, f64)>,
    squash: Squash,
}

impl PooledLayer {
    /// Checks and reads a layer's tensors.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape or elements that are not floating-point numbers, or is too large.
    pub(super) async fn read(
        names: &PooledNames,
        source: &dyn TensorSource,
    ) -> Result<Self, LoadError> {
        let (inputs, outputs) = (u64::from(names.inputs), u64::from(names.outputs));
        let weight = read_tensor(source, &names.weight, &[outputs, inputs]).await?;
        let bias = match &names.bias {
            Some(bias) => Some(read_tensor(source, bias, &[outputs]).await?),
            None => None,
        };
        let norm = match &names.norm {
            Some((norm, epsilon)) => {
                let weight = read_tensor(source, norm, &[outputs]).await?;
                Some((weight, f64::from(*epsilon)))
            }
            None => None,
        };
        Ok(Self {
            inputs: names.inputs as usize,
            weight,
            bias,
            norm,
            squash: names.squash,
        })
    }

    /// Elements that it takes.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Elements that it gives.
    pub fn outputs(&self) -> usize {
        self.weight.len() / self.inputs
    }

    /// What it gives for a vector of as many elements as it takes.
    fn apply(&self, vector: &[f64]) -> Vec<f64> {
        let rows = self.weight.chunks_exact(self.inputs).enumerate();
        let product = rows.map(|(index, row)| {
            let sum: f64 = row.iter().zip(vector).map(|(w, x)| f64::from(*w) * x).sum();
            sum + self.bias.as_ref().map_or(0.0, |bias| bias[index].into())
        });
        let mut out: Vec<f64> = product.collect();
        self.squash.apply(&mut out);
        if let Some((weight, epsilon)) = &self.norm {
            let count = out.len() as f64;
            let mean = out.iter().sum::<f64>() / count;
            let variance = out.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let scale = (variance + epsilon).sqrt().recip();
            let elements = out.iter_mut().zip(weight);
            elements.for_each(|(x, weight)| *x = (*x - mean) * scale * f64::from(*weight));
        }
        out
    }
}

/// What a chain of layers makes of a vector; computed in f64.
pub fn through(layers: &[PooledLayer], vector: &[f32]) -> Vec<f64> {
    let first = vector.iter().map(|x| f64::from(*x)).collect();
    layers
        .iter()
        .fold(first, |x: Vec<f64>, layer| layer.apply(&x))
}

/// Reads a tensor of this shape.
async fn read_tensor(
    source: &dyn TensorSource,
    name: &str,
    expected: &[u64],
) -> Result<Vec<f32>, LoadError> {
    let tensor = || name.to_owned();
    let Some(TensorInfo {
        file,
        shape,
        element,
    }) = source.tensors().get(name)
    else {
        let file = source.name().into();
        return Err(LoadError::TensorMissing {
            file,
            tensor: tensor(),
        });
    };
    let file = file.to_string();
    if *shape != expected {
        return Err(LoadError::TensorShape {
            file,
            tensor: tensor(),
            found: shape.clone(),
            expected: expected.to_vec(),
        });
    }
    let format = match element {
        Element::Float(format) if !format.is_quantised() => *format,
        other => {
            return Err(LoadError::TensorType {
                file,
                tensor: tensor(),
                found: other.to_string(),
            });
        }
    };
    let count: u64 = expected.iter().product();
    if count > ELEMENTS_MAX {
        return Err(LoadError::TensorRefused {
            file,
            tensor: tensor(),
            message: format!("has {count} elements, of at most {ELEMENTS_MAX}"),
        });
    }
    let columns = count as usize;
    let bytes = source.read(name, 0..format.row_bytes(count as u32)).await?;
    Ok((0..columns)
        .map(|index| format.decode(&bytes, columns, index))
        .collect())
}

#[cfg(test)]
mod tests;
