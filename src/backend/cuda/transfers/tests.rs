//! Tests of `backend/cuda/transfers.rs`.

use super::*;

#[test]
fn parts_fit_a_slot_and_keep_the_order() {
    assert!(parts(&[]).is_empty());
    let spans = [
        (0, 5),
        (100, SLOT_BYTES),
        (1 << 40, 0),
        (1 << 41, 2 * SLOT_BYTES + 7),
    ];
    let spans = spans.map(|(address, bytes)| Span { address, bytes });
    let parts = parts(&spans);
    let sizes: Vec<usize> = parts
        .iter()
        .map(|part| part.iter().map(|span| span.bytes).sum())
        .collect();
    assert_eq!(sizes, [SLOT_BYTES, SLOT_BYTES, SLOT_BYTES, 12]);
    // Joined again, they are the spans.
    let mut joined: Vec<(u64, usize)> = Vec::new();
    for span in parts.concat() {
        match joined.last_mut() {
            Some((address, bytes)) if *address + *bytes as u64 == span.address => {
                *bytes += span.bytes;
            }
            _ => joined.push((span.address, span.bytes)),
        }
    }
    let whole: Vec<_> = spans
        .iter()
        .filter(|span| span.bytes > 0)
        .map(|span| (span.address, span.bytes))
        .collect();
    assert_eq!(joined, whole);
}
