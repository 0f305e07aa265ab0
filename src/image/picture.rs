//! An image in memory.

/// Rows of pixels, each red, green and blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    height: u32,
    width: u32,
    /// `[height × width × 3]`.
    rgb: Vec<u8>,
}

impl Picture {
    /// A picture of these bytes, `[height × width × 3]`; `None` if there are more or fewer, or none.
    pub fn new(height: u32, width: u32, rgb: Vec<u8>) -> Option<Self> {
        let bytes = 3 * u64::from(height) * u64::from(width);
        (bytes > 0 && bytes == rgb.len() as u64).then_some(Self { height, width, rgb })
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Columns.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The pixels, `[height × width × 3]`.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The part of `height` × `width` pixels whose first row and column are `top` and `left`, within the picture.
    pub(super) fn crop(&self, [top, left]: [u32; 2], [height, width]: [u32; 2]) -> Self {
        debug_assert!(
            top + height <= self.height && left + width <= self.width && height > 0 && width > 0,
            "a part lies within its picture"
        );
        let row_bytes = 3 * self.width as usize;
        let (first, bytes) = (3 * left as usize, 3 * width as usize);
        let rows = self.rgb.chunks_exact(row_bytes);
        let rows = rows.skip(top as usize).take(height as usize);
        Self {
            height,
            width,
            rgb: rows
                .flat_map(|row| &row[first..first + bytes])
                .copied()
                .collect(),
        }
    }
}
