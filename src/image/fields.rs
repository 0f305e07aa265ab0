//! The fields of a checkpoint's files that say what becomes of images.

use super::error::ImageError;
use super::resize::Filter;
use serde_json::Value;
use std::ops::RangeInclusive;

/// The fields of a file.
pub(super) struct Fields<'a> {
    pub(super) file: &'static str,
    pub(super) value: &'a Value,
}

impl Fields<'_> {
    fn get(&self, path: &str) -> &Value {
        path.split('.')
            .fold(self.value, |value, field| &value[field])
    }

    pub(super) fn refuse(&self, field: &str, message: String) -> ImageError {
        ImageError::Field {
            file: self.file,
            field: field.into(),
            message,
        }
    }

    /// A whole number in a range; `default` if the field is missing.
    pub(super) fn number(
        &self,
        field: &str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> Result<u32, ImageError> {
        let value = self.get(field);
        let number = match value {
            Value::Null => Some(default),
            value => value.as_u64().and_then(|number| u32::try_from(number).ok()),
        };
        let number = number.filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.refuse(
                field,
                format!("is {value}; it must be a whole number from {least} to {most}"),
            )
        })
    }

    /// Fails if a step that the model needs is switched off.
    pub(super) fn require_true(&self, field: &str) -> Result<(), ImageError> {
        self.require(field, &Value::Bool(true))
    }

    /// Fails if a field is there and has another value.
    pub(super) fn require(&self, field: &str, known: &Value) -> Result<(), ImageError> {
        match self.get(field) {
            Value::Null => Ok(()),
            found if found == known => Ok(()),
            found => Err(self.refuse(field, format!("is {found}; only {known} is supported"))),
        }
    }

    /// The filter of `resample`.
    pub(super) fn filter(&self, default: Filter) -> Result<Filter, ImageError> {
        let value = self.get("resample");
        if value.is_null() {
            return Ok(default);
        }
        let filter = value.as_u64().and_then(Filter::of_number);
        filter.ok_or_else(|| {
            self.refuse(
                "resample",
                format!("is {value}; known are 1 (Lanczos), 2 (bilinear) and 3 (bicubic)"),
            )
        })
    }
}
