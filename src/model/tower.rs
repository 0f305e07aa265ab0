//! The tower of a model that reads images: its config, beside that of the text model.
//!
//! A tower is an encoder whose rows are patches of images. [`super::Model::open_tower`] opens it as a model of its own,
//! which is recorded, uploaded and run like any other.

use super::config_defaults;
use super::config_reader::{self, ConfigReader};
use super::error::LoadError;
use super::families::{Family, IDEFICS3_VISION, PIXTRAL};
use super::spec::{IDS_MAX, ModelSpec, Projector, TowerSpec};
use super::stored::Stored;
use serde_json::Value;

/// Most pixels of a patch's side.
const PATCH_MAX: u32 = 256;
/// Most pixels of the side of what a tower sees at once.
const SIDE_MAX: u32 = 8192;
/// Most rows along a side that become one.
const SCALE_MAX: u32 = 16;

/// How a model has its tower.
struct TowerRow {
    /// `model_type` of the whole model.
    model_type: &'static str,
    family: &'static Family,
    /// The field with the rows along a side that become one.
    scale: &'static str,
    ends: Ends,
}

/// How a tower begins and ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The product with patches has a bias. Images are squares of `image_size` pixels, and a product makes rows for
    /// the decoder.
    Square,
    /// Images have any shape; their sides are at most `image_size`, up to whole blocks. A product, and an MLP with
    /// GELU and without biases, make rows for the decoder. They begin with the norm after the last layer, which has the
    /// text model's epsilon.
    Mistral3,
}

const TOWERS: [TowerRow; 3] = [
    TowerRow {
        model_type: "idefics3",
        family: &IDEFICS3_VISION,
        scale: "scale_factor",
        ends: Ends::Square,
    },
    TowerRow {
        model_type: "smolvlm",
        family: &IDEFICS3_VISION,
        scale: "scale_factor",
        ends: Ends::Square,
    },
    TowerRow {
        model_type: "mistral3",
        family: &PIXTRAL,
        scale: "spatial_merge_size",
        ends: Ends::Mistral3,
    },
];

impl ModelSpec {
    /// Reads the tower of a `config.json`; `None` if the model has none that is known. `text` is the spec of the model
    /// without it.
    pub(crate) fn tower_from_json(
        file: &str,
        config_json: &[u8],
        text: &Self,
    ) -> Result<Option<Self>, LoadError> {
        let mut value = config_reader::parse(file, config_json)?;
        let whole = ConfigReader::root(file, &value)?;
        let model_type = whole.text("model_type")?;
        let known = TOWERS.iter().find(|row| Some(row.model_type) == model_type);
        let (Some(row), Some(_)) = (known, whole.object("vision_config")?) else {
            return Ok(None);
        };
        let (family, ends) = (row.family, row.ends);
        let scale = whole.integer(row.scale, 1..=SCALE_MAX)?.unwrap_or(2);
        if ends == Ends::Mistral3 {
            check_mistral3(&whole)?;
        }
        let config = value["vision_config"].as_object_mut();
        config_defaults::complete(config.expect("it was read as an object"), family);
        let positions = positions(&ConfigReader::root(file, &value)?, ends, scale)?;
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
                patch_bias: ends == Ends::Square,
                final_epsilon: match ends {
                    Ends::Square => spec.norm.epsilon,
                    Ends::Mistral3 => text.norm.epsilon,
                },
                projector: match ends {
                    Ends::Square => Projector::Product,
                    Ends::Mistral3 => Projector::MergeAndMlp(text.hidden),
                },
                merged: scale * scale,
                out: text.hidden,
            }),
            ..spec
        }))
    }
}

/// Refuses what Mistral 3 may have, but published models do not.
fn check_mistral3(whole: &ConfigReader<'_>) -> Result<(), LoadError> {
    let vision = whole.object("vision_config")?;
    let vision = vision.expect("the config has a tower");
    for (config, field, known) in [
        (&vision, "model_type", Value::from("pixtral")),
        (whole, "vision_feature_layer", Value::from(-1)),
        (whole, "multimodal_projector_bias", Value::from(false)),
        (whole, "projector_hidden_act", Value::from("gelu")),
    ] {
        if let Some(found) = config.get(field).filter(|found| **found != known) {
            let message = format!("is {found}; only {known} is supported");
            return Err(config.invalid(field, message));
        }
    }
    Ok(())
}

/// Number of patches of what a tower sees at once at most: a square of whole blocks of `scale` × `scale` patches.
fn positions(whole: &ConfigReader<'_>, ends: Ends, scale: u32) -> Result<u32, LoadError> {
    let config = whole.object("vision_config")?;
    let config = config.expect("the config has a tower");
    let (name, channels) = ("image_size", config.integer("num_channels", 1..=1024)?);
    if channels.is_some_and(|channels| channels != 3) {
        return Err(config.invalid("num_channels", "is not 3: only images in colour are read"));
    }
    let side = config.required_integer(name, 1..=SIDE_MAX)?;
    let patch = config.required_integer("patch_size", 1..=PATCH_MAX)?;
    let side = match ends {
        Ends::Square => side,
        Ends::Mistral3 => side.next_multiple_of(patch * scale),
    };
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
