//! Files → pixels.
//!
//! What a file claims about its size is checked before anything is allocated for it. Of an animation, the first frame
//! is read. The EXIF orientation is applied, and transparency composited onto white, as vLLM and transformers do.

use super::error::ImageError;
use super::picture::Picture;
use ::image::codecs::bmp::BmpDecoder;
use ::image::codecs::gif::GifDecoder;
use ::image::codecs::jpeg::JpegDecoder;
use ::image::codecs::png::PngDecoder;
use ::image::codecs::webp::WebPDecoder;
use ::image::{DynamicImage, ImageDecoder, ImageFormat, Limits};
use std::io::Cursor;

/// Most bytes of a decoded pixel: four channels of 16 bits, and a copy of them.
const PIXEL_BYTES_MAX: u64 = 16;

/// What an image may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureLimits {
    /// Bytes of its file.
    pub bytes: u64,
    /// Pixels of a side.
    pub side: u32,
    /// Pixels.
    pub pixels: u64,
}

/// Photographs of all phones. 32 million pixels are 8K.
impl Default for PictureLimits {
    fn default() -> Self {
        Self {
            bytes: 32 << 20,
            side: 16_384,
            pixels: 64_000_000,
        }
    }
}

impl Picture {
    /// The media type of a file, such as `image/png`, by its first bytes; `None` if they are of no image.
    pub fn media_type(bytes: &[u8]) -> Option<&'static str> {
        let format = ::image::guess_format(bytes).ok()?;
        Some(format.to_mime_type())
    }

    /// Decodes a file. Its format is told by its first bytes, not by a name or type.
    ///
    /// # Errors
    /// A file that is too large, of another format, damaged, or whose image is too large.
    pub fn decode(bytes: &[u8], limits: &PictureLimits) -> Result<Self, ImageError> {
        let found = bytes.len() as u64;
        if found > limits.bytes {
            let most = limits.bytes;
            return Err(ImageError::Bytes { found, most });
        }
        let file = Cursor::new(bytes);
        match ::image::guess_format(bytes).map_err(|_| ImageError::Format)? {
            ImageFormat::Png => {
                let mut budget = Limits::no_limits();
                budget.max_alloc = Some(allocation(limits));
                read(PngDecoder::with_limits(file, budget), limits)
            }
            ImageFormat::Jpeg => read(JpegDecoder::new(file), limits),
            ImageFormat::WebP => read(WebPDecoder::new(file), limits),
            ImageFormat::Gif => read(GifDecoder::new(file), limits),
            ImageFormat::Bmp => read(BmpDecoder::new(file), limits),
            _ => Err(ImageError::Format),
        }
    }
}

/// Most bytes that a decoder may allocate.
fn allocation(limits: &PictureLimits) -> u64 {
    limits.pixels.saturating_mul(PIXEL_BYTES_MAX)
}

/// Checks the size that a decoder has read, then reads the pixels.
fn read<D: ImageDecoder>(
    decoder: ::image::ImageResult<D>,
    limits: &PictureLimits,
) -> Result<Picture, ImageError> {
    let mut decoder = decoder.map_err(|error| refused(&error))?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 || width.max(height) > limits.side || pixels > limits.pixels {
        return Err(ImageError::Size {
            height: height.into(),
            width: width.into(),
            side_max: limits.side,
            pixels_max: limits.pixels,
        });
    }
    let mut budget = Limits::default();
    budget.max_image_width = Some(limits.side);
    budget.max_image_height = Some(limits.side);
    budget.max_alloc = Some(allocation(limits));
    let outcome = decoder.set_limits(budget);
    outcome.map_err(|error| refused(&error))?;
    let orientation = decoder.orientation();
    let orientation = orientation.map_err(|error| refused(&error))?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(|error| refused(&error))?;
    image.apply_orientation(orientation);
    let (height, width) = (image.height(), image.width());
    let rgb = opaque(image);
    Ok(Picture::new(height, width, rgb).expect("a decoded image has all of its pixels"))
}

fn refused(error: &::image::ImageError) -> ImageError {
    ImageError::Decode(error.to_string())
}

/// The pixels in 8 bits, on white. Of 16 bits the high 8 are kept, as Pillow and torchvision do.
fn opaque(image: DynamicImage) -> Vec<u8> {
    match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageLuma8(image) => grey(image.as_raw().iter().map(|grey| [*grey, 255])),
        DynamicImage::ImageLumaA8(image) => grey(image.pixels().map(|pixel| pixel.0)),
        DynamicImage::ImageRgba8(image) => {
            image.pixels().flat_map(|pixel| on_white(pixel.0)).collect()
        }
        DynamicImage::ImageLuma16(image) => {
            grey(image.as_raw().iter().map(|grey| [high(*grey), 255]))
        }
        DynamicImage::ImageLumaA16(image) => grey(image.pixels().map(|pixel| pixel.0.map(high))),
        DynamicImage::ImageRgb16(image) => image.as_raw().iter().copied().map(high).collect(),
        DynamicImage::ImageRgba16(image) => {
            let pixels = image.pixels().map(|pixel| pixel.0.map(high));
            pixels.flat_map(on_white).collect()
        }
        other => opaque(DynamicImage::ImageRgba8(other.into_rgba8())),
    }
}

/// Grey pixels with their alpha in three channels, on white.
fn grey(pixels: impl Iterator<Item = [u8; 2]>) -> Vec<u8> {
    pixels
        .flat_map(|[grey, alpha]| on_white([grey, grey, grey, alpha]))
        .collect()
}

fn high(value: u16) -> u8 {
    value.to_be_bytes()[0]
}

/// A pixel on white, in Pillow's integers.
fn on_white([red, green, blue, alpha]: [u8; 4]) -> [u8; 3] {
    let alpha = u32::from(alpha);
    [red, green, blue].map(|color| {
        let blended = 128 * (alpha * u32::from(color) + (255 - alpha) * 255) + (1 << 14);
        (((blended >> 8) + blended) >> 15) as u8
    })
}
