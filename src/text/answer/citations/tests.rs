//! Tests of the tags of citations.

use super::*;

/// A text without its tags, in pieces of every size, which makes no difference.
fn without(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut results = [1, 2, 3, 5, 8, 1000].map(|size| {
        let mut citations = Citations::default();
        let pieces = characters.chunks(size);
        let kept: String = pieces
            .map(|piece| citations.push(&piece.iter().collect::<String>()))
            .collect();
        kept + &citations.finish(false)
    });
    assert!(
        results.iter().all(|result| *result == results[0]),
        "{text}: {results:?}"
    );
    std::mem::take(&mut results[0])
}

#[test]
fn tags_of_citations_are_removed_and_nothing_else() {
    assert_eq!(without("foo <co>bar</co: 0:[1,2],1:[3,4]>."), "foo bar.");
    assert_eq!(without("<co>🌈</co: 0:[1]><co>b</co>"), "🌈b");
    for text in [
        "a < b <company> </code> </co: x> <c",
        "</co: 0:[1",
        "<<co",
        "</co: 0:[1]/>",
    ] {
        assert_eq!(without(text), text);
    }
    let long = format!("</co: {}", "1,".repeat(TAG_BYTES_MAX));
    assert_eq!(without(&long), long);
}

#[test]
fn the_beginning_of_a_tag_is_left_out_if_the_text_was_cut() {
    let mut citations = Citations::default();
    assert_eq!(citations.push("a</co: 0"), "a");
    assert_eq!(citations.finish(true), "");
}
