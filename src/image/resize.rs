//! Resizing, in the integers of torchvision (`resize` with antialias, of bytes on a CPU).
//!
//! A separable convolution: first along rows, then along columns, rounded to bytes between. An axis that keeps its
//! length is left alone. Pillow's differs by a level in few pixels: its weights have more bits.

use super::picture::Picture;
use std::f64::consts::PI;

/// Most bits of a weight's fraction.
const BITS_MAX: u32 = 22;

/// The filter that an output pixel weighs input pixels by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle of two pixels.
    Bilinear,
    /// Cubic with a = −½, of four pixels.
    Bicubic,
    /// Lanczos of six pixels.
    Lanczos,
}

impl Filter {
    /// The filter of Pillow's number, which processors' files have as `resample`.
    pub(super) fn of_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Lanczos,
            2 => Self::Bilinear,
            3 => Self::Bicubic,
            _ => return None,
        })
    }

    /// Pixels on each side of the center, where an output pixel is as large as an input pixel.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let distance = x.abs();
        match self {
            Self::Bilinear => (1.0 - distance).max(0.0),
            Self::Bicubic if distance < 1.0 => {
                ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0
            }
            Self::Bicubic if distance < 2.0 => {
                (((distance - 5.0) * distance + 8.0) * distance - 4.0) * A
            }
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Bicubic | Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    (PI * x).sin() / (PI * x)
}

/// What the pixels of one axis are made of.
struct Axis {
    /// Per output pixel: the first input pixel, and the range of its weights.
    taps: Vec<(usize, std::ops::Range<usize>)>,
    weights: Vec<i32>,
    /// Bits of the weights' fraction.
    bits: u32,
}

impl Axis {
    fn new(from: u32, to: u32, filter: Filter) -> Self {
        let scale = f64::from(from) / f64::from(to);
        let wide = scale.max(1.0);
        let support = filter.support() * wide;
        let (mut taps, mut weights) = (Vec::with_capacity(to as usize), Vec::new());
        for index in 0..to {
            let center = (f64::from(index) + 0.5) * scale;
            let first = ((center - support + 0.5) as i64).max(0);
            let end = ((center + support + 0.5) as i64).min(i64::from(from));
            let start = weights.len();
            weights.extend(
                (first..end).map(|pixel| filter.weight((pixel as f64 - center + 0.5) / wide)),
            );
            let own = &mut weights[start..];
            let sum: f64 = own.iter().sum();
            own.iter_mut().for_each(|weight| *weight /= sum);
            taps.push((first as usize, start..weights.len()));
        }
        let largest = weights.iter().copied().fold(0.0, f64::max);
        let fits = |bits: &u32| (0.5 + largest * f64::from(1_u32 << bits)) as i64 >= 1 << 15;
        let bits = (1..=BITS_MAX).find(fits).map_or(BITS_MAX, |bits| bits - 1);
        let one = f64::from(1_u32 << bits);
        // Half away from zero.
        let weights = weights.iter().map(|weight| (weight * one).round() as i32);
        Self {
            taps,
            weights: weights.collect(),
            bits,
        }
    }

    /// The sums of an output pixel's channels: of bytes of `input` from its first pixel on, `stride` bytes apart. Sums
    /// stay below 2³¹: weights add up to 1, negative ones to more than −½.
    fn pixel(
        &self,
        (first, weights): &(usize, std::ops::Range<usize>),
        input: &[u8],
        stride: usize,
    ) -> [u8; 3] {
        let mut sums = [1_i32 << (self.bits - 1); 3];
        let pixels = input[first * stride..].chunks(stride);
        for (weight, pixel) in self.weights[weights.clone()].iter().zip(pixels) {
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += weight * i32::from(*value);
            }
        }
        sums.map(|sum| (sum >> self.bits).clamp(0, 255) as u8)
    }
}

impl Picture {
    /// The picture stretched to `height` × `width` pixels, both at least 1.
    pub fn resize(&self, height: u32, width: u32, filter: Filter) -> Self {
        assert!(height > 0 && width > 0, "a picture has pixels");
        let mut picture = self.clone();
        if width != picture.width() {
            picture = picture.resize_rows(width, filter);
        }
        if height != picture.height() {
            picture = picture.resize_columns(height, filter);
        }
        picture
    }

    fn resize_rows(&self, width: u32, filter: Filter) -> Self {
        let axis = Axis::new(self.width(), width, filter);
        let rows = self.rgb().chunks_exact(3 * self.width() as usize);
        let pixels =
            rows.flat_map(|row| axis.taps.iter().flat_map(|taps| axis.pixel(taps, row, 3)));
        Self::new(self.height(), width, pixels.collect()).expect("each row has its pixels")
    }

    fn resize_columns(&self, height: u32, filter: Filter) -> Self {
        let axis = Axis::new(self.height(), height, filter);
        let row_bytes = 3 * self.width() as usize;
        let mut rgb = Vec::with_capacity(height as usize * row_bytes);
        let mut sums = vec![0_i32; row_bytes];
        for (first, weights) in &axis.taps {
            sums.fill(1 << (axis.bits - 1));
            let rows = self.rgb().chunks_exact(row_bytes).skip(*first);
            for (weight, row) in axis.weights[weights.clone()].iter().zip(rows) {
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += weight * i32::from(*value);
                }
            }
            rgb.extend(
                sums.iter()
                    .map(|sum| (sum >> axis.bits).clamp(0, 255) as u8),
            );
        }
        Self::new(height, self.width(), rgb).expect("each column has its pixels")
    }
}
