//! Turns a checkpoint into a plan and its weights.
//!
//! A [`Model`] consists of a description ([`ModelSpec`], read from `config.json`), a source of tensors
//! ([`TensorSource`]) and the sampling defaults of `generation_config.json`. [`Model::record`] records the forward pass
//! ([`decoder`]), which is the same code for all models; [`Model::upload`] passes the weights to whatever executes it.
//! This module knows nothing of devices, batches or text.
//!
//! All errors in a model's files are found when it is opened, and are reported in one line ([`LoadError`]).

pub mod adapters;
mod checkpoint;
mod classes;
mod config;
mod config_defaults;
mod config_experts;
mod config_heads;
mod config_layers;
mod config_reader;
mod config_scales;
mod config_state;
mod decoder;
pub mod demo;
mod dense;
mod error;
mod families;
mod generation;
pub mod gguf;
mod layer_weight;
pub mod pooled;
mod predictor;
mod prequantized;
mod quantize;
mod random;
pub mod remote;
mod repack;
pub mod repository;
pub mod rope;
pub mod safetensors;
mod shapes;
mod short_names;
pub mod source;
pub mod spec;
mod stand_in;
mod stored;
mod tensor_names;
mod tower;
mod weights;

pub use checkpoint::Model;
pub use classes::{ClassHead, ClassesSpec};
pub use error::{LoadError, UploadError};
pub use generation::{DrawDefaults, GenerationDefaults};
pub use gguf::{Gguf, Mixture, Requantization, Texts};
pub use quantize::Quantization;
pub use remote::RangeFiles;
pub use safetensors::Safetensors;
pub use short_names::ShortName;
pub use source::{Element, TensorInfo, TensorRead, TensorSource};
pub use spec::ModelSpec;
pub use stand_in::stand_in;
