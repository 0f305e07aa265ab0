//! Dense modules of sentence-transformers, which follow the pooling of a text's rows: their configs and weights, each
//! in a folder of its own beside the model.

use super::config_reader::{self, ConfigReader};
use super::error::LoadError;
use super::pooled::{PooledLayer, PooledNames, Squash};
use super::remote::{self, RangeFiles, read_whole};
use super::repository::is_plain;
use super::safetensors::{SINGLE, Safetensors};
use crate::platform::ModelFile;
use serde_json::Value;

/// The list of modules.
const MODULES: &str = "modules.json";
/// Maximum bytes of a config.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes of a module's weights.
const WEIGHT_BYTES_MAX: u64 = 256 << 20;
/// Maximum modules.
const MODULES_MAX: usize = 16;
/// Maximum elements of a vector.
const WIDTH_MAX: u32 = 1 << 16;

/// Reads the dense modules of a folder, in order, for a model of this hidden size. What other modules there are, and in
/// which order, is for those who read the texts.
///
/// # Errors
/// A file that cannot be read, or modules that do not fit each other or the model.
pub(super) async fn dense(
    files: &dyn RangeFiles,
    hidden: u32,
) -> Result<Vec<PooledLayer>, LoadError> {
    let Some(json) = read_whole(files, MODULES, CONFIG_BYTES_MAX).await? else {
        return Ok(Vec::new());
    };
    let modules = config_reader::parse(MODULES, &json)?;
    let is_dense = |module: &&Value| {
        let kind = module["type"].as_str().unwrap_or_default();
        kind.rsplit('.').next() == Some("Dense")
    };
    let modules = modules.as_array().map_or(&[][..], Vec::as_slice);
    let mut layers: Vec<PooledLayer> = Vec::new();
    for module in modules.iter().filter(is_dense).take(MODULES_MAX) {
        let path = module["path"].as_str().unwrap_or_default();
        if !is_plain(path) {
            return Err(invalid(MODULES, format!("a path is {path:?}")));
        }
        let (layer, inputs) = read(files, path).await?;
        let fits = match layers.last() {
            Some(before) => before.outputs() == inputs as usize,
            None => inputs.is_multiple_of(hidden),
        };
        if !fits {
            let file = format!("{path}/config.json");
            let message = format!("in_features is {inputs}, which is not what comes before it");
            return Err(invalid(&file, message));
        }
        layers.push(layer);
    }
    Ok(layers)
}

/// Reads a module, and the number of elements that it takes.
async fn read(files: &dyn RangeFiles, path: &str) -> Result<(PooledLayer, u32), LoadError> {
    let (config, weights) = (format!("{path}/config.json"), format!("{path}/{SINGLE}"));
    let json = read_whole(files, &config, CONFIG_BYTES_MAX).await?;
    let json = json.ok_or_else(|| remote::missing(&config))?;
    let json = config_reader::parse(&config, &json)?;
    let reader = ConfigReader::root(&config, &json)?;
    let class = reader.text("activation_function")?;
    let class = class.unwrap_or("torch.nn.modules.activation.Tanh");
    let squash = Squash::of_torch(class).ok_or_else(|| {
        let message = format!("is {class:?}, which is not supported");
        reader.invalid("activation_function", message)
    })?;
    let has_bias = reader.boolean("bias")?.unwrap_or(true);
    let inputs = reader.required_integer("in_features", 1..=WIDTH_MAX)?;
    let names = PooledNames {
        weight: "linear.weight".into(),
        bias: has_bias.then(|| "linear.bias".into()),
        norm: None,
        squash,
        inputs,
        outputs: reader.required_integer("out_features", 1..=WIDTH_MAX)?,
    };
    let bytes = read_whole(files, &weights, WEIGHT_BYTES_MAX).await?;
    let bytes = bytes.ok_or_else(|| remote::missing(&weights))?;
    let source = vec![(weights.clone(), ModelFile::in_memory(bytes))];
    let source = Safetensors::from_files(&weights, source)?;
    Ok((PooledLayer::read(&names, &source).await?, inputs))
}

fn invalid(file: &str, message: String) -> LoadError {
    LoadError::Json {
        file: file.into(),
        message,
    }
}
