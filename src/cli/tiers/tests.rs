//! Tests of `cli/tiers.rs`.

use super::*;

#[test]
fn a_bare_number_is_in_gib() {
    assert_eq!(parse_gib("4"), Ok(4 << 30));
    assert_eq!(parse_gib("0.5"), Ok(1 << 29));
    for wrong in ["4GiB", "", "-1", "many"] {
        assert!(parse_gib(wrong).is_err(), "{wrong}");
    }
}
