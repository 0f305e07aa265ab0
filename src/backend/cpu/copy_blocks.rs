//! Block copies, reference. Twin of `shaders/copy_blocks.wgsl`.
//!
//! For every (source, target) of a KV group: block `target` of K and of V becomes block `source`, bit for bit, in each
//! layer of the group. Within one batch no block is both source and target, and targets are distinct.

use super::memory::KvStore;

/// Copies whole blocks of one half of one layer.
pub(super) fn copy_blocks(store: &mut KvStore, block_elements: usize, copies: &[(u32, u32)]) {
    for &(source, target) in copies {
        store.copy(source as usize * block_elements, target as usize * block_elements, block_elements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::KvFormat;

    #[test]
    fn targets_become_their_sources_and_nothing_else_changes() {
        let mut store = KvStore::new(KvFormat::F16, 12).unwrap();
        store.write(0, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        copy_blocks(&mut store, 3, &[(3, 0), (1, 2)]);
        let mut after = [0.0; 12];
        store.read(0, &mut after);
        assert_eq!(after, [9.0, 10.0, 11.0, 3.0, 4.0, 5.0, 3.0, 4.0, 5.0, 9.0, 10.0, 11.0]);
    }
}
