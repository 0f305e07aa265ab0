//! Tests of `server/parameters/ollama.rs`.

use super::*;

#[test]
fn durations_are_read_as_go_writes_them() {
    for (text, seconds) in [
        ("5m", 300.0),
        ("+5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5m", 30.0),
        ("1m.5s", 60.5),
        ("100000us", 0.1),
        ("100µs", 1e-4),
        ("100μs", 1e-4),
        ("60000000000ns", 60.0),
        ("300", 300.0),
        ("0s", 0.0),
    ] {
        let read = keep_alive(&text.into()).unwrap_or_else(|_| panic!("{text}"));
        let read = read
            .flatten()
            .unwrap_or_else(|| panic!("{text}"))
            .as_secs_f64();
        assert!((read - seconds).abs() < 1e-9, "{text}: {read}");
    }
    for text in ["-1", "-1m", "-5us"] {
        assert_eq!(keep_alive(&text.into()).ok(), Some(Some(None)), "{text}");
    }
    for text in ["", "+", "-", "5x", "m", "5 m", "5m3", "--5m", "+-5m"] {
        assert!(keep_alive(&text.into()).is_err(), "{text}");
    }
}
