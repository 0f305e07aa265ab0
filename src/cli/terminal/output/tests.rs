//! Tests of `cli/terminal/output.rs`.

use super::plain;

#[test]
fn no_text_controls_the_terminal() {
    assert_eq!(
        plain("a\tb\n\x1b]0;title\x07\u{9b}2Jc\r"),
        "a\tb\n]0;title2Jc"
    );
}
