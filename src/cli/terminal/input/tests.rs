//! Tests of `cli/terminal/input.rs`.

use super::*;

#[test]
fn lines_are_joined_by_quotes_or_a_backslash() {
    for (text, whole) in [
        ("one line", Some("one line")),
        ("one \\", None),
        ("one \\\ntwo", Some("one \ntwo")),
        ("\"\"\"", None),
        ("\"\"\"one\n\ntwo", None),
        ("\"\"\"\none\n\ntwo\n\"\"\"", Some("one\n\ntwo")),
        ("\"\"\"one\"\"\" ", Some("one")),
    ] {
        assert_eq!(goes_on(text), whole.is_none(), "{text:?}");
        whole.inspect(|whole| assert_eq!(joined(text), *whole));
    }
}
