//! Tests of `backend/cuda/audit.rs`.

use super::number_before;

#[test]
fn numbers_are_read_from_the_log() {
    let log = "ptxas . 16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nptxas info : Used 255 \
                   registers, used 1 barriers";
    let found = [
        " registers",
        " bytes stack frame",
        " bytes spill stores",
        " barriers",
        " cats",
    ]
    .map(|w| number_before(log, w));
    assert_eq!(found, [Some(255), Some(16), Some(4), Some(1), None]);
}
