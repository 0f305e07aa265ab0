//! The index by chain hash: blocks that others computed for the same leading tokens are found, and own ones registered.

use super::Memory;
use super::holding::Holding;
use super::pool::BlockHash;

/// The tiers in which a block is looked for, besides the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Host memory.
    Host,
    /// Host memory and files.
    Files,
}

impl Memory {
    /// Number of leading blocks of a sequence that are cached on the device or in host memory, with the state after
    /// them. At most `reusable` tokens are of use to it; `tokens` are its known ids.
    pub(crate) fn match_prefix(&self, holding: &mut Holding, tokens: &[u32], reusable: u32) -> u32 {
        self.match_within(Reach::Host, holding, tokens, reusable)
    }

    /// [`Self::match_prefix`], in these tiers.
    pub(super) fn match_within(
        &self,
        reach: Reach,
        holding: &mut Holding,
        tokens: &[u32],
        reusable: u32,
    ) -> u32 {
        if !self.limits.prefix_caching {
            return 0;
        }
        let blocks = reusable.min(holding.shareable) / self.limits.block_size;
        self.extend_hashes(holding, tokens, blocks);
        let mut found = blocks;
        loop {
            // A shorter chain ends in another part of a window, whose blocks may be missing, and at another snapshot.
            let whole = self.blocks_to_snapshot(reach, &holding.hashes[..found as usize]);
            found = self.longest_prefix(reach, &holding.hashes[..whole as usize]);
            if found == whole {
                return found;
            }
        }
    }

    /// Number of leading blocks of a chain up to its longest snapshot, in whole units that prompts share. One in a
    /// colder tier counts if it is worth moving for the tokens that it spares beyond the longest one on the device.
    pub(super) fn blocks_to_snapshot(&self, reach: Reach, chain: &[BlockHash]) -> u32 {
        let unit = self.demand.sharing_unit / self.limits.block_size;
        let whole = u32::try_from(chain.len()).expect("a chain has few blocks") / unit;
        if !self.keeps_states() {
            return whole * unit;
        }
        let hash = |units: u32| &chain[(units * unit - 1) as usize];
        let mut on_device = (1..=whole).rev();
        let near = on_device.find(|&units| self.states.lookup(hash(units)).is_some());
        let near = near.unwrap_or(0);
        let mut beyond = (near + 1..=whole).rev();
        let far = beyond.find(|&units| {
            let spared = (units - near) * self.demand.sharing_unit;
            self.is_near(reach, self.state_group(), hash(units), spared)
        });
        far.unwrap_or(near) * unit
    }

    /// Number of leading blocks of a chain that are on the device or in these tiers, whatever states there are.
    pub(super) fn longest_prefix(&self, reach: Reach, chain: &[BlockHash]) -> u32 {
        let size = self.limits.block_size;
        let elsewhere = |group: usize, hash: &BlockHash| self.is_near(reach, group, hash, size);
        self.pool.longest_prefix(chain, elsewhere)
    }

    /// Whether a block is in these tiers, and moving it from there is worthwhile if it spares `tokens` tokens.
    pub(super) fn is_near(
        &self,
        reach: Reach,
        group: usize,
        hash: &BlockHash,
        tokens: u32,
    ) -> bool {
        let in_host =
            || self.host.lookup(group, hash).is_some() && self.is_worth_moving(group, tokens);
        let in_file = || self.files.holds(&(group, *hash)) && self.is_worth_reading(group, tokens);
        in_host() || reach == Reach::Files && in_file()
    }

    /// Index of the first block of a chain that the query after it attends to.
    pub(super) fn first_needed(&self, group: usize, chain: &[BlockHash]) -> usize {
        let matched = u32::try_from(chain.len()).expect("a chain has few blocks");
        let position = matched * self.limits.block_size;
        self.pool.first_visible(group, position).min(matched) as usize
    }

    /// Hashes the leading blocks up to `full`. All their token ids are known.
    fn extend_hashes(&self, holding: &mut Holding, tokens: &[u32], full: u32) {
        let size = self.limits.block_size as usize;
        let key = self.key(holding.is_salted);
        assert!(
            full as usize * size <= tokens.len(),
            "only blocks whose ids are all known are hashed"
        );
        for index in holding.hashes.len()..full as usize {
            let parent = holding.hashes.last().copied().unwrap_or(holding.root);
            let block = &tokens[index * size..(index + 1) * size];
            let images = holding.images_of(index, self.limits.block_size);
            let hash = parent.next_with_images(key, block, images);
            holding.hashes.push(hash);
        }
    }

    /// Forgets the hashes of blocks beyond `tokens` tokens, because others will follow there.
    pub(crate) fn cut_hashes(&self, holding: &mut Holding, tokens: usize) {
        let blocks = tokens / self.limits.block_size as usize;
        holding.hashes.truncate(blocks);
    }

    /// Registers the full blocks whose token ids are known in the prefix cache. Keys and values are written before
    /// anything reads them, so a block counts as full as soon as the step that fills it is scheduled.
    pub(crate) fn register_full_blocks(&mut self, holding: &mut Holding, tokens: &[u32]) {
        if !self.limits.prefix_caching {
            return;
        }
        let known = u32::try_from(tokens.len()).expect("a sequence fits the context");
        let tokens_full = holding.computed.min(known).min(holding.shareable);
        let full = tokens_full / self.limits.block_size;
        self.extend_hashes(holding, tokens, full);
        for (group, table) in holding.tables.iter().enumerate() {
            let pool = self.pool.group_mut(group);
            for index in holding.registered.max(table.passed)..full.min(table.len()) {
                let block = table.blocks[index as usize];
                pool.register(block, holding.hashes[index as usize]);
            }
        }
        holding.registered = holding.registered.max(full);
    }
}
