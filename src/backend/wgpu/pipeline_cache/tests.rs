//! Tests of `backend/wgpu/pipeline_cache.rs`.

use super::*;

#[test]
fn a_file_that_is_not_ours_is_ignored() {
    let file = sealed(b"compiled kernels");
    assert_eq!(unsealed(&file), Some(&b"compiled kernels"[..]));
    assert_eq!(unsealed(&sealed(b"")), Some(&b""[..]));
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        assert_eq!(unsealed(&damaged), None, "byte {at}");
        assert_eq!(unsealed(&file[..at]), None, "{at} bytes");
    }
    assert_eq!(unsealed(b"what another version wrote"), None);
}
