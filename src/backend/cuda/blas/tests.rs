//! Tests of `backend/cuda/blas.rs`.

use super::Proposal;

/// The struct has the layout of the cuBLASLt 13 header.
#[test]
fn a_proposal_has_the_size_of_the_header() {
    assert_eq!(size_of::<Proposal>(), 96);
}
