//! The size of images of Mistral 3: their own, up to a limit, in whole blocks of patches; and their text, which has a
//! mark after each row of blocks.

use super::error::ImageError;
use super::fields::Fields;
use super::patches::Grid;
use super::picture::Picture;
use super::resize::Filter;

/// What stands for a row.
pub(super) const PLACEHOLDER: &str = "[IMG]";
const BREAK: &str = "[IMG_BREAK]";
const END: &str = "[IMG_END]";

/// The fields of a processor's file with these words.
pub(super) const WORDS: [(&str, &str); 3] = [
    ("image_token", PLACEHOLDER),
    ("image_break_token", BREAK),
    ("image_end_token", END),
];

/// Sizes of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizing {
    /// Most pixels of a side, before it becomes whole blocks.
    longest: u32,
    /// Pixels of a block's side.
    unit: u32,
    filter: Filter,
}

impl Sizing {
    pub(super) fn read(fields: &Fields<'_>, grid: Grid) -> Result<Self, ImageError> {
        Ok(Self {
            longest: fields.number("size.longest_edge", 1024, 1..=8192)?,
            unit: grid.patch * grid.block,
            filter: fields.filter(Filter::Bicubic)?,
        })
    }

    /// Most pixels of a side of what the tower reads.
    pub(super) fn side_max(&self) -> u32 {
        self.longest.next_multiple_of(self.unit)
    }

    /// The size of an image: smaller if a side is too long, then up to whole blocks. A side of 0 is too thin.
    pub(super) fn size(&self, sides: [u32; 2]) -> [u32; 2] {
        let longest = sides[0].max(sides[1]);
        let ratio = f64::from(longest) / f64::from(self.longest);
        let fitting = match ratio > 1.0 {
            true => sides.map(|side| (f64::from(side) / ratio) as u32),
            false => sides,
        };
        fitting.map(|side| side.next_multiple_of(self.unit))
    }

    /// Stretches an image to its size.
    ///
    /// # Errors
    /// One so long and thin that nothing of its shorter side is left.
    pub(super) fn fit(&self, picture: &Picture) -> Result<Picture, ImageError> {
        let (height, width) = (picture.height(), picture.width());
        match self.size([height, width]) {
            [0, _] | [_, 0] => Err(ImageError::Shape {
                height,
                width,
                message: "it is too long and thin for this model".into(),
            }),
            [rows, columns] => Ok(picture.resize(rows, columns, self.filter)),
        }
    }
}

/// The text that stands for an image in a prompt: a placeholder for each of `rows`, in runs of `across`, each with a
/// mark behind it.
pub(super) fn text(rows: u32, across: u32) -> String {
    let run = PLACEHOLDER.repeat(across as usize);
    let others = (rows / across).saturating_sub(1) as usize;
    (run.clone() + BREAK).repeat(others) + &run + END
}
