//! A checkpoint's image processor: what becomes of an image before the tower reads it.

use super::error::ImageError;
use super::fields::Fields;
use super::idefics3::{self, Tiling};
use super::normalize::Normalization;
use super::patches::{self, Grid, Tile};
use super::picture::Picture;
use serde_json::Value;

/// Turns images into tiles, and says which text stands for them.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    tiling: Tiling,
    grid: Grid,
    normalization: Normalization,
    placeholder: u32,
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
        let model_type = config["model_type"].as_str().unwrap_or_default();
        if !matches!(model_type, "idefics3" | "smolvlm") || config["vision_config"].is_null() {
            return Ok(None);
        }
        let own = Fields {
            file: "config.json",
            value: config,
        };
        let [older, newer] = files;
        let newer = newer.map(|file| &file["image_processor"]);
        let (file, value) = match (newer.filter(|value| value.is_object()), older) {
            (Some(value), _) => (Self::FILES[1], value),
            (None, Some(value)) => (Self::FILES[0], value),
            (None, None) => (Self::FILES[0], &Value::Null),
        };
        let fields = Fields { file, value };
        let tiling = Tiling::read(&fields)?;
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
        Ok(Some(Self {
            tiling,
            grid,
            normalization: Normalization::read(file, value)?,
            placeholder: own.number("image_token_id", 128_257, 0..=u32::MAX)?,
        }))
    }

    /// The token id of a placeholder.
    pub fn placeholder(&self) -> u32 {
        self.placeholder
    }

    /// The text that a prompt's template writes for an image.
    pub fn marker(&self) -> &'static str {
        "<image>"
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
        let parts = self.tiling.cut(picture)?;
        let tiles = parts.pictures.iter();
        let tiles: Vec<_> = tiles
            .map(|picture| Tile::new(picture, self.grid, &self.normalization))
            .collect();
        let text = idefics3::text(parts.grid, tiles[0].rows);
        Ok(Processed { tiles, text })
    }
}
