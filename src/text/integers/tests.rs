//! Tests of `text/integers.rs`.

use super::*;
use serde_json::json;

#[test]
fn long_integers_keep_their_digits_and_all_else_stays_as_it_is() {
    for number in [
        "18446744073709551616",
        "-9223372036854775809",
        "123456789012345678901234567890",
    ] {
        let value = parse_object(&format!(r#"{{"a": [{number}, 1]}}"#)).expect("an object");
        assert_eq!(digits(&value["a"][0]), Some(number));
        assert_eq!(to_json(&value), format!(r#"{{"a":[{number},1]}}"#));
        let mut rounded = value;
        round(&mut rounded);
        assert_eq!(
            rounded["a"][0],
            json!(number.parse::<f64>().expect("a number"))
        );
    }
    for json in [
        "18446744073709551615",
        "-9223372036854775808",
        "0",
        "1e30",
        "12345678901234567890.5",
    ] {
        assert_eq!(marked(json.as_bytes()), None, "{json}");
    }
    let text = r#"{"a\"123456789012345678901234567890": "123456789012345678901234567890\\"}"#;
    assert_eq!(marked(text.as_bytes()), None, "strings are no numbers");
    let zeros = parse_object(r#"{"a": [-0, -0.0]}"#).expect("an object");
    assert_eq!(zeros["a"].to_string(), "[0,-0.0]");
}

#[test]
fn what_is_not_json_does_not_become_it() {
    for value in [
        "0123456789012345678901",
        "-",
        "[12345678901234567890123,]",
        "1234567890123456789012a",
        "\"\\",
    ] {
        assert_eq!(
            parse_object(&format!("{{\"a\": {value}}}")),
            None,
            "{value}"
        );
    }
    assert_eq!(
        parse_object("12345678901234567890123"),
        None,
        "a number is no object"
    );
}
