//! Tests of `text/answer/json_text.rs`.

use super::*;

#[test]
fn strings_become_valid_json_in_any_pieces() {
    let cases = [
        (
            "{\"a\":\n \"x\ny\tz\r\n\u{1}\"}",
            "{\"a\":\n \"x\\ny\\tz\\r\\n\\u0001\"}",
        ),
        (
            r#"{"a": "C:\path\users\new", "b": "\"\\\u00e9"}"#,
            r#"{"a": "C:\\path\\users\new", "b": "\"\\\u00e9"}"#,
        ),
        (r#"{"a": "\u12"}"#, r#"{"a": "\\u12"}"#),
        ("{\"a\": \"\\\n\"}", "{\"a\": \"\\\\\\n\"}"),
        (r#"{"a": 1}"#, r#"{"a": 1}"#),
    ];
    for (written, valid) in cases {
        assert_eq!(repaired(written), valid);
        serde_json::from_str::<serde_json::Value>(valid).expect("valid JSON");
        let mut repair = Repair::default();
        let pieces: String = written
            .chars()
            .map(|piece| repair.push(&piece.to_string()))
            .collect();
        assert_eq!(pieces + &repair.finish(), valid);
    }
}

#[test]
fn compact_json_keeps_strings_and_digits() {
    let json = "{ \"a b\" : [ 1.50,\n 123456789012345678901234567890 , \" \\\" \" ] }";
    assert_eq!(
        compact(json),
        "{\"a b\":[1.50,123456789012345678901234567890,\" \\\" \"]}"
    );
}
