//! The text files of a checkpoint's folder, and how they go together: as in transformers.

use super::TextError;
use super::word_pieces::{self, VOCAB};
use serde_json::{Map, Value};
use std::borrow::Cow;
use tokenizers::AddedToken;

/// Folder of further chat templates, one a file; the file's stem is the template's name.
pub const MORE_TEMPLATES: &str = "additional_chat_templates/";

/// The list of modules of sentence-transformers.
pub(super) const MODULES: &str = "modules.json";
/// How rows are pooled.
pub(super) const POOLING: &str = "1_Pooling/config.json";
/// Prompts.
pub(super) const PROMPTS: &str = "config_sentence_transformers.json";
/// The length of a text.
pub(super) const LENGTH: &str = "sentence_bert_config.json";

/// The text files of a checkpoint's folder; any may be missing.
#[derive(Clone, Debug, Default)]
pub struct TextFolder {
    tokenizer: Option<Vec<u8>>,
    vocab: Option<Vec<u8>>,
    config: Option<Vec<u8>>,
    special_tokens_map: Option<Vec<u8>>,
    added_tokens: Option<Vec<u8>>,
    template: Option<Vec<u8>>,
    more_templates: Vec<(String, Vec<u8>)>,
    /// Files of sentence-transformers.
    sentence: Vec<(&'static str, Vec<u8>)>,
}

impl TextFolder {
    /// Names of the files with one name.
    pub const NAMES: [&str; 10] = [
        "tokenizer.json",
        VOCAB,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        MODULES,
        POOLING,
        PROMPTS,
        LENGTH,
    ];

    /// Puts a file's content under its name. Other names than [`Self::NAMES`] and `additional_chat_templates/*.jinja`
    /// are ignored.
    pub fn insert(&mut self, name: &str, bytes: Vec<u8>) {
        match name {
            "tokenizer.json" => self.tokenizer = Some(bytes),
            VOCAB => self.vocab = Some(bytes),
            "tokenizer_config.json" => self.config = Some(bytes),
            "special_tokens_map.json" => self.special_tokens_map = Some(bytes),
            "added_tokens.json" => self.added_tokens = Some(bytes),
            "chat_template.jinja" => self.template = Some(bytes),
            _ if sentence_file(name).is_some() => {
                self.sentence
                    .extend(sentence_file(name).map(|own| (own, bytes)));
            }
            _ => {
                let name = name
                    .strip_prefix(MORE_TEMPLATES)
                    .and_then(|name| name.strip_suffix(".jinja"));
                self.more_templates
                    .extend(name.map(|name| (name.to_owned(), bytes)));
            }
        }
    }

    pub(super) fn extend<'a>(&mut self, files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) {
        files
            .into_iter()
            .for_each(|(name, bytes)| self.insert(name, bytes));
    }

    /// The tokenizer.json, or what a `vocab.txt` without it says.
    pub(super) fn tokenizer_json(
        &self,
        config: &Map<String, Value>,
    ) -> Result<Option<Cow<'_, [u8]>>, TextError> {
        match (&self.tokenizer, &self.vocab) {
            (Some(json), _) => Ok(Some(Cow::Borrowed(json))),
            (None, Some(vocab)) => {
                let json = word_pieces::tokenizer_json(vocab, config)?;
                Ok(Some(Cow::Owned(json)))
            }
            (None, None) => Ok(None),
        }
    }

    /// A file of sentence-transformers, if it is there.
    pub(super) fn sentence(&self, name: &str) -> Option<&[u8]> {
        let found = self.sentence.iter().find(|(known, _)| *known == name);
        found.map(|(_, bytes)| bytes.as_slice())
    }

    /// tokenizer_config.json with what the other files add to it.
    pub(super) fn config(&self) -> Result<Map<String, Value>, TextError> {
        let mut config = object("tokenizer_config.json", self.config.as_deref())?;
        if !config.contains_key("added_tokens_decoder") {
            config.extend(object(
                "special_tokens_map.json",
                self.special_tokens_map.as_deref(),
            )?);
        }
        let template = self
            .template
            .as_deref()
            .map(|bytes| utf8("chat_template.jinja", bytes))
            .transpose()?;
        if self.more_templates.is_empty() {
            config.extend(template.map(|text| ("chat_template".to_owned(), Value::from(text))));
            return Ok(config);
        }
        let mut named: Vec<Value> = Vec::new();
        match (template, config.remove("chat_template")) {
            (Some(text), _) => named.push(template_entry("default", text)),
            (None, Some(Value::String(text))) => named.push(template_entry("default", &text)),
            (None, Some(Value::Array(list))) => named.extend(list),
            (None, _) => {}
        }
        for (name, bytes) in &self.more_templates {
            named.retain(|entry| entry["name"] != name.as_str());
            named.push(template_entry(
                name,
                utf8(&format!("{MORE_TEMPLATES}{name}.jinja"), bytes)?,
            ));
        }
        config.insert("chat_template".into(), named.into());
        Ok(config)
    }

    /// Tokens that tokenizer.json may lack: those of `added_tokens_decoder`, or without it of added_tokens.json, then
    /// those that have a role, and the additional special ones.
    pub(super) fn added_tokens(
        &self,
        config: &Map<String, Value>,
    ) -> Result<Vec<AddedToken>, TextError> {
        let roles = config
            .iter()
            .filter(|(name, _)| name.ends_with("_token"))
            .map(|(_, value)| value);
        let lists = ["extra_special_tokens", "additional_special_tokens"].map(|name| match config
            .get(name)
        {
            Some(Value::Array(list)) => list.iter().collect(),
            Some(Value::Object(named)) => named.values().collect(),
            _ => Vec::new(),
        });
        let special: Vec<AddedToken> = roles
            .chain(lists.into_iter().flatten())
            .filter_map(special_token)
            .collect();
        let mut tokens = match config
            .get("added_tokens_decoder")
            .and_then(Value::as_object)
        {
            Some(by_id) => in_order(
                by_id
                    .iter()
                    .map(|(id, token)| (id.parse().ok(), added_token(token))),
            ),
            None => {
                let ids = object("added_tokens.json", self.added_tokens.as_deref())?;
                in_order(ids.into_iter().map(|(text, id)| {
                    let is_special = special.iter().any(|token| token.content == text);
                    (id.as_u64(), Some(AddedToken::from(text, is_special)))
                }))
            }
        };
        for token in special {
            if tokens.iter().all(|known| known.content != token.content) {
                tokens.push(token);
            }
        }
        Ok(tokens)
    }
}

/// The name of a file of sentence-transformers.
fn sentence_file(name: &str) -> Option<&'static str> {
    let names = [MODULES, POOLING, PROMPTS, LENGTH];
    names.into_iter().find(|known| *known == name)
}

fn template_entry(name: &str, text: &str) -> Value {
    serde_json::json!({"name": name, "template": text})
}

/// Tokens by their ids; those without an id are left out.
fn in_order(tokens: impl Iterator<Item = (Option<u64>, Option<AddedToken>)>) -> Vec<AddedToken> {
    let mut tokens: Vec<(u64, AddedToken)> = tokens
        .filter_map(|(id, token)| Some((id?, token?)))
        .collect();
    tokens.sort_by_key(|(id, _)| *id);
    tokens.into_iter().map(|(_, token)| token).collect()
}

/// A token as an object with its content and flags.
fn added_token(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str| value[name].as_bool();
    let special = flag("special").unwrap_or(false);
    let token = AddedToken::from(value["content"].as_str()?.to_owned(), special);
    Some(
        token
            .single_word(flag("single_word").unwrap_or(false))
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!special)),
    )
}

/// A token with a role: a text, or an object.
fn special_token(value: &Value) -> Option<AddedToken> {
    match value.as_str() {
        Some(text) => Some(AddedToken::from(text.to_owned(), true)),
        None => added_token(value).map(|token| token.special(true)),
    }
}

pub(super) fn object(name: &str, bytes: Option<&[u8]>) -> Result<Map<String, Value>, TextError> {
    let object = bytes.map(serde_json::from_slice).transpose();
    let object = object.map_err(|error| TextError::File {
        name: name.to_owned(),
        message: error.to_string(),
    })?;
    Ok(object.unwrap_or_default())
}

fn utf8<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, TextError> {
    str::from_utf8(bytes).map_err(|_| TextError::File {
        name: name.to_owned(),
        message: "is not UTF-8".to_owned(),
    })
}
