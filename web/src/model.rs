//! Opens a model from files that are read in ranges: a folder in the Hugging Face layout, or GGUF.

use crate::error::EngineError;
use crate::files::JsFiles;
use crate::options::LoadOptions;
use folio::model::repository::{self, Selection};
use folio::model::{Gguf, Model, Texts, remote::read_whole};
use folio::text::{MORE_TEMPLATES, TextFolder, TextModel, Tokenizer};

/// Maximum bytes of a tokenizer or template file.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// The model behind `files` that `options` name, with its tokenizer and chat template, each of which may be missing.
pub(crate) async fn open(
    files: JsFiles,
    options: &LoadOptions,
) -> Result<(Model, TextModel), EngineError> {
    if let Some(file) = gguf_file(&files, options).await? {
        let gguf = Gguf::open_remote(Box::new(files), &file).await?;
        let text = gguf_text(&gguf.texts())?;
        return Ok((Model::from_gguf(gguf)?, text));
    }
    let text = folder_text(&files).await?;
    Ok((Model::open_remote(Box::new(files)).await?, text))
}

/// The GGUF file to open, if the model is not a folder.
async fn gguf_file(files: &JsFiles, options: &LoadOptions) -> Result<Option<String>, EngineError> {
    if options.gguf.is_some() {
        return Ok(options.gguf.clone());
    }
    let Some(names) = files.names().await? else {
        return Ok(None);
    };
    let selected = repository::select(&names, options.requested.as_deref());
    match selected.map_err(|error| EngineError::model(format!("{}: {error}", options.name)))? {
        Selection::Gguf { mut files, .. } => Ok(Some(files.swap_remove(0))),
        Selection::Folder { .. } => Ok(None),
    }
}

fn gguf_text(texts: &Texts) -> Result<TextModel, EngineError> {
    let tokenizer = texts.vocabulary()?.map(|vocabulary| {
        let tokens = vocabulary
            .tokens
            .iter()
            .map(|(text, id)| (text.as_ref(), *id));
        Tokenizer::from_tables(&vocabulary.tokenizer_json, tokens, &vocabulary.merges)
    });
    let config = texts.tokenizer_config_json()?;
    let text = tokenizer
        .transpose()
        .and_then(|tokenizer| TextModel::with_tokenizer(tokenizer, Some(&config), None));
    text.map_err(|error| EngineError::model(error.to_string()))
}

async fn folder_text(files: &JsFiles) -> Result<TextModel, EngineError> {
    let names = files.names().await?.unwrap_or_default();
    let more = names
        .into_iter()
        .filter(|name| name.starts_with(MORE_TEMPLATES));
    let mut folder = TextFolder::default();
    for name in TextFolder::NAMES.map(str::to_owned).into_iter().chain(more) {
        if let Some(bytes) = read_whole(files, &name, TEXT_BYTES_MAX).await? {
            folder.insert(&name, bytes.to_vec());
        }
    }
    let text = TextModel::from_folder(&folder, None);
    text.map_err(|error| EngineError::model(error.to_string()))
}
