//! Tests of `model/config_reader.rs`.

use super::*;

#[test]
fn bare_words_become_strings_outside_strings_only() {
    let quoted =
        quote_bare_words(r#"{"a": NaN, "b": [-Infinity, Infinity], "c \" NaN": "NaN \\"}"#);
    assert_eq!(
        quoted,
        r#"{"a": "NaN", "b": ["-Infinity", "Infinity"], "c \" NaN": "NaN \\"}"#
    );
}

#[test]
fn errors_name_file_field_and_value() {
    let value = parse(
        "c.json",
        br#"{"layers": 0, "rope": {"theta": NaN}, "ids": [1, 9]}"#,
    )
    .expect("parses");
    let fields = ConfigReader::root("c.json", &value).expect("an object");
    let message = |result: Result<Option<u32>, LoadError>| result.expect_err("refused").to_string();
    assert_eq!(
        message(fields.integer("layers", 1..=9)),
        "c.json: layers is 0, not an integer in 1..=9"
    );
    let rope = fields.object("rope").expect("an object").expect("present");
    let theta = rope
        .number("theta", 0.5..=1e9)
        .expect_err("NaN is no number")
        .to_string();
    assert_eq!(
        theta,
        "c.json: rope.theta is \"NaN\", not a number in 0.5..=1000000000.0"
    );
    assert_eq!(fields.token_ids("ids", 8), [1], "9 is beyond");
}
