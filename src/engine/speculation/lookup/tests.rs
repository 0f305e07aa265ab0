//! Tests of `engine/speculation/lookup.rs`.

use super::*;

fn text(min: u32, tokens: &[u32]) -> Text {
    let mut text = Text::new(min);
    tokens.iter().for_each(|&id| text.push(id));
    text
}

#[test]
fn the_longest_equal_run_is_found_and_the_most_recent_of_equals() {
    let text = text(2, &[1, 2, 3, 7, 2, 3, 8, 9, 2, 3, 5]);
    assert_eq!(text.find(&[1, 2, 3]), Some((3, 3)), "the longest");
    assert_eq!(text.find(&[6, 2, 3]), Some((10, 2)), "the most recent");
    assert_eq!(text.find(&[8, 9]), Some((8, 2)));
    assert_eq!(text.find(&[3, 5]), None, "nothing follows");
    assert_eq!(
        (text.find(&[5, 5]), text.find(&[3]), text.find(&[])),
        (None, None, None)
    );
}

#[test]
fn its_own_end_is_looked_up_before_it() {
    let text = text(2, &[4, 5, 6, 4, 5]);
    assert_eq!(text.find(&[6, 4, 5]), Some((2, 2)));
    let ahead: Vec<_> = (0..7).map(|index| text.ahead(2, index)).collect();
    assert_eq!(ahead, [6, 4, 5, 6, 4, 5, 6], "a loop goes on");
}

#[test]
fn every_place_of_a_long_text_is_found_at_once() {
    let tokens: Vec<u32> = (0..20_000)
        .map(|i: u32| i.wrapping_mul(2_654_435_761) % 50_000)
        .collect();
    let text = text(4, &tokens);
    for end in (4..tokens.len()).step_by(7) {
        let (place, length) = text.find(&tokens[end - 4..end]).expect("the run is there");
        assert_eq!(
            (&tokens[place - 4..place], length),
            (&tokens[end - 4..end], 4)
        );
    }
}
