//! Images in messages, as clients send them: the bytes of a file in base64, in a URL or alone.

use crate::server::images::GivenImage;
use crate::server::parameters::kind::wrong;
use crate::server::wire::error::{ApiError, shorten};
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{alphabet, engine::DecodePaddingMode};
use serde_json::{Value, json};

/// Some clients leave out what pads the end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Values of `detail` under which an image is read as the model was trained.
const DETAILS: [&str; 2] = ["auto", "high"];

/// What stands for an image in the result of a tool, for a model that reads text only. The conversation could not go on
/// if it were refused, because clients send it again with each request.
pub(crate) const UNSEEN: &str = "[an image, which this model cannot see]";

/// What becomes of images in a content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Images {
    Read,
    /// [`UNSEEN`] takes their place.
    Named,
    Refused,
}

impl Images {
    /// In a content of this role, for a model that reads images, or text only.
    pub(crate) fn of_role(role: &str, reads_images: bool) -> Self {
        match role {
            "user" => Self::Read,
            "tool" if reads_images => Self::Read,
            "tool" => Self::Named,
            _ => Self::Refused,
        }
    }
}

/// A piece of a content.
pub(crate) enum Piece {
    Text(String),
    Image(GivenImage),
}

impl Piece {
    /// Adds text, as another line of the text before it.
    pub(crate) fn add_text(pieces: &mut Vec<Self>, text: &str) {
        match pieces.last_mut() {
            Some(Self::Text(before)) => {
                before.push('\n');
                before.push_str(text);
            }
            _ => pieces.push(Self::Text(text.to_owned())),
        }
    }
}

/// What stands for an image in the content of a message: the part that chat templates know.
pub(crate) fn part() -> Value {
    json!({"type": "image"})
}

/// Whether a part of a content stands for an image.
pub(crate) fn is_image(part: &Value) -> bool {
    part["type"] == "image"
}

/// A text as a part beside images.
pub(crate) fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The error for images in messages of others.
pub(crate) fn not_of_user(at: &str) -> ApiError {
    let message = "only messages of the user and results of tools may have images";
    ApiError::unsupported(at, message)
}

/// The image in base64 that the field called `at` has.
pub(crate) fn from_base64(at: &str, text: &str) -> Result<GivenImage, ApiError> {
    let refused = |error| ApiError::invalid(at, format!("the image is not base64: {error}"));
    Ok(GivenImage {
        name: at.to_owned(),
        file: BASE64.decode(text).map_err(refused)?,
    })
}

/// The image in OpenAI's parts `image_url` and `input_image`; this one is called `at`.
pub(crate) fn from_part(at: &str, part: &Value) -> Result<GivenImage, ApiError> {
    from_url(at, url_of(at, part)?)
}

/// The URL of such a part.
pub(crate) fn url_of<'a>(at: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    let field = format!("{at}.image_url");
    let image = &part["image_url"];
    match image {
        Value::String(url) => {
            check_detail(&format!("{at}.detail"), &part["detail"])?;
            Ok(url)
        }
        Value::Object(_) => {
            let url = image["url"].as_str();
            let url =
                url.ok_or_else(|| wrong(&format!("{field}.url"), "a string", &image["url"]))?;
            check_detail(&format!("{field}.detail"), &image["detail"])?;
            Ok(url)
        }
        other => Err(wrong(&field, "an object with a `url`", other)),
    }
}

/// Refuses another size than the model's own.
fn check_detail(at: &str, detail: &Value) -> Result<(), ApiError> {
    match detail {
        Value::Null => Ok(()),
        Value::String(detail) if DETAILS.contains(&detail.as_str()) => Ok(()),
        Value::String(detail) => {
            let detail = shorten(detail);
            let message = format!(
                "{detail} is not supported: images are read at the model's own size (\"auto\")"
            );
            Err(ApiError::unsupported(at, message))
        }
        other => Err(wrong(at, "a string", other)),
    }
}

/// The image in Anthropic's block `image`, which is called `at`.
pub(crate) fn from_block(at: &str, block: &Value) -> Result<GivenImage, ApiError> {
    match source_of(at, block)? {
        Source::Base64(data) => from_base64(at, data),
        Source::Url(url) => from_url(at, url),
    }
}

/// Where such a block has its image.
pub(crate) enum Source<'a> {
    Base64(&'a str),
    Url(&'a str),
}

/// The source of such a block.
pub(crate) fn source_of<'a>(at: &str, block: &'a Value) -> Result<Source<'a>, ApiError> {
    let source = &block["source"];
    let text = |field: &str| {
        let text = source[field].as_str();
        text.ok_or_else(|| wrong(&format!("{at}.source.{field}"), "a string", &source[field]))
    };
    match &source["media_type"] {
        Value::Null | Value::String(_) => {}
        other => return Err(wrong(&format!("{at}.source.media_type"), "a string", other)),
    }
    match text("type")? {
        "base64" => text("data").map(Source::Base64),
        "url" => text("url").map(Source::Url),
        kind => {
            let message = format!("images of source {} are not supported", shorten(kind));
            Err(ApiError::unsupported(at, message))
        }
    }
}

/// The image in a `data:` URL. Others are never fetched.
fn from_url(at: &str, url: &str) -> Result<GivenImage, ApiError> {
    let scheme = url
        .get(..5)
        .filter(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let Some(scheme) = scheme else {
        let message = "images are not fetched: send the file itself, as `data:image/png;base64,…`";
        return Err(ApiError::unsupported(at, message));
    };
    let (head, data) = url[scheme.len()..].split_once(',').unwrap_or((url, ""));
    let mut words = head.split(';');
    let kind = words.next().unwrap_or_default();
    let is_image = kind.is_empty() || kind.to_ascii_lowercase().starts_with("image/");
    let is_base64 = words
        .next_back()
        .is_some_and(|word| word.trim().eq_ignore_ascii_case("base64"));
    if !is_image || !is_base64 {
        let message = "a `data:` URL of an image begins with its type and ends in base64: `data:image/png;base64,…`";
        return Err(ApiError::invalid(at, message));
    }
    from_base64(at, data)
}
