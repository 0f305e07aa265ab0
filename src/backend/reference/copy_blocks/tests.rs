//! Tests of `backend/reference/copy_blocks.rs`.

use super::*;
use crate::plan::KvFormat;
use crate::plan::format::KvTile;

#[test]
fn targets_become_their_sources_and_nothing_else_changes() {
    const HEADS: usize = 3;
    for format in KvFormat::ALL {
        let tile = KvTile {
            format,
            slots: 2,
            head_dim: 8,
        };
        let mut store = KvStore::new(tile, 4 * HEADS).unwrap();
        let block = 2 * 8 * HEADS;
        let values: Vec<f32> = (0..4 * block)
            .map(|at| (at as f32 * 12.9898).sin())
            .collect();
        store.write(0, &values);
        let all = |store: &KvStore| {
            let mut out = vec![0.0; values.len()];
            store.read(0, &mut out);
            out
        };
        let before = all(&store);
        copy_blocks(&mut store, HEADS, &[(3, 0), (1, 2)]);
        let after = all(&store);
        for (target, source) in [3, 1, 1, 3].into_iter().enumerate() {
            let (found, expected) = (
                &after[target * block..][..block],
                &before[source * block..][..block],
            );
            assert_eq!(found, expected, "{format:?}, block {target}");
        }
    }
}
