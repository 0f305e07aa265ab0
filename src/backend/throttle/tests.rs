//! Tests of `backend/throttle.rs`.

use super::*;

const ROW: Work = Work {
    operations: 1e9,
    bytes: 1e6,
};

/// A thousand operations, and a byte, per token row; a millisecond per row.
fn note(throttle: &mut Throttle, tokens: u32) {
    let load = Load {
        tokens,
        work: ROW * f64::from(tokens),
    };
    throttle.note(load, Duration::from_millis(tokens.into()));
}

#[test]
fn a_batch_is_cut_by_its_predicted_time() {
    let mut throttle = Throttle::new(Some(NATIVE));
    let layers = vec![ROW * 8.0; 64];
    let parts = |throttle: &Throttle, tokens| {
        throttle
            .cut(&layers, tokens, |work| *work)
            .collect::<Vec<_>>()
    };
    assert_eq!(parts(&throttle, 512).len(), 64, "nothing is known yet");
    assert_eq!(parts(&throttle, 1).len(), 64, "not even for small batches");
    assert_eq!(
        (throttle.tokens_max(), throttle.slices(512, ROW * 512.0)),
        (None, 1)
    );
    note(&mut throttle, 1);
    assert_eq!(
        parts(&throttle, 512).len(),
        64,
        "a small batch says nothing about large ones"
    );
    note(&mut throttle, 64);
    let cut = parts(&throttle, 512);
    assert_eq!(cut.concat(), layers, "every dispatch runs, in order");
    assert_eq!(
        cut.iter().map(|part| part.len()).collect::<Vec<_>>(),
        [12, 12, 12, 12, 12, 4],
        "100 ms each"
    );
    assert_eq!(
        parts(&throttle, 16).len(),
        6,
        "by bytes, which take as long here"
    );
    assert_eq!(throttle.tokens_max(), Some(2000), "two seconds");
    throttle.note_loss();
    assert_eq!(
        parts(&throttle, 512).len(),
        22,
        "a loss raises the estimate"
    );
    assert_eq!(throttle.tokens_max(), Some(500));
    (0..3).for_each(|_| throttle.note_loss());
    assert_eq!(
        throttle.tokens_max(),
        Some(64),
        "a chunk stays worth its while"
    );
}

#[test]
fn long_attention_is_sliced() {
    let mut throttle = Throttle::new(Some(NATIVE));
    note(&mut throttle, 64);
    let slices = |seconds: f64| throttle.slices(64, ROW * (1e3 * seconds));
    assert_eq!(
        [0.0, 0.09, 0.11, 0.3, 1.5, 1e9].map(slices),
        [1, 1, 2, 4, 16, 64]
    );
}

#[test]
fn what_has_no_watchdog_is_not_cut() {
    let mut throttle = Throttle::new(None);
    (0..2).for_each(|_| note(&mut throttle, 64));
    assert_eq!(throttle.cut(&[ROW * 1e9; 9], 64, |work| *work).count(), 1);
    assert_eq!(
        (throttle.tokens_max(), throttle.slices(64, ROW * 1e9)),
        (None, 1)
    );
}
