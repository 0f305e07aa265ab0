//! Bytes → the numbers that a tower reads.

use super::error::ImageError;
use serde_json::Value;

/// Per channel: what is subtracted from a byte, and what the rest is divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Normalization {
    means: [f32; 3],
    deviations: [f32; 3],
}

impl Normalization {
    /// Means and deviations of processors whose files have none.
    pub(super) const HALVES: [[f64; 3]; 2] = [[0.5; 3]; 2];
    /// Those of CLIP.
    pub(super) const CLIP: [[f64; 3]; 2] = [
        [0.481_454_66, 0.457_827_5, 0.408_210_73],
        [0.268_629_54, 0.261_302_58, 0.275_777_11],
    ];

    /// Reads `image_mean` and `image_std` of a processor's file, of numbers from 0 to 1; with these defaults.
    ///
    /// # Errors
    /// Fields of another form; steps that are switched off, or another factor than 1/255.
    pub(super) fn read(
        file: &'static str,
        processor: &Value,
        defaults: [[f64; 3]; 2],
    ) -> Result<Self, ImageError> {
        let refuse = |field: &str, message: String| ImageError::Field {
            file,
            field: field.into(),
            message,
        };
        for step in ["do_rescale", "do_normalize", "do_resize"] {
            if processor[step] == Value::Bool(false) {
                return Err(refuse(
                    step,
                    "is false, which is not supported for this model".into(),
                ));
            }
        }
        let factor = processor["rescale_factor"].as_f64().unwrap_or(1.0 / 255.0);
        if (factor * 255.0 - 1.0).abs() > 1e-6 {
            return Err(refuse(
                "rescale_factor",
                format!("is {factor}; only 1/255 is supported"),
            ));
        }
        let channels = |field: &str, default: [f64; 3]| {
            let numbers = match &processor[field] {
                Value::Null => Some(default.to_vec()),
                value => value
                    .as_array()
                    .and_then(|list| list.iter().map(Value::as_f64).collect()),
            };
            let numbers = numbers.unwrap_or_default();
            let numbers: Result<[f64; 3], _> = numbers.try_into();
            // transformers multiplies in f32.
            let numbers = numbers.map(|numbers| numbers.map(|number| number as f32 * 255.0));
            numbers.map_err(|_| refuse(field, "is not a list of three numbers".into()))
        };
        let [mean, deviation] = defaults;
        let means = channels("image_mean", mean)?;
        let deviations = channels("image_std", deviation)?;
        if deviations.iter().any(|deviation| *deviation <= 0.0) {
            return Err(refuse("image_std", "is not positive".into()));
        }
        Ok(Self { means, deviations })
    }

    /// A byte of a channel, normalized, as torchvision computes it.
    pub(super) fn apply(&self, channel: usize, byte: u8) -> f32 {
        (f32::from(byte) - self.means[channel]) / self.deviations[channel]
    }
}
