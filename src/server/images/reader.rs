//! Reads images with a model's image processor.

use super::{GivenImage, ReadImages};
use crate::engine::request::{self, ImageRoom};
use crate::image::{ImageProcessor, Picture, PictureLimits};
use crate::server::wire::error::ApiError;
use crate::server::wire::memory::Charge;
use std::sync::{Arc, Mutex, PoisonError};

/// Reads the images that are sent to a model; cheap to clone.
#[derive(Clone, Debug)]
pub struct ImageReader {
    processor: Arc<ImageProcessor>,
    /// Held while an image is decoded, because that may take a gigabyte: one at a time, whoever sends them.
    turn: Arc<Mutex<()>>,
}

impl ImageReader {
    /// A reader with the processor of a model.
    pub fn new(processor: ImageProcessor) -> Self {
        Self {
            processor: Arc::new(processor),
            turn: Arc::default(),
        }
    }

    /// Reads images for which there is room. Takes long.
    ///
    /// # Errors
    /// The first image that cannot be read, is too large or makes too many rows, named by its field; one whose parts
    /// find no room in the memory of all requests.
    pub(crate) fn read(
        &self,
        images: &[GivenImage],
        room: ImageRoom,
        charge: Arc<Charge>,
    ) -> Result<ReadImages, ApiError> {
        let (mut texts, mut tiles, mut rows) = (Vec::new(), Vec::new(), 0_u32);
        for image in images {
            let refused = |message: String| ApiError::invalid(image.name.clone(), message);
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let processed = Picture::decode(&image.file, &PictureLimits::default())
                .and_then(|picture| self.processor.process(&picture))
                .map_err(|error| refused(error.to_string()))?;
            let tiles_rows = processed.tiles.iter().map(|tile| tile.rows);
            let largest = tiles_rows.max().unwrap_or(0);
            for tile in processed.tiles {
                rows = rows.saturating_add(tile.rows);
                charge.add((size_of_val(&*tile.patches) + size_of_val(&*tile.positions)) as u64)?;
                tiles.push(request::Tile {
                    start: 0,
                    rows: tile.rows,
                    run: tile.run,
                    digest: tile.digest,
                    patches: tile.patches,
                    positions: tile.positions,
                    across: tile.across,
                });
            }
            let (held, computed) = (room.rows, room.tile_rows());
            if rows > held {
                return Err(refused(format!(
                    "with this image, those of the request take {rows} tokens; at most {held} are held at once"
                )));
            }
            if largest > computed {
                return Err(refused(format!(
                    "the image takes {largest} tokens; this device computes at most {computed} at once"
                )));
            }
            texts.push(processed.text);
        }
        Ok(ReadImages {
            marker: self.processor.marker(),
            texts,
            placeholder: self.processor.placeholder(),
            tiles,
            charge,
        })
    }
}
