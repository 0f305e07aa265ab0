//! Memory of the device: words at the boundary of a cache line, zero until they are written.
#![allow(unsafe_code, reason = "threads that write disjoint parts of one slice")]

use super::simd::Words;
use crate::backend::BackendError;
use crate::platform::Pages;

/// Lines of sixteen words, each in one cache line.
#[derive(Default)]
pub(super) struct Lines {
    /// `None` if there are no lines.
    pages: Option<Pages>,
}

impl Lines {
    /// Allocates zeros. Pages that are never written take no memory.
    pub(super) fn zeroed(count: usize, what: &str) -> Result<Self, BackendError> {
        if count == 0 {
            return Ok(Self::default());
        }
        let needed = (count as u64).saturating_mul(size_of::<Words>() as u64);
        let pages = usize::try_from(needed).ok().and_then(Pages::zeroed);
        let pages = pages.ok_or_else(|| BackendError::OutOfMemory {
            what: what.into(),
            bytes: needed,
        })?;
        Ok(Self { pages: Some(pages) })
    }

    /// All lines.
    pub(super) fn lines(&self) -> &[Words] {
        self.pages
            .as_ref()
            .map_or(&[], |pages| pages.words().as_chunks().0)
    }

    /// All lines, to write.
    pub(super) fn lines_mut(&mut self) -> &mut [Words] {
        self.pages
            .as_mut()
            .map_or(&mut [], |pages| pages.words_mut().as_chunks_mut().0)
    }
}

/// A slice that several threads write, each its own elements.
pub(super) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `part`, whose callers promise disjoint ranges.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares a slice.
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: std::marker::PhantomData,
        }
    }

    /// Elements `range`, to write.
    ///
    /// # Safety
    /// While the result is alive, no other part of the slice that overlaps `range` is.
    #[allow(clippy::mut_from_ref, reason = "disjoint parts of one slice")]
    pub(super) unsafe fn part(&self, range: std::ops::Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a part of the slice"
        );
        // SAFETY: the range lies in the slice, which is borrowed for 'a, and the caller promises that nobody else
        // accesses these elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests;
