//! The query of a URL, as forms and clients write it.

use crate::server::wire::error::ApiError;
use percent_encoding::percent_decode_str;

/// The first value of this name; `+` and percent codes are decoded.
pub(crate) fn value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(
        percent_decode_str(&value.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned(),
    )
}

/// The value of `limit`: the items of a page.
pub(crate) fn limit(value: Option<String>, default: usize, most: usize) -> Result<usize, ApiError> {
    match value.map(|limit| limit.parse()) {
        None => Ok(default),
        Some(Ok(limit)) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(ApiError::invalid(
            "limit",
            format!("`limit` must be from 1 to {most}"),
        )),
    }
}

#[cfg(test)]
mod tests;
