//! The tower of a model that reads images: its config, beside that of the text model.
//!
//! A tower is an encoder whose rows are patches of images. [`super::Model::open_tower`] opens it as a model of its own,
//! which is recorded, uploaded and run like any other.

use super::config_defaults;
use super::config_reader::{self, ConfigReader};
use super::error::LoadError;
use super::families::{Family, IDEFICS3_VISION};
use super::spec::{IDS_MAX, ModelSpec, TowerSpec};
use super::stored::Stored;
use serde_json::Value;

/// Most pixels of a patch's side.
const PATCH_MAX: u32 = 256;
/// Most pixels of the side of what a tower sees at once.
const SIDE_MAX: u32 = 8192;
/// Most rows along a side that become one.
const SCALE_MAX: u32 = 16;

/// `model_type` of a whole model, and the row of its tower.
const TOWERS: [(&str, &Family); 2] = [
    ("idefics3", &IDEFICS3_VISION),
    ("smolvlm", &IDEFICS3_VISION),
];

impl ModelSpec {
    /// Reads the tower of a `config.json`; `None` if the model has none that is known. `text` is the spec of the model
    /// without it.
    pub(super) fn tower_from_json(
        file: &str,
        config_json: &[u8],
        text: &Self,
    ) -> Result<Option<Self>, LoadError> {
        let mut value = config_reader::parse(file, config_json)?;
        let whole = ConfigReader::root(file, &value)?;
        let model_type = whole.text("model_type")?;
        let known = TOWERS.iter().find(|(own, _)| Some(*own) == model_type);
        let (Some((_, family)), Some(_)) = (known, whole.object("vision_config")?) else {
            return Ok(None);
        };
        let scale = whole.integer("scale_factor", 1..=SCALE_MAX)?.unwrap_or(2);
        let config = value["vision_config"].as_object_mut();
        config_defaults::complete(config.expect("it was read as an object"), family);
        let positions = positions(&ConfigReader::root(file, &value)?, scale)?;
        let fields = [
            ("max_position_embeddings", positions),
            ("vocab_size", positions),
        ];
        for (field, number) in fields {
            value["vision_config"][field] = Value::from(number);
        }
        let whole = ConfigReader::root(file, &value)?;
        let config = whole.object("vision_config")?;
        let config = config.expect("it was read before").named(family.fields);
        let spec = Self::of_family(family, &whole, &config, &Stored::CHECKPOINT)?;
        Ok(Some(Self {
            tower: Some(TowerSpec {
                patch: config.required_integer("patch_size", 1..=PATCH_MAX)?,
                merged: scale * scale,
                out: text.hidden,
            }),
            ..spec
        }))
    }
}

/// Number of patches of what a tower sees at once: a square of whole blocks of `scale` × `scale` patches.
fn positions(whole: &ConfigReader<'_>, scale: u32) -> Result<u32, LoadError> {
    let config = whole.object("vision_config")?;
    let config = config.expect("the config has a tower");
    let (name, channels) = ("image_size", config.integer("num_channels", 1..=1024)?);
    if channels.is_some_and(|channels| channels != 3) {
        return Err(config.invalid("num_channels", "is not 3: only images in colour are read"));
    }
    let side = config.required_integer(name, 1..=SIDE_MAX)?;
    let patch = config.required_integer("patch_size", 1..=PATCH_MAX)?;
    let patches = side / patch;
    if patches == 0 || !side.is_multiple_of(patch) || !patches.is_multiple_of(scale) {
        let message = format!("is {side}: not whole blocks of {scale} patches of {patch} pixels");
        return Err(config.invalid(name, message));
    }
    debug_assert!(
        patches * patches < IDS_MAX,
        "a side has at most so many patches"
    );
    Ok(patches * patches)
}

#[cfg(test)]
mod tests;
