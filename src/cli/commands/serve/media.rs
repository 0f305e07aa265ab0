//! `--limit-mm-per-prompt`, in both of vLLM's forms.

use serde_json::{Map, Value};
use std::str::FromStr;

/// What else models of vLLM read. Nothing of it is read here, so any limit of it holds.
const OTHERS: [&str; 2] = ["audio", "video"];

/// The most that a request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MediaLimits {
    /// Images.
    pub(super) images: u32,
}

impl FromStr for MediaLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields = if text.trim_start().starts_with('{') {
            serde_json::from_str(text)
                .map_err(|error| format!("expected a JSON object: {error}"))?
        } else {
            assignments(text)?
        };
        let mut images = None;
        for (name, value) in fields {
            let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
            let count = count.ok_or_else(|| format!("{name}: expected a number, not {value}"))?;
            match name.as_str() {
                "image" => images = Some(count),
                name if OTHERS.contains(&name) => {}
                name => return Err(format!("{name} is none of image, audio and video")),
            }
        }
        let images = images.ok_or("expected image=N or {\"image\": N}")?;
        Ok(Self { images })
    }
}

/// `image=4,video=0` as the fields of an object.
fn assignments(text: &str) -> Result<Map<String, Value>, String> {
    let fields = text.split(',').map(|field| {
        let (name, count) = field
            .split_once('=')
            .ok_or("expected image=N or {\"image\": N}")?;
        let count = count.trim();
        let number: u32 = count
            .parse()
            .map_err(|_| format!("{name}: expected a number, not {count}"))?;
        Ok((name.trim().to_owned(), number.into()))
    });
    fields.collect()
}

#[cfg(test)]
mod tests;
