//! Images, from files to the patches that a model's tower reads.
//!
//! [`Picture::decode`] reads a file within [`PictureLimits`]; [`ImageProcessor`], read from a checkpoint's files,
//! resizes it to what the model was trained on, cuts it into tiles, normalizes these, and says which text stands for
//! them in a prompt. Pixels are those of transformers with torchvision, bit for bit ([`Picture::resize`]).
//!
//! Nothing here depends on a device, the engine, HTTP or files. The crate of the same name decodes formats.

mod decode;
mod error;
mod fields;
mod idefics3;
mod normalize;
mod patches;
mod picture;
mod pixtral;
mod processor;
mod resize;
#[cfg(test)]
mod tests;

pub use decode::PictureLimits;
pub use error::ImageError;
pub use patches::Tile;
pub use picture::Picture;
pub use processor::{ImageProcessor, Processed};
pub use resize::Filter;
