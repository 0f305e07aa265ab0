//! Images of `folio run` and `folio chat`: files as parts of a message.

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use folio::image::{Picture, PictureLimits};
use folio::platform;
use serde_json::{Value, json};
use std::path::Path;

/// The error for images without a model that reads them.
pub(crate) const TEXT_ONLY: &str = "this model reads text only, no images";

/// A file as a part of a message.
///
/// # Errors
/// Name the file that cannot be read, or is no image that is known.
pub(crate) fn part(path: &Path) -> Result<Value> {
    let at = || path.display().to_string();
    let limits = PictureLimits::default();
    let file = platform::read_file(path, limits.bytes).with_context(at)?;
    // The request's own error would name a part of it.
    Picture::decode(&file, &limits).with_context(at)?;
    let kind = Picture::media_type(&file).with_context(at)?;
    let url = format!("data:{kind};base64,{}", STANDARD.encode(file));
    Ok(json!({"type": "image_url", "image_url": {"url": url}}))
}

/// The content of a message: these images, then a text.
pub(crate) fn content(images: &[Value], text: &str) -> Value {
    if images.is_empty() {
        return text.into();
    }
    let text = json!({"type": "text", "text": text});
    images.iter().cloned().chain([text]).collect()
}
