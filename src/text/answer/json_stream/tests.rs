//! Tests of `text/answer/json_stream.rs`.

use super::*;

#[test]
fn an_object_is_completed_wherever_it_breaks_off() {
    let whole = r#"{"a": [1, {"b": "x\"\u00e9\n"}, [], {}], "c": true, "d": -1.5e3, "e": null}"#;
    for (end, _) in whole.char_indices() {
        let mut stream = JsonStream::new();
        let mut passed = String::new();
        for character in whole[..end].chars() {
            assert_eq!(stream.push(character), Step::More);
            passed.push_str(&stream.take());
        }
        stream.finish();
        passed.push_str(&stream.take());
        if end > 4 {
            serde_json::from_str::<Value>(&passed)
                .unwrap_or_else(|error| panic!("{error}: {passed}"));
        } else {
            assert_eq!(passed, "", "nothing of {} is certain", &whole[..end]);
        }
    }
    assert_eq!(completed(whole).as_deref(), Some(whole));
}

#[test]
fn what_can_only_mean_one_thing_is_repaired() {
    for (written, meant) in [
        (r#"{"a": "x""#, r#"{"a": "x"}"#),
        (r#"{"a": "x"#, r#"{"a": "x"}"#),
        (r#"{"a": "x", }"#, r#"{"a": "x"}"#),
        (r#"{"a": [1, 2, ]}"#, r#"{"a": [1, 2]}"#),
        (r#"{"a": [1, 2}"#, r#"{"a": [1, 2]}"#),
        (r#"{"a": {"b": [1"#, r#"{"a": {"b": [1]}}"#),
        (r#"{"a": }"#, r#"{"a": null}"#),
        (r#"{"a":"#, r#"{"a":null}"#),
        (r#"{"a": 1, "b""#, r#"{"a": 1}"#),
        (r#"{"a": 1, b: 2}"#, r#"{"a": 1}"#),
        (
            r#"{"a": True, "b": None, "c": False}"#,
            r#"{"a": true, "b": null, "c": false}"#,
        ),
        (
            r#"{"a": New York, "b": 'x'}"#,
            r#"{"a": "New York", "b": "x"}"#,
        ),
        (
            r#"{"a": "say "hi", he said, "b" and <"c">", "d": "e""f"}"#,
            r#"{"a": "say \"hi\", he said, \"b\" and <\"c\">", "d": "e\"\"f"}"#,
        ),
        (r#"["a "b" c", 1, "d"]"#, r#"["a \"b\" c", 1, "d"]"#),
        (r#"{"a": "x" </tool_call>"#, r#"{"a": "x" }"#),
        (r#"{"a": 1</tool_call>"#, r#"{"a": 1}"#),
        ("{}", "{}"),
        (r#"["a""#, r#"["a"]"#),
    ] {
        assert_eq!(completed(written).as_deref(), Some(meant), "{written}");
    }
    for broken in [
        "",
        "{",
        "{a: 1}",
        "{'a': 1}",
        "{\"a\" 1}",
        "Paris",
        "1",
        "\"a\"",
        "}",
        "{\"a",
    ] {
        assert_eq!(completed(broken), None, "{broken}");
    }
}
