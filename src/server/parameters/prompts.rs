//! Prompts of a request, as texts or token ids, and their encoding.

use crate::engine::handle::EngineInfo;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::{Text, object, token_id, token_id_schema};
use crate::server::state::{ModelState, prompt_bytes_max};
use crate::server::wire::error::ApiError;
use crate::text::{Gap, Infill, TextModel, Tokenizer, TokenizerError, integers};
use serde_json::{Map, Value, json};

/// Prompts of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

/// The forms of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    /// Texts and token ids one after the other, as llama.cpp's clients write special tokens by their ids.
    Mixed(Vec<Prompt>),
}

impl Prompt {
    /// Bytes of its texts.
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ids(_) => 0,
            Self::Mixed(parts) => parts.iter().map(Self::bytes).sum(),
        }
    }

    /// Its token ids. The special tokens that the tokenizer adds belong to a text at the beginning.
    fn encode(
        self,
        tokenizer: Option<&Tokenizer>,
        encode: impl Fn(&Tokenizer, &str) -> Result<Vec<u32>, TokenizerError>,
    ) -> Result<Vec<u32>, ApiError> {
        let text = |text: &str, is_first: bool| {
            let message = "this model has no tokenizer: send token ids";
            let tokenizer = tokenizer.ok_or_else(|| ApiError::invalid("prompt", message))?;
            let ids = if is_first {
                encode(tokenizer, text)
            } else {
                tokenizer.encode(text, false)
            };
            ids.map_err(|error| ApiError::invalid("prompt", error.to_string()))
        };
        let parts = match self {
            Self::Mixed(parts) => parts,
            whole => vec![whole],
        };
        let mut ids = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            match part {
                Self::Text(part) => ids.extend(text(&part, index == 0)?),
                Self::Ids(part) => ids.extend(part),
                Self::Mixed(_) => unreachable!("the parts of a prompt have no parts"),
            }
        }
        Ok(ids)
    }
}

impl Prompts {
    /// Whether all are texts.
    pub(crate) fn are_texts(&self) -> bool {
        let mut prompts = self.0.iter();
        prompts.all(|prompt| matches!(prompt, Prompt::Text(_)))
    }

    /// Prompts that are texts.
    pub(crate) fn texts(texts: Vec<String>) -> Self {
        Self(texts.into_iter().map(Prompt::Text).collect())
    }

    /// The prompts as token ids. Texts are encoded, with the special tokens that the tokenizer adds if `add_special`.
    pub(crate) async fn encode(
        self,
        state: &ModelState,
        add_special: bool,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        self.encode_with(state, move |tokenizer, text| {
            tokenizer.encode(text, add_special)
        })
        .await
    }

    /// Refuses texts that are certainly too long, before they are encoded.
    pub(crate) fn check_bytes(&self, field: &str, info: &EngineInfo) -> Result<(), ApiError> {
        let most = prompt_bytes_max(info);
        self.0
            .iter()
            .try_for_each(|prompt| check_bytes(field, prompt.bytes(), info.max_model_len, most))
    }

    /// The first `most` token ids of each prompt, with the special tokens that the tokenizer adds to a text. Texts may
    /// be of any length.
    pub(crate) async fn encode_beginning(
        mut self,
        state: &ModelState,
        most: usize,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        // Nothing after this can be among the first tokens, so it is not encoded.
        let bytes_max = BYTES_READ_PER_BYTE * prompt_bytes_max(state.ready()?);
        for prompt in &mut self.0 {
            if let Prompt::Text(text) = prompt {
                let end = (0..=bytes_max.min(text.len()))
                    .rev()
                    .find(|&at| text.is_char_boundary(at));
                text.truncate(end.unwrap_or(0));
            }
        }
        let encode = move |tokenizer: &Tokenizer, text: &str| beginning(tokenizer, text, most);
        let mut prompts = self.encode_with(state, encode).await?;
        prompts.iter_mut().for_each(|ids| ids.truncate(most));
        Ok(prompts)
    }

    /// The last `most` token ids of each prompt, between the special tokens that the tokenizer adds to a text.
    pub(crate) async fn encode_ending(
        self,
        state: &ModelState,
        most: usize,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        let encode = move |tokenizer: &Tokenizer, text: &str| cut(tokenizer, text, (most, true));
        let mut prompts = self.encode_with(state, encode).await?;
        for ids in &mut prompts {
            ids.drain(..ids.len().saturating_sub(most));
        }
        Ok(prompts)
    }

    async fn encode_with(
        self,
        state: &ModelState,
        encode: impl Fn(&Tokenizer, &str) -> Result<Vec<u32>, TokenizerError> + Send + 'static,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        let bytes = self.0.iter().map(Prompt::bytes).sum();
        let encoded = state.with_text(bytes, move |text| {
            let tokenizer = text.tokenizer.as_deref();
            self.0
                .into_iter()
                .map(|prompt| prompt.encode(tokenizer, &encode))
                .collect::<Result<Vec<_>, _>>()
        });
        let prompts = encoded.await??;
        if prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::invalid("prompt", "a prompt encodes to no tokens"));
        }
        Ok(prompts)
    }
}

/// The first `most` tokens of a text. The tokens that the tokenizer adds at the end stay there: models read the meaning
/// of a text from them.
pub(crate) fn beginning(
    tokenizer: &Tokenizer,
    text: &str,
    most: usize,
) -> Result<Vec<u32>, TokenizerError> {
    cut(tokenizer, text, (most, false))
}

/// At most so many tokens of a text: its first ones, or its last ones between those that the tokenizer adds.
fn cut(
    tokenizer: &Tokenizer,
    text: &str,
    (most, keeps_end): (usize, bool),
) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = tokenizer.encode(text, true)?;
    let surplus = ids.len().saturating_sub(most);
    if surplus > 0 {
        let bare = tokenizer.encode(text, false)?;
        let before =
            (0..=ids.len().saturating_sub(bare.len())).find(|&at| ids[at..].starts_with(&bare));
        let start = before.unwrap_or(0);
        let end = before.map_or(ids.len(), |before| before + bare.len());
        if keeps_end {
            ids.drain(start..(start + surplus).min(end));
        } else {
            ids.drain(end.saturating_sub(surplus)..end);
        }
        ids.truncate(most);
    }
    Ok(ids)
}

/// Of a text that may be cut, this many times the bytes of the longest prompt are encoded.
const BYTES_READ_PER_BYTE: usize = 4;

/// A text, a list of token ids and texts, or several such prompts. Whether they fit is known once they are encoded.
pub(crate) struct PromptsKind {
    /// Maximum number of prompts.
    pub(crate) most: Most,
}

impl Kind for PromptsKind {
    type Value = Prompts;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Prompts, ApiError> {
        let is_several = value
            .as_array()
            .is_some_and(|items| !items.is_empty() && !items.iter().any(Value::is_number));
        let Value::Array(items) = value else {
            return Ok(Prompts(vec![one_prompt(at, value, bounds)?]));
        };
        if !is_several {
            return Ok(Prompts(vec![one_prompt(at, items.into(), bounds)?]));
        }
        let most = self.most.of(bounds);
        if let Some(most) = most.filter(|most| items.len() as u64 > most.cast_unsigned()) {
            let message = format!(
                "`{at}` has {} prompts; at most {most} are allowed",
                items.len()
            );
            return Err(ApiError::invalid(at, message));
        }
        let prompts = items
            .into_iter()
            .map(|item| one_prompt(at, item, bounds))
            .collect::<Result<_, _>>()?;
        Ok(Prompts(prompts))
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let text = json!({"type": "string", "minLength": 1});
        let part = json!({"anyOf": [text, token_id_schema(bounds)]});
        let parts = json!({"type": "array", "items": part, "minItems": 1});
        let object = json!({"type": "object", "properties": {"prompt_string": text}});
        let one = json!({"anyOf": [text, parts, object]});
        let mut several = json!({"type": "array", "items": one, "minItems": 1});
        if let Some(most) = self.most.of(bounds) {
            several["maxItems"] = most.into();
        }
        json!({"anyOf": [text, parts, object, several]})
    }
}

/// What a prompt may be.
const PROMPT_RULE: &str =
    "a non-empty string, a list of token ids and strings, or a list of such prompts";

/// Reads one prompt.
fn one_prompt(at: &str, value: Value, bounds: &Bounds) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => not_empty(at, text).map(Prompt::Text),
        Value::Array(items) if items.is_empty() => {
            let message = format!("`{at}` must not have an empty list of token ids");
            Err(ApiError::invalid(at, message))
        }
        Value::Array(items) => parts(at, items, bounds),
        other if integers::digits(&other).is_some() => Err(wrong(at, PROMPT_RULE, &other)),
        Value::Object(object) => not_empty(at, text_of_object(at, object)?).map(Prompt::Text),
        other => Err(wrong(at, PROMPT_RULE, &other)),
    }
}

/// Reads a list of token ids and texts.
fn parts(at: &str, items: Vec<Value>, bounds: &Bounds) -> Result<Prompt, ApiError> {
    if items.iter().all(|item| !item.is_string()) {
        let ids = items.iter().map(|item| token_id(at, item, bounds));
        return ids.collect::<Result<_, _>>().map(Prompt::Ids);
    }
    let mut parts = Vec::new();
    for item in items {
        match (item, parts.last_mut()) {
            (Value::String(text), _) => parts.push(Prompt::Text(not_empty(at, text)?)),
            (id, Some(Prompt::Ids(ids))) => ids.push(token_id(at, &id, bounds)?),
            (id, _) => parts.push(Prompt::Ids(vec![token_id(at, &id, bounds)?])),
        }
    }
    Ok(Prompt::Mixed(parts))
}

/// The text of a prompt in the form of an object: llama.cpp's `prompt_string`, or the `content` of a message.
fn text_of_object(at: &str, mut object: Map<String, Value>) -> Result<String, ApiError> {
    let media = object.remove("multimodal_data");
    if media.is_some_and(|media| media.as_array().is_none_or(|items| !items.is_empty())) {
        let path = format!("{at}.multimodal_data");
        let message = format!("`{path}` is not supported: models take text only");
        return Err(ApiError::unsupported(path, message));
    }
    if let Some(text) = object.remove("prompt_string") {
        return string(&format!("{at}.prompt_string"), text);
    }
    let content = object.remove("content");
    let content = content.ok_or_else(|| wrong(at, PROMPT_RULE, &Value::Object(object)))?;
    let at = format!("{at}.content");
    let rule = "a list of parts of type text";
    let Value::Array(parts) = content else {
        return Err(wrong(&at, rule, &content));
    };
    let texts = parts
        .into_iter()
        .map(|part| match (&part["type"], &part["text"]) {
            (kind, Value::String(text)) if kind == "text" => Ok(text.clone()),
            _ => Err(wrong(&at, rule, &part)),
        });
    texts.collect()
}

fn string(at: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(at, "a string", &other)),
    }
}

/// Maximum number of other files beside a gap.
const FILES_MAX: usize = 256;

/// Files, each an object with `filename` and `text`.
pub(crate) struct ExtraFiles;

impl Kind for ExtraFiles {
    type Value = Vec<(String, String)>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Self::Value, ApiError> {
        let items = match value {
            Value::Array(items) if items.len() <= FILES_MAX => items,
            other => {
                return Err(wrong(
                    at,
                    &format!("a list of at most {FILES_MAX} files"),
                    &other,
                ));
            }
        };
        items
            .into_iter()
            .enumerate()
            .map(|(index, item)| {
                let at = format!("{at}[{index}]");
                let mut file = object(&at, item)?;
                let mut part = |name: &str| {
                    let path = format!("{at}.{name}");
                    string(&path, file.remove(name).unwrap_or(Value::Null))
                };
                Ok((part("filename")?, part("text")?))
            })
            .collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let properties =
            json!({"filename": Text::ANY.schema(bounds), "text": Text::ANY.schema(bounds)});
        let file =
            json!({"type": "object", "required": ["filename", "text"], "properties": properties});
        json!({"type": "array", "maxItems": FILES_MAX, "items": file})
    }
}

/// A setting that cannot be switched off.
pub(crate) struct AlwaysTrue;

impl Kind for AlwaysTrue {
    type Value = ();

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<(), ApiError> {
        match value {
            Value::Bool(true) => Ok(()),
            Value::Bool(false) => Err(ApiError::unsupported(
                at,
                format!("`{at}`: false is not supported"),
            )),
            other => Err(wrong(at, "true", &other)),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"enum": [true]})
    }
}

/// A gap to fill, with the field that asks for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct GapFields {
    pub(crate) before: Vec<String>,
    pub(crate) after: String,
    pub(crate) begun: String,
    pub(crate) files: Vec<(String, String)>,
    pub(crate) field: &'static str,
}

impl GapFields {
    /// The prompts, one for each text before the gap, and the tokens that end an answer besides the model's end tokens.
    pub(crate) async fn encode(
        self,
        state: &ModelState,
    ) -> Result<(Vec<Vec<u32>>, Vec<u32>), ApiError> {
        let field = self.field;
        let info = state.ready()?;
        let files: usize = self
            .files
            .iter()
            .map(|(name, text)| name.len() + text.len())
            .sum();
        let beside = self.after.len() + self.begun.len() + files;
        let longest = self.before.iter().map(String::len).max().unwrap_or(0) + beside;
        if longest > prompt_bytes_max(info) {
            let has = format!(
                "your prompt has {longest} bytes, of at most {}",
                prompt_bytes_max(info)
            );
            return Err(ApiError::context_length(field, info.max_model_len, &has));
        }
        let bytes = longest * self.before.len();
        let message = format!("`{field}`: this model has no tokens that mark a gap");
        let (prompts, ends) = state
            .with_text(bytes, move |text: &TextModel| {
                let infill = text.tokenizer.as_deref().and_then(Infill::new)?;
                let Self {
                    before,
                    after,
                    begun,
                    files,
                    ..
                } = &self;
                Some((
                    before
                        .iter()
                        .map(|before| {
                            infill.prompt(Gap {
                                before,
                                after,
                                begun,
                                files,
                            })
                        })
                        .collect::<Result<Vec<_>, _>>(),
                    infill.end_ids(),
                ))
            })
            .await?
            .ok_or_else(|| ApiError::unsupported(field, message))?;
        Ok((
            prompts.map_err(|error| ApiError::invalid(field, error.to_string()))?,
            ends,
        ))
    }
}

/// A text that is not empty.
pub(crate) fn not_empty(field: &str, text: String) -> Result<String, ApiError> {
    if text.is_empty() {
        let message = format!("`{field}` must not be empty");
        return Err(ApiError::invalid(field, message));
    }
    Ok(text)
}

fn check_bytes(field: &str, bytes: usize, context: u32, most: usize) -> Result<(), ApiError> {
    if bytes <= most {
        return Ok(());
    }
    Err(ApiError::context_length(
        field,
        context,
        &format!("your prompt has {bytes} bytes, of at most {most}"),
    ))
}
