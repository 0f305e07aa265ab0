//! Why an image or a processor's file is refused.

/// An image that cannot be read, or a file of a checkpoint that says nothing known about images.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// Not a format that is read.
    #[error("the image is not a PNG, JPEG, WebP, GIF or BMP file")]
    Format,
    /// The file is too long.
    #[error("the image has {found} bytes; at most {most} are read")]
    Bytes {
        /// Bytes of the file.
        found: u64,
        /// Most bytes of a file.
        most: u64,
    },
    /// It has no pixels, or too many.
    #[error(
        "the image is {height} × {width} pixels; a side has 1 to {side_max}, and the image at most {pixels_max} pixels"
    )]
    Size {
        /// Rows, as the file says.
        height: u64,
        /// Columns, as the file says.
        width: u64,
        /// Most pixels of a side.
        side_max: u32,
        /// Most pixels of an image.
        pixels_max: u64,
    },
    /// The file is damaged, or of a kind of its format that is not read.
    #[error("the image cannot be decoded: {0}")]
    Decode(String),
    /// The image's shape is beyond what the model's processor takes.
    #[error("the image is {height} × {width} pixels: {message}")]
    Shape {
        /// Rows.
        height: u32,
        /// Columns.
        width: u32,
        /// What is wrong with it.
        message: String,
    },
    /// A field of a checkpoint's file.
    #[error("{file}: `{field}` {message}")]
    Field {
        /// Name of the file.
        file: &'static str,
        /// Path of the field.
        field: String,
        /// Requirement, and what was found.
        message: String,
    },
}
