//! The tiles of Idefics 3 and SmolVLM: a large image is cut into squares, and its whole, stretched to one square,
//! follows them.

use super::error::ImageError;
use super::fields::Fields;
use super::picture::Picture;
use super::resize::Filter;

/// Most tiles of an image's side. A processor's own limits allow fewer.
const SIDE_TILES_MAX: u32 = 16;

/// Sizes of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Pixels of the longer side before an image is cut.
    longest: u32,
    /// Pixels of a tile's side.
    tile: u32,
    filter: Filter,
}

/// The parts of an image, in order.
pub(super) struct Parts {
    /// Rows and columns of tiles; none if the whole is all there is.
    pub(super) grid: [u32; 2],
    /// The tiles row by row, then the whole.
    pub(super) pictures: Vec<Picture>,
}

impl Tiling {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ImageError> {
        fields.require_true("do_image_splitting")?;
        let tile = fields.number("max_image_size.longest_edge", 364, 1..=4096)?;
        let longest = fields.number("size.longest_edge", 4 * 364, 1..=16_384)?;
        let filter = fields.filter(Filter::Lanczos)?;
        if longest.div_ceil(tile) > SIDE_TILES_MAX {
            let message = format!("is {longest}: more than {SIDE_TILES_MAX} tiles of {tile}");
            return Err(fields.refuse("size.longest_edge", message));
        }
        Ok(Self {
            longest,
            tile,
            filter,
        })
    }

    /// Pixels of a tile's side.
    pub(super) fn tile(&self) -> u32 {
        self.tile
    }

    /// Both sizes that an image is resized to: the longer side becomes the longest, then both sides multiples of a
    /// tile's; and the tiles that it is cut into.
    pub(super) fn sizes(&self, [height, width]: [u32; 2]) -> [[u32; 2]; 2] {
        let (longest, tile) = (f64::from(self.longest), self.tile);
        let ratio = f64::from(width) / f64::from(height);
        let even = |side: u32| (side + side % 2).max(1);
        let first = if width >= height {
            [even((longest / ratio) as u32), self.longest]
        } else {
            [self.longest, even((longest * ratio) as u32)]
        };
        let ratio = f64::from(first[1]) / f64::from(first[0]);
        let up = |side: u32| side.next_multiple_of(tile);
        let second = if first[1] >= first[0] {
            let width = up(first[1]);
            [up((f64::from(width) / ratio) as u32), width]
        } else {
            let height = up(first[0]);
            [height, up((f64::from(height) * ratio) as u32)]
        };
        [first, second]
    }

    /// Cuts an image.
    ///
    /// # Errors
    /// One so long and thin that nothing of its shorter side is left.
    pub(super) fn cut(&self, picture: &Picture) -> Result<Parts, ImageError> {
        let [first, second] = self.sizes([picture.height(), picture.width()]);
        if first.contains(&0) || second.contains(&0) {
            return Err(ImageError::Shape {
                height: picture.height(),
                width: picture.width(),
                message: "it is too long and thin for this model".into(),
            });
        }
        let resized = picture.resize(first[0], first[1], self.filter).resize(
            second[0],
            second[1],
            self.filter,
        );
        let tile = self.tile;
        let [down, across] = second.map(|side| side / tile);
        let whole = resized.resize(tile, tile, self.filter);
        if down * across <= 1 {
            let pictures = vec![whole];
            return Ok(Parts {
                grid: [0, 0],
                pictures,
            });
        }
        let corners =
            (0..down).flat_map(|row| (0..across).map(move |column| [row * tile, column * tile]));
        let tiles = corners.map(|corner| resized.crop(corner, [tile, tile]));
        Ok(Parts {
            grid: [down, across],
            pictures: tiles.chain([whole]).collect(),
        })
    }
}

/// The text that stands for an image in a prompt: `rows` placeholders for each part, between tags.
pub(super) fn text(grid: [u32; 2], rows: u32) -> String {
    const FAKE: &str = "<fake_token_around_image>";
    let rows = "<image>".repeat(rows as usize);
    let [down, across] = grid;
    let mut text = String::new();
    for row in 1..=down {
        for column in 1..=across {
            text += &format!("{FAKE}<row_{row}_col_{column}>{rows}");
        }
        text += "\n";
    }
    if down > 0 {
        text += "\n";
    }
    text + FAKE + "<global-img>" + &rows + FAKE
}
