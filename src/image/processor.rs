//! A checkpoint's image processor: what becomes of an image before the tower reads it.

use super::error::ImageError;
use super::fields::Fields;
use super::idefics3::{self, Tiling};
use super::normalize::Normalization;
use super::patches::{self, Grid, Tile};
use super::picture::Picture;
use super::pixtral::{self, Sizing};
use serde_json::Value;

/// Turns images into tiles, and says which text stands for them.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    form: Form,
    grid: Grid,
    normalization: Normalization,
    placeholder: u32,
}

/// What an image becomes.
#[derive(Clone, Debug, PartialEq)]
enum Form {
    /// Tiles of one size (Idefics 3, SmolVLM).
    Tiles(Tiling),
    /// One tile of its own shape (Mistral 3).
    Whole(Sizing),
}

/// What a prompt has of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Processed {
    /// What the tower reads, in the order of the placeholders.
    pub tiles: Vec<Tile>,
    /// What the image's marker in a prompt is replaced by, with one placeholder for each row of the tiles.
    pub text: String,
}

impl ImageProcessor {
    /// Files that [`Self::read`] may be given besides config.json. The later one wins if both have fields of images.
    pub const FILES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

    /// The processor of a checkpoint, from config.json and [`Self::FILES`]; `None` if its model reads no images here.
    ///
    /// # Errors
    /// A field of another form, outside its range, or with a value that is not supported.
    pub fn read(config: &Value, files: [Option<&Value>; 2]) -> Result<Option<Self>, ImageError> {
        let read = match config["model_type"].as_str() {
            _ if config["vision_config"].is_null() => return Ok(None),
            Some("idefics3" | "smolvlm") => Self::idefics3,
            Some("mistral3") => Self::mistral3,
            _ => return Ok(None),
        };
        let own = Fields {
            file: "config.json",
            value: config,
        };
        let [older, newer] = files;
        let inner = newer.map(|file| &file["image_processor"]);
        let (file, value) = match (inner.filter(|value| value.is_object()), older) {
            (Some(value), _) => (Self::FILES[1], value),
            (None, Some(value)) => (Self::FILES[0], value),
            (None, None) => (Self::FILES[0], &Value::Null),
        };
        let whole = Fields {
            file: Self::FILES[1],
            value: newer.unwrap_or(&Value::Null),
        };
        read(&own, &Fields { file, value }, &whole).map(Some)
    }

    /// From the fields of config.json, and those of the image processor.
    fn idefics3(own: &Fields<'_>, fields: &Fields<'_>, _: &Fields<'_>) -> Result<Self, ImageError> {
        let tiling = Tiling::read(fields)?;
        let grid = Grid {
            patch: own.number("vision_config.patch_size", 32, 1..=256)?,
            block: own.number("scale_factor", 2, 1..=16)?,
        };
        let side = own.number("vision_config.image_size", 224, 1..=4096)?;
        if side != tiling.tile() || !side.is_multiple_of(grid.patch * grid.block) {
            let message = format!(
                "is {side}; it must be the {} pixels of a tile, and whole blocks of {} patches of {}",
                tiling.tile(),
                grid.block,
                grid.patch
            );
            return Err(own.refuse("vision_config.image_size", message));
        }
        Ok(Self {
            form: Form::Tiles(tiling),
            grid,
            normalization: Normalization::read(fields.file, fields.value, Normalization::HALVES)?,
            placeholder: own.number("image_token_id", 128_257, 0..=u32::MAX)?,
        })
    }

    /// The same, and from the fields of the processor around the image processor.
    fn mistral3(
        own: &Fields<'_>,
        fields: &Fields<'_>,
        around: &Fields<'_>,
    ) -> Result<Self, ImageError> {
        let grid = Grid {
            patch: own.number("vision_config.patch_size", 16, 1..=256)?,
            block: own.number("spatial_merge_size", 2, 1..=16)?,
        };
        around.require("spatial_merge_size", &grid.block.into())?;
        for (field, text) in pixtral::WORDS {
            around.require(field, &text.into())?;
        }
        let sizing = Sizing::read(fields, grid)?;
        let side = own.number("vision_config.image_size", 1024, 1..=8192)?;
        if sizing.side_max() > side.next_multiple_of(grid.patch * grid.block) {
            let message = format!("is {side}: larger images reach the tower");
            return Err(own.refuse("vision_config.image_size", message));
        }
        let placeholder = own.number("image_token_index", 10, 0..=u32::MAX)?;
        Ok(Self {
            form: Form::Whole(sizing),
            grid,
            normalization: Normalization::read(fields.file, fields.value, Normalization::CLIP)?,
            placeholder: own.number("image_token_id", placeholder, 0..=u32::MAX)?,
        })
    }

    /// The token id of a placeholder.
    pub fn placeholder(&self) -> u32 {
        self.placeholder
    }

    /// The text that a prompt's template writes for an image.
    pub fn marker(&self) -> &'static str {
        match self.form {
            Form::Tiles(_) => "<image>",
            Form::Whole(_) => pixtral::PLACEHOLDER,
        }
    }

    /// Columns of a tile's patches.
    pub fn columns(&self) -> u32 {
        patches::columns(self.grid.patch)
    }

    /// Resizes an image, cuts it into tiles and these into patches.
    ///
    /// # Errors
    /// An image of a shape that the model cannot read.
    pub fn process(&self, picture: &Picture) -> Result<Processed, ImageError> {
        let tile = |picture: &Picture| Tile::new(picture, self.grid, &self.normalization);
        match &self.form {
            Form::Tiles(tiling) => {
                let parts = tiling.cut(picture)?;
                let tiles: Vec<_> = parts.pictures.iter().map(tile).collect();
                let text = idefics3::text(parts.grid, tiles[0].rows);
                Ok(Processed { tiles, text })
            }
            Form::Whole(sizing) => {
                let mut tile = tile(&sizing.fit(picture)?);
                tile.run = tile.across / self.grid.block;
                Ok(Processed {
                    text: pixtral::text(tile.rows, tile.run),
                    tiles: vec![tile],
                })
            }
        }
    }
}
