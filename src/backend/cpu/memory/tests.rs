//! Tests of `backend/cpu/memory.rs`.

use super::super::simd::LANES;
use super::*;

#[test]
fn lines_begin_at_the_boundary_of_a_cache_line_and_are_zero() {
    for count in [0, 1, 1000, 100_000] {
        let mut lines = Lines::zeroed(count, "test").unwrap();
        assert_eq!(lines.lines().len(), count);
        assert!(lines.lines().as_ptr().addr().is_multiple_of(64) || count == 0);
        lines
            .lines_mut()
            .iter_mut()
            .for_each(|line| *line = [7; LANES]);
        assert!(lines.lines().iter().all(|line| *line == [7; LANES]));
    }
    assert!(Lines::zeroed(usize::MAX / 128, "too many").is_err());
}
