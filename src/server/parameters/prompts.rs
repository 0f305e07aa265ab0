//! Prompts of a request, as texts or token ids, and their encoding.

use crate::engine::handle::EngineInfo;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::{Text, object, token_id, token_id_schema};
use crate::server::state::{ModelState, prompt_bytes_max};
use crate::server::wire::error::ApiError;
use crate::text::{Gap, Infill, TextModel, Tokenizer, TokenizerError};
use serde_json::{Value, json};

/// The forms of `prompt`.
pub(crate) enum Prompts {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

impl Prompts {
    /// The prompts as token ids. Texts are encoded, with the special tokens that the tokenizer adds if `add_special`.
    pub(crate) async fn encode(
        self,
        state: &ModelState,
        add_special: bool,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        match self {
            Self::Ids(prompts) => Ok(prompts),
            Self::Texts(texts) => encode(state, texts, add_special).await,
        }
    }

    /// Refuses texts that are certainly too long, before they are encoded.
    pub(crate) fn check_bytes(&self, field: &str, info: &EngineInfo) -> Result<(), ApiError> {
        let Self::Texts(texts) = self else {
            return Ok(());
        };
        texts.iter().try_for_each(|text| {
            check_bytes(
                field,
                text.len(),
                info.max_model_len,
                prompt_bytes_max(info),
            )
        })
    }

    /// The first `most` token ids of each prompt, with the special tokens that the tokenizer adds to a text. Texts may
    /// be of any length.
    pub(crate) async fn encode_beginning(
        self,
        state: &ModelState,
        most: usize,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        // Nothing after this can be among the first tokens, so it is not encoded.
        let bytes_max = BYTES_READ_PER_BYTE * prompt_bytes_max(state.ready()?);
        match self {
            Self::Ids(mut prompts) => {
                prompts.iter_mut().for_each(|prompt| prompt.truncate(most));
                Ok(prompts)
            }
            Self::Texts(mut texts) => {
                let end = |text: &str| {
                    (0..=bytes_max.min(text.len()))
                        .rev()
                        .find(|&at| text.is_char_boundary(at))
                };
                texts
                    .iter_mut()
                    .for_each(|text| text.truncate(end(text).unwrap_or(0)));
                encode_with(state, texts, move |tokenizer, text| {
                    beginning(tokenizer, text, most)
                })
                .await
            }
        }
    }
}

/// The first `most` tokens of a text. The tokens that the tokenizer adds at the end stay there: models read the meaning
/// of a text from them.
pub(crate) fn beginning(
    tokenizer: &Tokenizer,
    text: &str,
    most: usize,
) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = tokenizer.encode(text, true)?;
    let surplus = ids.len().saturating_sub(most);
    if surplus > 0 {
        let bare = tokenizer.encode(text, false)?;
        let before =
            (0..=ids.len().saturating_sub(bare.len())).find(|&at| ids[at..].starts_with(&bare));
        let end = before.map_or(ids.len(), |before| before + bare.len());
        ids.drain(end.saturating_sub(surplus)..end);
        ids.truncate(most);
    }
    Ok(ids)
}

/// Of a text that may be cut, this many times the bytes of the longest prompt are encoded.
const BYTES_READ_PER_BYTE: usize = 4;

/// A text, several, a list of token ids, or several lists.
pub(crate) struct PromptsKind {
    /// Whether texts may have any length, because those that are too long may be cut.
    pub(crate) any_length: bool,
    /// Maximum number of prompts.
    pub(crate) most: Most,
}

impl PromptsKind {
    fn checked(&self, at: &str, text: String, bounds: &Bounds) -> Result<String, ApiError> {
        let prompt_bytes = if self.any_length {
            usize::MAX
        } else {
            bounds.prompt_bytes
        };
        checked_text(
            at,
            text,
            &Bounds {
                prompt_bytes,
                ..*bounds
            },
        )
    }
}

impl Kind for PromptsKind {
    type Value = Prompts;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Prompts, ApiError> {
        let items = match value {
            Value::String(text) => {
                return Ok(Prompts::Texts(vec![self.checked(at, text, bounds)?]));
            }
            Value::Array(items) if !items.is_empty() => items,
            other => {
                return Err(wrong(
                    at,
                    "a non-empty string, list of strings, or list(s) of token ids",
                    &other,
                ));
            }
        };
        if items[0].is_number() {
            return Ok(Prompts::Ids(vec![ids(at, &items, bounds)?]));
        }
        if let Some(most) = self
            .most
            .of(bounds)
            .filter(|most| items.len() as u64 > most.cast_unsigned())
        {
            let message = format!(
                "`{at}` has {} prompts; at most {most} are allowed",
                items.len()
            );
            return Err(ApiError::invalid(at, message));
        }
        if items[0].is_array() {
            let lists = items.iter().map(|item| match item {
                Value::Array(list) => ids(at, list, bounds),
                other => Err(wrong(at, "lists of token ids only", other)),
            });
            return Ok(Prompts::Ids(lists.collect::<Result<_, _>>()?));
        }
        let texts = items.into_iter().map(|item| match item {
            Value::String(text) => self.checked(at, text, bounds),
            other => Err(wrong(at, "strings only", &other)),
        });
        Ok(Prompts::Texts(texts.collect::<Result<_, _>>()?))
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let text = json!({"type": "string", "minLength": 1});
        let ids = json!({"type": "array", "items": token_id_schema(bounds), "minItems": 1});
        let several = |item: &Value| {
            let mut list = json!({"type": "array", "items": item, "minItems": 1});
            if let Some(most) = self.most.of(bounds) {
                list["maxItems"] = most.into();
            }
            list
        };
        json!({"anyOf": [text, several(&text), ids, several(&ids)]})
    }
}

/// A text, possibly empty, that is not too long for the context.
pub(crate) struct Content;

impl Kind for Content {
    type Value = String;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<String, ApiError> {
        match value {
            Value::String(text) if text.len() <= bounds.prompt_bytes => Ok(text),
            other => Err(wrong(
                at,
                &format!("a string of at most {} bytes", bounds.prompt_bytes),
                &other,
            )),
        }
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        json!({"type": "string", "maxLength": bounds.prompt_bytes})
    }
}

/// Maximum number of other files beside a gap.
const FILES_MAX: usize = 256;

/// Files, each an object with `filename` and `text`.
pub(crate) struct ExtraFiles;

impl Kind for ExtraFiles {
    type Value = Vec<(String, String)>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
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
                    Content.read(
                        &format!("{at}.{name}"),
                        file.remove(name).unwrap_or(Value::Null),
                        bounds,
                    )
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

/// A text that is neither empty nor too long for the context.
pub(crate) fn checked_text(field: &str, text: String, bounds: &Bounds) -> Result<String, ApiError> {
    if text.is_empty() {
        return Err(ApiError::invalid(
            field,
            format!("`{field}` must not be empty"),
        ));
    }
    check_bytes(field, text.len(), bounds.context, bounds.prompt_bytes)?;
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

fn ids(field: &str, items: &[Value], bounds: &Bounds) -> Result<Vec<u32>, ApiError> {
    if items.is_empty() {
        return Err(ApiError::invalid(
            field,
            format!("`{field}` must not have an empty list of token ids"),
        ));
    }
    items
        .iter()
        .map(|item| token_id(field, item, bounds))
        .collect()
}

async fn encode(
    state: &ModelState,
    texts: Vec<String>,
    add_special: bool,
) -> Result<Vec<Vec<u32>>, ApiError> {
    encode_with(state, texts, move |tokenizer, text| {
        tokenizer.encode(text, add_special)
    })
    .await
}

async fn encode_with(
    state: &ModelState,
    texts: Vec<String>,
    encode: impl Fn(&Tokenizer, &str) -> Result<Vec<u32>, TokenizerError> + Send + 'static,
) -> Result<Vec<Vec<u32>>, ApiError> {
    if state.text.tokenizer.is_none() {
        return Err(ApiError::invalid(
            "prompt",
            "this model has no tokenizer: send token ids",
        ));
    }
    let bytes = texts.iter().map(String::len).sum();
    let encoded = state.with_text(bytes, move |text| {
        let tokenizer = text
            .tokenizer
            .as_ref()
            .expect("the tokenizer exists: checked above");
        texts
            .iter()
            .map(|text| encode(tokenizer, text))
            .collect::<Result<Vec<_>, _>>()
    });
    let prompts = encoded
        .await?
        .map_err(|error| ApiError::invalid("prompt", error.to_string()))?;
    if prompts.iter().any(Vec::is_empty) {
        return Err(ApiError::invalid("prompt", "a prompt encodes to no tokens"));
    }
    Ok(prompts)
}
