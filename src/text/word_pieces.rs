//! A tokenizer of BERT's in its older form: `vocab.txt`, one piece a line, whose number is its id.

use super::TextError;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The file's name.
pub(super) const VOCAB: &str = "vocab.txt";
/// Classes of transformers whose tokenizer it is.
const CLASSES: [&str; 2] = ["BertTokenizer", "BertTokenizerFast"];
/// Maximum number of pieces.
const PIECES_MAX: usize = 1 << 24;

/// Special pieces by their roles, with their usual texts.
const ROLES: [(&str, &str); 5] = [
    ("pad_token", "[PAD]"),
    ("unk_token", "[UNK]"),
    ("cls_token", "[CLS]"),
    ("sep_token", "[SEP]"),
    ("mask_token", "[MASK]"),
];

/// The pieces with their ids.
type Pieces<'a> = BTreeMap<&'a str, usize>;

/// The tokenizer.json that says the same as a `vocab.txt` with the settings of tokenizer_config.json, where absent
/// fields have the defaults of transformers.
///
/// # Errors
/// Another class of tokenizer, a setting of another type, or a role without its piece.
pub(super) fn tokenizer_json(
    vocab: &[u8],
    config: &Map<String, Value>,
) -> Result<Vec<u8>, TextError> {
    let text = str::from_utf8(vocab).map_err(|_| fault("is not UTF-8".into()))?;
    if let Some(class) = config.get("tokenizer_class").and_then(Value::as_str)
        && !CLASSES.contains(&class)
    {
        return Err(fault(format!(
            "without a tokenizer.json is read for BertTokenizer only, not for {class}"
        )));
    }
    // As in transformers, of a piece that is there twice the last line counts.
    let lines = text.lines().map(|line| line.trim_end_matches('\r'));
    let pieces: Pieces<'_> = lines.take(PIECES_MAX).zip(0..).collect();
    let unknown = special(&pieces, config, "unk_token")?;
    let [start, end] = ["cls_token", "sep_token"].map(|role| special(&pieces, config, role));
    Ok(json!({
        "version": "1.0",
        "added_tokens": added_tokens(&pieces, config),
        "normalizer": normalizer(config)?,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": end?, "cls": start?},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown.0,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": pieces,
        },
    })
    .to_string()
    .into_bytes())
}

/// The piece that has a role, with its id.
fn special(
    pieces: &Pieces<'_>,
    config: &Map<String, Value>,
    role: &str,
) -> Result<(String, usize), TextError> {
    let own = match config.get(role) {
        Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
        other => other.and_then(Value::as_str),
    };
    let usual = ROLES.iter().find(|(known, _)| *known == role);
    let content = own.or(usual.map(|(_, usual)| *usual)).unwrap_or_default();
    let id = pieces.get(content);
    let id = id.ok_or_else(|| fault(format!("has no {content}, the {role}")))?;
    Ok((content.to_owned(), *id))
}

/// The special pieces that are there, in the order of their ids.
fn added_tokens(pieces: &Pieces<'_>, config: &Map<String, Value>) -> Vec<Value> {
    let found = ROLES
        .iter()
        .filter_map(|(role, _)| special(pieces, config, role).ok());
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|(_, id)| *id);
    let token = |(content, id): &(String, usize)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    found.iter().map(token).collect()
}

/// How texts are changed before they are split.
fn normalizer(config: &Map<String, Value>) -> Result<Value, TextError> {
    Ok(json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": flag(config, "tokenize_chinese_chars")?.unwrap_or(true),
        "strip_accents": flag(config, "strip_accents")?,
        "lowercase": flag(config, "do_lower_case")?.unwrap_or(true),
    }))
}

/// A setting that is true or false, if it is there.
fn flag(config: &Map<String, Value>, name: &str) -> Result<Option<bool>, TextError> {
    match config.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(set)) => Ok(Some(*set)),
        Some(other) => Err(TextError::File {
            name: "tokenizer_config.json".into(),
            message: format!("{name} is {other}, not true or false"),
        }),
    }
}

fn fault(message: String) -> TextError {
    TextError::File {
        name: VOCAB.into(),
        message,
    }
}

#[cfg(test)]
mod tests;
