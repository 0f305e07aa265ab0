//! Memory of the device: words at the boundary of a cache line, zero until they are written.
#![allow(unsafe_code, reason = "advice to the system about an own allocation")]

use super::simd::{LANES, Words};
use crate::backend::BackendError;

/// Lines of sixteen words, each in one cache line.
#[derive(Default)]
pub(super) struct Lines {
    words: Vec<u32>,
    /// The first word on a boundary.
    start: usize,
    count: usize,
}

impl Lines {
    /// Allocates zeros. Pages that are never written take no memory.
    pub(super) fn zeroed(count: usize, what: &str) -> Result<Self, BackendError> {
        let words = count * LANES + LANES - 1;
        let out_of_memory = || BackendError::OutOfMemory { what: what.into(), bytes: words as u64 * 4 };
        Vec::<u32>::new().try_reserve_exact(words).map_err(|_| out_of_memory())?;
        let words = vec![0; words];
        let start = words.as_ptr().align_offset(64).min(LANES - 1);
        advise_huge_pages(&words);
        Ok(Self { words, start, count })
    }

    /// All lines.
    pub(super) fn lines(&self) -> &[Words] {
        self.words[self.start..].as_chunks().0.get(..self.count).unwrap_or_default()
    }

    /// All lines, to write.
    pub(super) fn lines_mut(&mut self) -> &mut [Words] {
        let (count, start) = (self.count, self.start);
        self.words[start..].as_chunks_mut().0.get_mut(..count).unwrap_or_default()
    }
}

/// Asks for huge pages: with small ones, streaming through weights misses the address cache all the time.
fn advise_huge_pages(words: &[u32]) {
    #[cfg(target_os = "linux")]
    {
        const HUGE_BYTES: usize = 2 << 20;
        let (start, bytes) = (words.as_ptr().addr(), size_of_val(words));
        let first = start.next_multiple_of(HUGE_BYTES);
        let end = (start + bytes) / HUGE_BYTES * HUGE_BYTES;
        if first < end {
            // SAFETY: the range lies within a live allocation of this process, and the advice changes no content. If
            // the system has no huge pages, it refuses, which costs nothing.
            unsafe {
                libc::madvise(
                    words.as_ptr().wrapping_byte_add(first - start).cast_mut().cast(),
                    end - first,
                    libc::MADV_HUGEPAGE,
                )
            };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = words;
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
        Self { start: slice.as_mut_ptr(), len: slice.len(), lifetime: std::marker::PhantomData }
    }

    /// Elements `range`, to write.
    ///
    /// # Safety
    /// While the result is alive, no other part of the slice that overlaps `range` is.
    #[allow(clippy::mut_from_ref, reason = "disjoint parts of one slice")]
    pub(super) unsafe fn part(&self, range: std::ops::Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part of the slice");
        // SAFETY: the range lies in the slice, which is borrowed for 'a, and the caller promises that nobody else
        // accesses these elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_at_the_boundary_of_a_cache_line_and_are_zero() {
        for count in [0, 1, 1000, 100_000] {
            let mut lines = Lines::zeroed(count, "test").unwrap();
            assert_eq!(lines.lines().len(), count);
            assert!(lines.lines().as_ptr().addr().is_multiple_of(64) || count == 0);
            lines.lines_mut().iter_mut().for_each(|line| *line = [7; LANES]);
            assert!(lines.lines().iter().all(|line| *line == [7; LANES]));
        }
        assert!(Lines::zeroed(usize::MAX / 128, "too many").is_err());
    }
}
