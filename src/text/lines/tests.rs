//! Tests of `text/lines.rs`.

use super::*;

/// The text of these pieces up to its end, and whether it ends.
fn ended(mut limits: LineLimits, pieces: &[&str]) -> (String, bool) {
    let mut text = String::new();
    for piece in pieces {
        match limits.push(piece) {
            Some(end) => return (text + &piece[..end], true),
            None => text.push_str(piece),
        }
    }
    (text, false)
}

#[test]
fn a_text_ends_before_a_line_that_is_indented_less() {
    let indented = |indent, pieces: &[&str]| ended(LineLimits::new(None, indent), pieces);
    let lines = ["a = 1;\n", "    b", " = 2;\n  ", "}"];
    assert_eq!(
        indented(4, &lines),
        ("a = 1;\n    b = 2;\n  ".to_owned(), true)
    );
    assert_eq!(indented(2, &lines), (lines.concat(), false));
    assert_eq!(indented(0, &lines), (lines.concat(), false));
    assert_eq!(indented(1, &["a\n\tb\n\nc"]), ("a\n\tb\n".to_owned(), true));
    assert_eq!(indented(3, &["a\n  ", " b"]), ("a\n   b".to_owned(), false));
    assert_eq!(
        indented(1, &["no line ", "break"]),
        ("no line break".to_owned(), false)
    );
}

#[test]
fn a_text_ends_at_a_line_break_once_its_time_has_passed() {
    let timed = |time: Duration| {
        ended(
            LineLimits::new(Some(time), 0),
            &["a\n", "b", "c\n d", "e\n"],
        )
    };
    assert_eq!(
        timed(Duration::from_secs(3600)),
        ("a\nbc\n de\n".to_owned(), false)
    );
    let mut limits = LineLimits::new(Some(Duration::from_millis(1)), 0);
    assert_eq!(
        limits.push("a\n"),
        None,
        "no time has passed before the first token"
    );
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(limits.push("b"), None);
    assert_eq!(limits.push("c\n d"), Some(4));
}
