//! Tests of `engine/speculation/mod.rs`.

use super::*;

const SETTINGS: Speculation = Speculation {
    prompt_lookup_min: 2,
    ..Speculation::DEFAULT
};

fn request(prompt: &[u32]) -> Request {
    Request {
        prompt: prompt.into(),
        ..Request::default()
    }
}

#[test]
fn a_prompt_that_is_quoted_is_guessed() {
    let mut drafter = Drafter::new(SETTINGS, &request(&[1, 2, 3, 4, 5, 6, 9, 1, 2]), Vec::new());
    assert_eq!(
        drafter.drafts(5),
        [3, 4, 5, 6, 9],
        "the prompt's end occurred before"
    );
    drafter.push(3);
    assert_eq!(drafter.drafts(2), [4, 5]);
    let rate = drafter.rate().expect("there is a guess");
    assert!(rate > RATE_FIRST);
    drafter.push(8);
    assert_eq!(
        (drafter.rate(), drafter.drafts(3)),
        (None, vec![]),
        "nothing like it was seen"
    );
    for id in [5, 6] {
        drafter.push(id);
    }
    assert_eq!(drafter.drafts(2), [9, 1]);
    assert!(
        drafter.rate().expect("there is a guess") < rate,
        "a wrong guess is remembered"
    );
}

#[test]
fn an_answer_that_repeats_itself_is_guessed_past_its_end() {
    let mut drafter = Drafter::new(SETTINGS, &request(&[1]), Vec::new());
    [7, 8, 9, 7, 8].into_iter().for_each(|id| drafter.push(id));
    assert_eq!(drafter.drafts(5), [9, 7, 8, 9, 7]);
    drafter.push(9);
    assert_eq!(drafter.drafts(3), [7, 8, 9]);
}

#[test]
fn answers_are_shared_by_similar_requests_of_one_client_and_salt() {
    let (mut answers, mine) = (Answers::default(), request(&[1, 2, 3]));
    let mut drafter = Drafter::new(SETTINGS, &mine, Vec::new());
    [10, 11, 12, 13].into_iter().for_each(|id| drafter.push(id));
    answers.remember(&mine, drafter.into_answer().expect("it has an answer"));
    let guesses = |request: &Request| {
        let mut drafter = Drafter::new(SETTINGS, request, answers.similar(request));
        [10, 11].into_iter().for_each(|id| drafter.push(id));
        drafter.drafts(5)
    };
    assert_eq!(guesses(&mine), [12, 13]);
    assert!(
        guesses(&request(&[1, 2, 4])).is_empty(),
        "another beginning"
    );
    assert!(
        guesses(&Request {
            client: 1,
            ..mine.clone()
        })
        .is_empty(),
        "another client"
    );
    assert!(
        guesses(&Request {
            cache_salt: Some("a".into()),
            ..mine.clone()
        })
        .is_empty(),
        "another salt"
    );
    for first in 0..2 * KINDS_MAX as u32 {
        let request = request(&[first]);
        let mut drafter = Drafter::new(SETTINGS, &request, Vec::new());
        drafter.push(1);
        answers.remember(&request, drafter.into_answer().expect("it has an answer"));
    }
    assert_eq!(answers.kinds.len(), KINDS_MAX);
}

#[test]
fn a_predicted_answer_is_guessed_by_position() {
    let predicted = Request {
        predicted: Some([4, 5, 6].into()),
        ..request(&[1])
    };
    let mut drafter = Drafter::new(SETTINGS, &predicted, Vec::new());
    assert_eq!(drafter.drafts(2), [4, 5]);
    drafter.push(9);
    assert_eq!(
        drafter.drafts(5),
        [5, 6],
        "a wrong position leaves the others as they are"
    );
}
