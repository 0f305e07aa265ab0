//! Tests of `server/parameters/vocabulary.rs`.

use super::*;

fn state(allowed: &[u32], bad: &[&[u32]]) -> State {
    let mut mask = vec![0; 2];
    allowed.iter().for_each(|id| set(&mut mask, *id));
    let bad: Vec<Vec<u32>> = bad.iter().map(|ids| ids.to_vec()).collect();
    State {
        inner: None,
        mask: mask.into(),
        bad: bad.into(),
        last: Vec::new(),
    }
}

fn allowed(state: &mut State) -> Vec<u32> {
    let mut mask = vec![0; 2];
    assert_eq!(state.fill_mask(&mut mask), Ok(true));
    (0..64).filter(|id| has(&mask, *id)).collect()
}

#[test]
fn a_text_is_forbidden_at_its_last_token() {
    let mut state = state(&[1, 2, 3, 40], &[&[3], &[1, 2], &[1, 1, 40]]);
    assert_eq!(allowed(&mut state), [1, 2, 40]);
    assert_eq!(state.accept(1), Ok(false));
    assert_eq!(allowed(&mut state), [1, 40]);
    assert_eq!(state.fork().accept(2), Err(Unsatisfiable));
    assert_eq!(state.accept(1), Ok(false));
    assert_eq!(allowed(&mut state), [1]);
    assert_eq!(state.accept(1), Ok(false));
    assert_eq!(state.last, [1, 1], "no more than needed is kept");
}
