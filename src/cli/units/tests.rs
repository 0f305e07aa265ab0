//! Tests of `cli/units.rs`.

use super::*;

#[test]
fn counts_are_written_as_vllm_writes_them() {
    for (text, count) in [
        ("4096", 4096),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25_600),
        ("2m", 2_000_000),
        ("1M", 1 << 20),
    ] {
        assert_eq!(parse_count(text), Ok(count), "{text}");
    }
    for wrong in ["", "k", "-1", "-1k", "1kk", "NaNk", "1e30k", "1é", "12q"] {
        assert!(parse_count(wrong).is_err(), "{wrong:?} is refused");
    }
}

#[test]
fn bytes_have_units() {
    let check = |text: &str, bytes: u64| assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
    check("4096", 4096);
    check("512MiB", 512 << 20);
    check("2g", 2 << 30);
    check("1.5GB", 1_500_000_000);
    for wrong in ["", "MiB", "-1", "1e30", "12 parsecs", "NaN"] {
        assert!(parse_bytes(wrong).is_err(), "{wrong:?} is refused");
    }
}
