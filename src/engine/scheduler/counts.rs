//! What the pool holds, counted in tokens.

use super::Scheduler;

impl Scheduler {
    /// Number of tokens stored in held blocks, over all KV groups: the slots of those blocks minus the slots that
    /// nobody has filled yet. A shared block counts once.
    pub fn tokens_stored(&self) -> u64 {
        let size = self.limits.block_size;
        let held: u64 = self
            .pool
            .groups()
            .iter()
            .map(|group| u64::from(group.referenced()))
            .sum();
        let mut unfilled = Vec::new();
        for sequence in self.sequences.iter() {
            let (full, filled) = (
                (sequence.computed / size) as usize,
                sequence.computed % size,
            );
            for (group, table) in sequence.tables.iter().enumerate() {
                let rest = table
                    .blocks
                    .iter()
                    .enumerate()
                    .skip(full.max(table.passed as usize));
                unfilled.extend(rest.map(|(index, &block)| {
                    (group, block, size - if index == full { filled } else { 0 })
                }));
            }
        }
        // Of sequences that share a block, the one that has filled most of it counts.
        unfilled.sort_unstable();
        unfilled.dedup_by_key(|(group, block, _)| (*group, *block));
        held * u64::from(size)
            - unfilled
                .into_iter()
                .map(|(_, _, slots)| u64::from(slots))
                .sum::<u64>()
    }
}
