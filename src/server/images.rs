//! Images of a conversation: from what a client sent to what the engine takes.
//!
//! [`ImageReader`] decodes and cuts them as the model was trained, and says which text stands for them;
//! [`ReadImages::placed`] finds that text in the prompt's tokens. Without the feature `images`, which a build for a
//! browser leaves out because decoders are large, there is no reader, and images are refused like those that are sent
//! to a model that reads text only. `docs/images.md` documents them for users.

#[cfg(feature = "images")]
mod reader;

#[cfg(feature = "images")]
pub use reader::ImageReader;

#[cfg(not(feature = "images"))]
use crate::engine::request::ImageRoom;
use crate::engine::request::Tile;
#[cfg(not(feature = "images"))]
use crate::server::wire::error::ApiError;
use crate::server::wire::memory::Charge;
use std::sync::Arc;

/// An image of a request, as a client sent it.
#[derive(Clone, Debug)]
pub(crate) struct GivenImage {
    /// Path of its field, which errors name.
    pub(crate) name: String,
    /// The bytes of its file.
    pub(crate) file: Vec<u8>,
}

/// Images that are read, in the order of a conversation.
pub(crate) struct ReadImages {
    /// What the chat template writes for each of them.
    pub(crate) marker: &'static str,
    /// What takes the place of each marker.
    pub(crate) texts: Vec<String>,
    /// The token that stands for a row.
    placeholder: u32,
    /// Their parts, which have no place yet.
    tiles: Vec<Tile>,
    charge: Arc<Charge>,
}

/// The parts of a request's images with their places in the prompt, and what they are charged: far more than the bytes
/// of their files.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlacedImages {
    pub(crate) tiles: Arc<[Tile]>,
    _charge: Option<Arc<Charge>>,
}

impl ReadImages {
    /// The parts with their places in a prompt; `None` if it has more placeholders than there are rows, or fewer.
    pub(crate) fn placed(self, prompt: &[u32]) -> Option<PlacedImages> {
        let ids = (0_u32..).zip(prompt);
        let placeholders = ids.filter(|(_, id)| **id == self.placeholder);
        let mut places = placeholders.map(|(at, _)| at);
        let mut tiles = self.tiles;
        for tile in &mut tiles {
            tile.start = places.next()?;
            for row in 1..tile.rows {
                if places.next()? != tile.position(row) {
                    return None;
                }
            }
        }
        places.next().is_none().then(|| PlacedImages {
            tiles: tiles.into(),
            _charge: Some(self.charge),
        })
    }
}

/// A build without the feature `images` reads none.
#[cfg(not(feature = "images"))]
#[derive(Clone, Debug)]
pub enum ImageReader {}

#[cfg(not(feature = "images"))]
impl ImageReader {
    pub(crate) fn read(
        &self,
        _: &[GivenImage],
        _: ImageRoom,
        _: Arc<Charge>,
    ) -> Result<ReadImages, ApiError> {
        match *self {}
    }
}

#[cfg(all(test, feature = "images"))]
mod tests;
