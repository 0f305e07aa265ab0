//! Tests of `text/answer/envelope.rs`.

use super::*;

const TAGS: AnswerTags = &[["<answer>", "</answer>"], ["<response>", "</response>"]];

/// The answer without its tags, which must not depend on where the text is cut.
fn read(text: &str) -> String {
    let whole = pieces(&[text]);
    for (at, _) in text.char_indices() {
        assert_eq!(pieces(&[&text[..at], &text[at..]]), whole, "cut at {at}");
    }
    let characters: Vec<_> = text.chars().map(String::from).collect();
    let characters: Vec<_> = characters.iter().map(String::as_str).collect();
    assert_eq!(pieces(&characters), whole);
    whole
}

fn pieces(pieces: &[&str]) -> String {
    let mut envelope = Envelope::new(TAGS).expect("there are tags");
    let read: String = pieces.iter().map(|piece| envelope.push(piece)).collect();
    read + &envelope.finish(false)
}

#[test]
fn tags_around_an_answer_are_no_part_of_it() {
    let table = [
        (
            "<answer>\nHi, < you.\n\nBye.\n</answer>",
            "Hi, < you.\n\nBye.",
        ),
        ("\n<response>\n\nHi\n</response>\n", "Hi"),
        ("<answer>Hi</answer>\n<tool_call>{}", "Hi<tool_call>{}"),
        ("<answer>Hi\n", "Hi\n"),
        ("<answer>Hi </answ", "Hi </answ"),
        ("<answer></answer>", ""),
    ];
    for (text, answer) in table {
        assert_eq!(read(text), answer, "{text}");
    }
}

#[test]
fn an_answer_without_tags_stays_as_it_is() {
    for text in [
        " Hi\n",
        "",
        "\n",
        "<ans",
        "The <answer> is </answer> 4",
        "<b>Hi</b> ",
    ] {
        assert_eq!(read(text), text);
    }
}

#[test]
fn an_answer_that_is_cut_shows_no_part_of_a_tag() {
    for (text, answer) in [
        ("<answer>\nHi\n</ans", "Hi"),
        ("<ans", ""),
        ("<answer>Hi <", "Hi"),
    ] {
        let mut envelope = Envelope::new(TAGS).expect("there are tags");
        assert_eq!(envelope.push(text) + &envelope.finish(true), answer);
    }
}
