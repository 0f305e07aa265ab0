//! Tests of the places of images in a prompt.

use super::ReadImages;
use crate::engine::request::Tile;
use crate::server::wire::memory::RequestMemory;
use std::sync::Arc;

/// Images whose parts have these numbers of rows, for which token 9 stands.
fn images(rows: &[u32]) -> ReadImages {
    let tile = |&rows: &u32| Tile {
        start: 0,
        rows,
        digest: [0; 32],
        patches: Arc::default(),
        positions: Arc::default(),
    };
    ReadImages {
        marker: "<image>",
        texts: Vec::new(),
        placeholder: 9,
        tiles: rows.iter().map(tile).collect(),
        charge: RequestMemory::new(0).request(),
    }
}

#[test]
fn every_row_has_a_placeholder_and_every_placeholder_a_row() {
    let starts = |rows: &[u32], prompt: &[u32]| {
        let placed = images(rows).placed(prompt)?;
        Some(
            placed
                .tiles
                .iter()
                .map(|tile| tile.start)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(starts(&[2, 1], &[1, 9, 9, 3, 9, 4]), Some(vec![1, 4]));
    assert_eq!(starts(&[2, 1], &[9, 9, 9]), Some(vec![0, 2]));
    assert_eq!(starts(&[2, 1], &[9, 1, 9, 9]), None, "a part has a gap");
    assert_eq!(starts(&[2], &[9, 9, 9]), None, "one placeholder too many");
    assert_eq!(starts(&[2, 1], &[9, 9]), None, "a row has none");
    assert_eq!(starts(&[], &[1, 2]), Some(Vec::new()));
}
