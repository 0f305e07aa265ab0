//! The files of sentence-transformers beside a model: how the hidden rows of a text become its vector.

use super::TextError;
use super::folder::{LENGTH, MODULES, POOLING, PROMPTS, object};
use serde_json::{Map, Value};

/// Which hidden rows are a text's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOfText {
    /// The first one.
    First,
    /// The last one.
    Last,
    /// The mean over all, special tokens among them.
    Mean,
}

/// What the files say. Anything else that changes vectors is refused when they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentenceModel {
    /// The rows that count.
    pub rows: RowsOfText,
    /// Maximum tokens of a text with its special ones.
    pub max_tokens: Option<usize>,
    /// Texts are lowercased before they are encoded.
    pub lowercases: bool,
    /// Put before every text that comes with no other prompt.
    pub default_prompt: Option<String>,
}

/// The names of poolings in their files: older ones have a flag for each.
const POOLINGS: [(&str, &str, Option<RowsOfText>); 6] = [
    ("cls", "pooling_mode_cls_token", Some(RowsOfText::First)),
    ("max", "pooling_mode_max_tokens", None),
    ("mean", "pooling_mode_mean_tokens", Some(RowsOfText::Mean)),
    // The length of a vector does not count: it is scaled to one.
    (
        "mean_sqrt_len_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        Some(RowsOfText::Mean),
    ),
    ("weightedmean", "pooling_mode_weightedmean_tokens", None),
    (
        "lasttoken",
        "pooling_mode_lasttoken",
        Some(RowsOfText::Last),
    ),
];

impl SentenceModel {
    /// Reads the files, of which `file` gives the content; `None` without a list of modules.
    pub(super) fn read<'a>(
        file: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<Option<Self>, TextError> {
        let Some(modules) = file(MODULES) else {
            return Ok(None);
        };
        check_modules(modules)?;
        let pooling = object(POOLING, file(POOLING))?;
        let prompts = object(PROMPTS, file(PROMPTS))?;
        let length = object(LENGTH, file(LENGTH))?;
        let (rows, default_prompt) = (rows(&pooling)?, default_prompt(&prompts)?);
        if default_prompt.is_some() && pooling.get("include_prompt") == Some(&Value::Bool(false)) {
            let message = "include_prompt is false: prompts that are not pooled are not supported";
            return Err(fault(POOLING, message.into()));
        }
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
        Ok(Some(Self {
            rows,
            max_tokens,
            lowercases: length.get("do_lower_case") == Some(&Value::Bool(true)),
            default_prompt,
        }))
    }
}

/// Fails unless the modules are a model, a pooling and perhaps a normalization, in this order.
fn check_modules(json: &[u8]) -> Result<(), TextError> {
    let modules: Vec<Map<String, Value>> =
        serde_json::from_slice(json).map_err(|error| fault(MODULES, error.to_string()))?;
    let text = |module: &Map<String, Value>, name: &str| {
        let value = module.get(name).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    for (index, module) in modules.iter().enumerate() {
        let kind = text(module, "type");
        let kind = kind.rsplit('.').next().unwrap_or_default();
        let path = text(module, "path");
        let is_known = match (index, kind) {
            (0, "Transformer") => path.is_empty(),
            (1, "Pooling") => path == "1_Pooling",
            (2, "Normalize") => true,
            _ => false,
        };
        if !is_known {
            let message = format!(
                "module {index} is {kind:?} in {path:?}: supported are Transformer, Pooling in 1_Pooling, and Normalize"
            );
            return Err(fault(MODULES, message));
        }
    }
    if modules.len() < 2 {
        return Err(fault(MODULES, "has no Pooling".into()));
    }
    Ok(())
}

/// The rows that count.
fn rows(config: &Map<String, Value>) -> Result<RowsOfText, TextError> {
    let named = config.get("pooling_mode").and_then(Value::as_str);
    let is_set = |name: &str, flag: &str| match named {
        Some(named) => named == name,
        None => config.get(flag) == Some(&Value::Bool(true)),
    };
    let mut set = POOLINGS.iter().filter(|(name, flag, _)| is_set(name, flag));
    match (set.next(), set.next()) {
        (Some((_, _, Some(rows))), None) => Ok(*rows),
        (Some((name, ..)), None) => {
            Err(fault(POOLING, format!("pooling {name:?} is not supported")))
        }
        (Some(_), Some(_)) => Err(fault(
            POOLING,
            "several poolings at once are not supported".into(),
        )),
        (None, _) => Err(fault(POOLING, "says no pooling that is known".into())),
    }
}

/// The text of the prompt that `default_prompt_name` names.
fn default_prompt(config: &Map<String, Value>) -> Result<Option<String>, TextError> {
    let Some(name) = config.get("default_prompt_name").and_then(Value::as_str) else {
        return Ok(None);
    };
    let prompt = config
        .get("prompts")
        .and_then(|prompts| prompts[name].as_str());
    let missing = || {
        fault(
            PROMPTS,
            format!("default_prompt_name is {name:?}, which is no text among prompts"),
        )
    };
    Ok(Some(prompt.ok_or_else(missing)?.to_owned()))
}

fn fault(name: &str, message: String) -> TextError {
    TextError::File {
        name: name.into(),
        message,
    }
}

#[cfg(test)]
mod tests;
