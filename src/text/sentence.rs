//! The files of sentence-transformers beside a model: how the hidden rows of a text become its vector.

use super::TextError;
use super::folder::{LENGTH, MODULES, POOLING, PROMPTS, object};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Which hidden rows are a text's vector. Where several are wanted, their vectors follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOfText {
    /// The first one.
    First,
    /// For each element, the largest one of all rows.
    Max,
    /// The mean over all, special tokens among them.
    Mean,
    /// Their sum, divided by the square root of their number.
    MeanOfRoot,
    /// The mean, in which a row counts as often as its place in the text says, from 1 on.
    WeightedMean,
    /// The last one.
    Last,
}

/// What the files say. Anything else that changes vectors is refused when they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentenceModel {
    /// The rows that count, at least one way.
    pub poolings: Vec<RowsOfText>,
    /// Whether the rows of a prompt, and those before it, count as well.
    pub pools_prompt: bool,
    /// Number of dense modules that follow.
    pub dense: usize,
    /// Maximum tokens of a text with its special ones.
    pub max_tokens: Option<usize>,
    /// Texts are lowercased before they are encoded.
    pub lowercases: bool,
    /// Texts that are put before those that they suit, by their names.
    pub prompts: BTreeMap<String, String>,
    /// Put before every text that comes with no other prompt.
    pub default_prompt: Option<String>,
}

/// The names of poolings in their files: older ones have a flag for each.
const POOLINGS: [(&str, &str, RowsOfText); 6] = [
    ("cls", "pooling_mode_cls_token", RowsOfText::First),
    ("max", "pooling_mode_max_tokens", RowsOfText::Max),
    ("mean", "pooling_mode_mean_tokens", RowsOfText::Mean),
    (
        "mean_sqrt_len_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        RowsOfText::MeanOfRoot,
    ),
    (
        "weightedmean",
        "pooling_mode_weightedmean_tokens",
        RowsOfText::WeightedMean,
    ),
    ("lasttoken", "pooling_mode_lasttoken", RowsOfText::Last),
];

impl SentenceModel {
    /// Reads the files, of which `file` gives the content; `None` without a list of modules.
    pub(super) fn read<'a>(
        file: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<Option<Self>, TextError> {
        let Some(modules) = file(MODULES) else {
            return Ok(None);
        };
        let dense = dense_modules(modules)?;
        let pooling = object(POOLING, file(POOLING))?;
        let config = object(PROMPTS, file(PROMPTS))?;
        let length = object(LENGTH, file(LENGTH))?;
        let max_tokens = match length.get("max_seq_length") {
            None | Some(Value::Null) => None,
            Some(value) => {
                let count = value.as_u64().filter(|count| (1..=1 << 24).contains(count));
                let count = count.ok_or_else(|| {
                    fault(
                        LENGTH,
                        format!("max_seq_length is {value}, not a number of tokens"),
                    )
                })?;
                Some(count as usize)
            }
        };
        let prompts = prompts(&config)?;
        Ok(Some(Self {
            poolings: poolings(&pooling)?,
            pools_prompt: pooling.get("include_prompt") != Some(&Value::Bool(false)),
            dense,
            max_tokens,
            lowercases: length.get("do_lower_case") == Some(&Value::Bool(true)),
            default_prompt: default_prompt(&config, &prompts)?,
            prompts,
        }))
    }
}

/// The vector of a text from all its hidden rows of so many columns: what the poolings make of them, one after the
/// other, without the first `skipped` rows.
pub fn pool(rows: &[f32], columns: usize, skipped: usize, poolings: &[RowsOfText]) -> Vec<f32> {
    let count = rows.len() / columns;
    let skipped = skipped.min(count);
    let kept = &rows[skipped * columns..];
    let weighted = |weight: &dyn Fn(usize) -> f64| -> Vec<f32> {
        let mut sums = vec![0.0_f64; columns];
        for (index, row) in kept.chunks_exact(columns).enumerate() {
            let weight = weight(index);
            let elements = sums.iter_mut().zip(row);
            elements.for_each(|(sum, x)| *sum += weight * f64::from(*x));
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    };
    let kept_count = ((count - skipped) as f64).max(1.0);
    let vector = |pooling: &RowsOfText| match pooling {
        RowsOfText::First => weighted(&|index| f64::from(u8::from(index == 0))),
        RowsOfText::Last => weighted(&|index| f64::from(u8::from(skipped + index + 1 == count))),
        RowsOfText::Mean => weighted(&|_| kept_count.recip()),
        RowsOfText::MeanOfRoot => weighted(&|_| kept_count.sqrt().recip()),
        RowsOfText::WeightedMean => {
            let whole: usize = (skipped + 1..=count).sum();
            weighted(&|index| (skipped + index + 1) as f64 / whole as f64)
        }
        RowsOfText::Max => {
            let mut rows = kept.chunks_exact(columns);
            let first = rows
                .next()
                .map_or_else(|| vec![0.0; columns], <[f32]>::to_vec);
            rows.fold(first, |mut most, row| {
                let elements = most.iter_mut().zip(row);
                elements.for_each(|(most, x)| *most = most.max(*x));
                most
            })
        }
    };
    poolings.iter().flat_map(vector).collect()
}

/// The number of dense modules. Fails unless the modules are a model, a pooling, and perhaps dense modules and a
/// normalization, in this order.
fn dense_modules(json: &[u8]) -> Result<usize, TextError> {
    let modules: Vec<Map<String, Value>> =
        serde_json::from_slice(json).map_err(|error| fault(MODULES, error.to_string()))?;
    let text = |module: &Map<String, Value>, name: &str| {
        let value = module.get(name).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let (mut dense, count) = (0, modules.len());
    for (index, module) in modules.iter().enumerate() {
        let kind = text(module, "type");
        let kind = kind.rsplit('.').next().unwrap_or_default();
        let path = text(module, "path");
        let is_known = match (index, kind) {
            (0, "Transformer") => path.is_empty(),
            (1, "Pooling") => path == "1_Pooling",
            (2.., "Dense") => path == format!("{index}_Dense"),
            (2.., "Normalize") => index + 1 == count,
            _ => false,
        };
        dense += usize::from(kind == "Dense");
        if !is_known {
            let message = format!(
                "module {index} is {kind:?} in {path:?}: supported are Transformer, Pooling in 1_Pooling, then Dense \
                 in {index}_Dense, and Normalize at the end"
            );
            return Err(fault(MODULES, message));
        }
    }
    if count < 2 {
        return Err(fault(MODULES, "has no Pooling".into()));
    }
    Ok(dense)
}

/// The rows that count.
fn poolings(config: &Map<String, Value>) -> Result<Vec<RowsOfText>, TextError> {
    let named = config.get("pooling_mode").and_then(Value::as_str);
    let is_set = |name: &str, flag: &str| match named {
        Some(named) => named == name,
        None => config.get(flag) == Some(&Value::Bool(true)),
    };
    let set = POOLINGS.iter().filter(|(name, flag, _)| is_set(name, flag));
    let poolings: Vec<_> = set.map(|(.., rows)| *rows).collect();
    if poolings.is_empty() {
        return Err(fault(POOLING, "says no pooling that is known".into()));
    }
    Ok(poolings)
}

/// The prompts by their names.
fn prompts(config: &Map<String, Value>) -> Result<BTreeMap<String, String>, TextError> {
    let no_text = |name: &str| fault(PROMPTS, format!("prompts.{name} is no text"));
    match config.get("prompts") {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(prompts)) => prompts
            .iter()
            .map(|(name, text)| {
                let text = text.as_str().ok_or_else(|| no_text(name))?;
                Ok((name.clone(), text.to_owned()))
            })
            .collect(),
        Some(_) => Err(fault(PROMPTS, "prompts is no object".into())),
    }
}

/// The text of the prompt that `default_prompt_name` names.
fn default_prompt(
    config: &Map<String, Value>,
    prompts: &BTreeMap<String, String>,
) -> Result<Option<String>, TextError> {
    let Some(name) = config.get("default_prompt_name").and_then(Value::as_str) else {
        return Ok(None);
    };
    let missing = || {
        fault(
            PROMPTS,
            format!("default_prompt_name is {name:?}, which is not among prompts"),
        )
    };
    Ok(Some(prompts.get(name).ok_or_else(missing)?.clone()))
}

fn fault(name: &str, message: String) -> TextError {
    TextError::File {
        name: name.into(),
        message,
    }
}

#[cfg(test)]
mod tests;
