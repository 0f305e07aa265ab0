//! Writes a row in a device format, group by group.

use crate::plan::format::{Codes, GROUP};
use crate::plan::{Layout, WeightFormat};

/// A row that is being written.
pub(super) struct RowWriter<'a> {
    codes: Codes,
    layout: Layout,
    out: &'a mut [u8],
}

impl<'a> RowWriter<'a> {
    /// A row of zeros in `out`.
    pub(super) fn new(format: WeightFormat, columns: usize, out: &'a mut [u8]) -> Self {
        let layout = format.layout(columns);
        assert_eq!(out.len(), layout.row_bytes, "one row of {format}");
        out.fill(0);
        Self {
            codes: format.parts().0,
            layout,
            out,
        }
    }

    /// Writes the codes of group `group`, each below the format's limit.
    pub(super) fn codes(&mut self, group: usize, codes: &[u8; GROUP]) {
        let plane = self.layout.plane;
        match self.codes {
            Codes::Dense => unreachable!("dense rows have no codes"),
            Codes::Eight => self.out[GROUP * group..][..GROUP].copy_from_slice(codes),
            Codes::Four => self.four(group, codes),
            Codes::FourOne => {
                self.four(group, codes);
                self.one(plane + 4 * group, codes, 4);
            }
            Codes::FourTwo => {
                self.four(group, codes);
                self.two(plane + 8 * group, codes, 4);
            }
            Codes::Two => self.two(8 * group, codes, 0),
            Codes::TwoOne => {
                self.two(8 * group, codes, 0);
                self.one(plane + 4 * group, codes, 2);
            }
            Codes::One => self.one(4 * group, codes, 0),
        }
    }

    /// Low and high four bits of a byte: codes `i` and `i + 4` of each eight.
    fn four(&mut self, group: usize, codes: &[u8; GROUP]) {
        let out = &mut self.out[16 * group..][..16];
        for (out, codes) in out
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(codes.as_chunks::<8>().0)
        {
            *out = std::array::from_fn(|i| codes[i] & 15 | (codes[4 + i] & 15) << 4);
        }
    }

    fn two(&mut self, at: usize, codes: &[u8; GROUP], shift: u32) {
        for (out, codes) in self.out[at..][..8].iter_mut().zip(codes.as_chunks::<4>().0) {
            *out = (0..4).fold(0, |bits, i| bits | (codes[i] >> shift & 3) << (2 * i));
        }
    }

    fn one(&mut self, at: usize, codes: &[u8; GROUP], shift: u32) {
        for (out, codes) in self.out[at..][..4].iter_mut().zip(codes.as_chunks::<8>().0) {
            *out = (0..8).fold(0, |bits, i| bits | (codes[i] >> shift & 1) << i);
        }
    }

    /// Writes the scale bytes of entry `index`; all entries have the same length.
    pub(super) fn scale(&mut self, index: usize, bytes: &[u8]) {
        self.out[self.layout.scales + index * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Writes the factor of the row, if the format has one.
    pub(super) fn factor(&mut self, factor: f32) {
        self.out[self.layout.supers..][..4].copy_from_slice(&factor.to_le_bytes());
    }

    /// Writes the f16 scales of entry `index`, as many as the format has.
    pub(super) fn supers(&mut self, index: usize, halves: [&[u8]; 2]) {
        let at = self.layout.supers + 4 * index;
        for (place, half) in halves.into_iter().enumerate() {
            self.out[at + 2 * place..][..half.len()].copy_from_slice(half);
        }
    }
}
