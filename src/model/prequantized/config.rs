//! What a checkpoint's config says of its quantization. Shapes and types of the tensors decide what they can; the
//! config names the method, and what shapes leave open.

use crate::model::config_reader::{self, ConfigReader};
use crate::model::error::LoadError;
use regex::Regex;
use serde_json::Value;

/// Files beside `config.json` that may describe the quantization, if it does not: ModelOpt's and AutoGPTQ's.
pub(in crate::model) const OTHER_FILES: [&str; 2] =
    ["hf_quant_config.json", "quantize_config.json"];

/// A checkpoint's quantization method.
#[derive(Clone, Debug)]
pub(super) enum Method {
    /// Codes packed along the columns (GPTQ, AutoRound).
    Gptq(Gptq),
    /// 4 bits, packed along the outputs, or along the columns of each row (gemv).
    Awq { group: usize, by_rows: bool },
    /// Bytes, floats of 8 or 4 bits, or packed integers, with scales beside them under the names of
    /// compressed-tensors, ModelOpt and the official FP8 checkpoints.
    Scaled,
    /// Blocks of a flattened matrix, or bytes with a scale per row.
    Bitsandbytes,
    /// MLX: columns that share a scale, by module.
    Mlx(Vec<(String, usize)>, usize),
    /// gpt-oss: E2M1 with a power-of-two scale per 32 weights, in stacks of experts.
    Mxfp4,
}

/// Bits and columns that share a scale; modules may differ.
#[derive(Clone, Debug)]
pub(super) struct Gptq {
    pub(super) widths: Widths,
    pub(super) modules: Vec<(Modules, Widths)>,
    pub(super) act_order: bool,
    /// What is added to stored zero points.
    pub(super) zero_offset: i16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Widths {
    pub(super) bits: usize,
    pub(super) group: usize,
}

/// Names of modules.
#[derive(Clone, Debug)]
pub(super) enum Modules {
    Name(String),
    /// Matches from the start of a name.
    Pattern(Regex),
}

impl Modules {
    fn matches(&self, module: &str) -> bool {
        match self {
            Self::Name(name) => name == module,
            Self::Pattern(pattern) => pattern.find(module).is_some_and(|found| found.start() == 0),
        }
    }
}

impl Gptq {
    /// Of a module: those of the first entry that names it.
    pub(super) fn widths_of(&self, module: &str) -> Widths {
        let own = self.modules.iter().find(|(names, _)| names.matches(module));
        own.map_or(self.widths, |(_, widths)| *widths)
    }
}

/// The method that a config file names; `None` if the checkpoint is not quantized.
pub(super) fn method(file: &str, json: &[u8]) -> Result<Option<Method>, LoadError> {
    let value = config_reader::parse(file, json)?;
    let root = ConfigReader::root(file, &value)?;
    let inner = root.object("text_config")?;
    for config in [Some(&root), inner.as_ref()].into_iter().flatten() {
        if let Some(config) = config.object("quantization_config")? {
            return read_method(&config).map(Some);
        }
        if let Some(config) = config.object("quantization")? {
            // ModelOpt's own file, or MLX's config.
            let is_modelopt = config.get("quant_algo").is_some();
            let method = if is_modelopt {
                modelopt(&config)
            } else {
                mlx(&config)
            };
            return method.map(Some);
        }
    }
    // AutoGPTQ's file is the settings themselves.
    match root.get("desc_act") {
        Some(_) => gptq(&root).map(Some),
        None => Ok(None),
    }
}

fn read_method(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    let Some(method) = config.text("quant_method")? else {
        return mlx(config);
    };
    match method {
        "gptq" => gptq(config),
        "auto-round" | "intel/auto-round" => auto_round(config),
        "awq" => awq(config),
        "fp8" | "fbgemm_fp8" => Ok(Method::Scaled),
        "compressed-tensors" => compressed_tensors(config),
        "modelopt" | "modelopt_fp4" => modelopt(config),
        "bitsandbytes" => Ok(Method::Bitsandbytes),
        "mxfp4" => Ok(Method::Mxfp4),
        other => {
            let message = format!(
                "is {other:?}, which is not supported: gptq, auto-round, awq, fp8, fbgemm_fp8, compressed-tensors, \
                 modelopt, bitsandbytes and mxfp4 are"
            );
            Err(config.invalid("quant_method", message))
        }
    }
}

fn gptq(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    let zero_offset = match config.text("checkpoint_format")? {
        None | Some("gptq") => 1,
        Some("gptq_v2") => 0,
        Some(other) => {
            let message = format!("is {other:?}, not gptq or gptq_v2");
            return Err(config.invalid("checkpoint_format", message));
        }
    };
    Ok(Method::Gptq(Gptq {
        widths: widths(config, None)?,
        modules: modules(config, "dynamic")?,
        act_order: config.boolean("desc_act")?.unwrap_or(false),
        zero_offset,
    }))
}

fn auto_round(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    if let Some(kind) = config.text("data_type")?.filter(|kind| *kind != "int") {
        return Err(config.invalid("data_type", format!("is {kind:?}, not int")));
    }
    let packing = config
        .text("packing_format")?
        .unwrap_or("auto_round:auto_gptq");
    let zero_offset = match packing {
        "auto_round:auto_awq" | "auto_round:awq" => return awq(config),
        "auto_round:auto_gptq" | "auto_round:gptq" | "gptq" | "auto_gptq" => 1,
        "auto_round" | "auto_round:exllamav2" | "auto_round:gptqmodel" | "auto_round:tritonv2" => 0,
        other => {
            let message = format!("is {other:?}, which is not supported");
            return Err(config.invalid("packing_format", message));
        }
    };
    Ok(Method::Gptq(Gptq {
        widths: widths(config, None)?,
        modules: modules(config, "extra_config")?,
        act_order: false,
        zero_offset,
    }))
}

/// Bits and groups, with those of an enclosing object as defaults.
fn widths(config: &ConfigReader<'_>, default: Option<Widths>) -> Result<Widths, LoadError> {
    let bits = match (config.integer("bits", 1..=32)?, default) {
        (Some(bits), _) => bits as usize,
        (None, Some(widths)) => widths.bits,
        (None, None) => return Err(config.invalid("bits", "is missing")),
    };
    let is_known = matches!(bits, 2..=8 | 16..);
    if !is_known {
        return Err(config.invalid("bits", format!("is {bits}, not 2 to 8")));
    }
    let group = match (config.get("group_size"), default) {
        (None, Some(widths)) => widths.group,
        _ => group(config)?,
    };
    Ok(Widths { bits, group })
}

/// Widths of single modules: by name, or by a pattern that may begin with `+:`. What begins with `-:` is not quantized,
/// as its tensors say.
fn modules(config: &ConfigReader<'_>, field: &str) -> Result<Vec<(Modules, Widths)>, LoadError> {
    let default = widths(config, None)?;
    let Some(own) = config.object(field)? else {
        return Ok(Vec::new());
    };
    let mut modules = Vec::new();
    for (name, _) in own.entries().filter(|(name, _)| !name.starts_with("-:")) {
        let Some(settings) = own.object(name)? else {
            continue;
        };
        let widths = widths(&settings, Some(default))?;
        let pattern = name.strip_prefix("+:").unwrap_or(name);
        let is_name = pattern
            .chars()
            .all(|letter| letter.is_alphanumeric() || "._-".contains(letter));
        let names = if is_name && !name.starts_with("+:") {
            Modules::Name(pattern.into())
        } else {
            let pattern = Regex::new(pattern)
                .map_err(|error| own.invalid(name, format!("is no pattern: {error}")))?;
            Modules::Pattern(pattern)
        };
        modules.push((names, widths));
    }
    Ok(modules)
}

fn awq(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    match config.required_integer("bits", 1..=32)? {
        4 => {}
        found => return Err(config.invalid("bits", format!("is {found}, not 4"))),
    }
    let field = if config.get("version").is_some() {
        "version"
    } else {
        "format"
    };
    let version = config.text(field)?.map(str::to_lowercase);
    let by_rows = match version.as_deref() {
        None | Some("gemm") => false,
        Some("gemv") => true,
        Some(other) => return Err(config.invalid(field, format!("is {other:?}, not gemm or gemv"))),
    };
    let group = group(config)?;
    Ok(Method::Awq { group, by_rows })
}

/// Formats of compressed-tensors that are read; the tensors tell them apart.
const COMPRESSED: [&str; 8] = [
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
];

fn compressed_tensors(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    let check = |config: &ConfigReader<'_>| match config.text("format")? {
        Some(format) if !COMPRESSED.contains(&format) && format != "dense" => {
            Err(config.invalid("format", format!("is {format:?}, which is not supported")))
        }
        _ => Ok(()),
    };
    check(config)?;
    if let Some(groups) = config.object("config_groups")? {
        for (name, _) in groups.entries() {
            if groups.get(name).is_some_and(Value::is_object) {
                groups.object(name)?.as_ref().map_or(Ok(()), check)?;
            }
        }
    }
    if let Some(sparsity) = config.object("sparsity_config")?
        && let Some(format) = sparsity.text("format")?.filter(|format| *format != "dense")
    {
        return Err(sparsity.invalid("format", format!("is {format:?}, not dense")));
    }
    if let Some(transforms) = config.object("transform_config")?
        && transforms.entries().next().is_some()
    {
        let message =
            "names rotations, without which the results would be others: they are not supported";
        return Err(config.invalid("transform_config", message));
    }
    Ok(Method::Scaled)
}

/// Algorithms of ModelOpt that are read; the tensors tell them apart.
const MODELOPT: [&str; 10] = [
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "W4A16_NVFP4",
    "NVFP4_AWQ",
    "W4A8_NVFP4_FP8",
    "W4A8_MXFP4_FP8",
    "MXFP8",
    "MIXED_PRECISION",
];

fn modelopt(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    match config.text("quant_algo")? {
        Some(algorithm) if !MODELOPT.contains(&algorithm) => Err(config.invalid(
            "quant_algo",
            format!("is {algorithm:?}, which is not supported"),
        )),
        _ => Ok(Method::Scaled),
    }
}

fn mlx(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    let default = config.required_integer("group_size", 16..=128)? as usize;
    let mut modules = Vec::new();
    for (name, value) in config.entries() {
        if !value.is_object() {
            continue;
        }
        let settings = config.object(name)?;
        let own = settings.map(|settings| settings.integer("group_size", 16..=128));
        let group = own.transpose()?.flatten();
        modules.push((name.clone(), group.map_or(default, |group| group as usize)));
    }
    Ok(Method::Mlx(modules, default))
}

/// Columns that share a scale.
fn group(config: &ConfigReader<'_>) -> Result<usize, LoadError> {
    let group = config.required("group_size", config.get("group_size"))?;
    match group.as_i64() {
        Some(-1) => Ok(usize::MAX),
        Some(group @ (16 | 32 | 64 | 128 | 256 | 512 | 1024)) => Ok(group as usize),
        _ => Err(config.invalid(
            "group_size",
            format!("is {group}, not a power of two from 16 to 1024 or -1"),
        )),
    }
}
