//! Tests of `cli/terminal/prose.rs`.

use super::*;

/// The output for a text that arrives in pieces of one character.
fn shown(text: &str, columns: usize, marks: bool) -> String {
    let mut output = Vec::new();
    let mut prose = Prose::new(&mut output, columns, marks, false);
    for c in text.chars() {
        write!(prose, "{c}").expect("a vector takes everything");
    }
    writeln!(prose).expect("a vector takes everything");
    String::from_utf8(output).expect("UTF-8")
}

#[test]
fn lines_are_wrapped_between_words() {
    assert_eq!(shown("one two three", 8, false), "one two\nthree\n");
    assert_eq!(
        shown("a  b\n\n  c", 8, false),
        "a  b\n\n  c\n",
        "spaces and empty lines stay"
    );
    assert_eq!(
        shown("incomprehensible is long", 8, false),
        "incomprehensible\nis long\n"
    );
    assert_eq!(
        shown("一二三四五", 6, false),
        "一二三\n四五\n",
        "a wide character has two columns"
    );
    assert_eq!(
        shown("- one two three", 9, true),
        "• one two\n  three\n",
        "an item's text is aligned"
    );
    assert_eq!(shown("12. one two", 8, true), "12. one\n    two\n");
}

#[test]
fn marks_become_colours() {
    let bold = |text: &str| format!("{}{text}{}", BOLD.0, BOLD.1);
    assert_eq!(
        shown("a **b c** d", 80, true),
        format!("a {} d\n", bold("b c"))
    );
    assert_eq!(
        shown("x * y = `a*b`", 80, true),
        format!("x * y = {}a*b{}\n", CODE.0, CODE.1)
    );
    assert_eq!(
        shown("## Title", 80, true),
        format!("{}Title{NORMAL}\n", BOLD.0)
    );
    let code = shown("```rust\n  let a =  1; // long\n```\nb", 8, true);
    assert_eq!(
        code,
        format!("\n{}  let a =  1; // long{NORMAL}\n\nb\n", CODE.0),
        "code is not wrapped"
    );
    assert_eq!(
        shown("**open", 80, true),
        format!("{}open{NORMAL}\n", BOLD.0),
        "a line's end is plain"
    );
    for plain in ["---", "*", "#hash", "1.5 x", "a_b"] {
        assert_eq!(shown(plain, 80, true), format!("{plain}\n"));
    }
    assert_eq!(
        shown("a **b** `c`", 80, false),
        "a **b** `c`\n",
        "without colours, marks stay"
    );
}

#[test]
fn a_models_text_cannot_control_the_terminal() {
    assert_eq!(shown("a\x1b[2Jb\x07\r\u{9b}c", 80, true), "a[2Jbc\n");
}
