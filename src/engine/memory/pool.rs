//! Blocks of the KV pool: allocate, share by prefix hash, evict, release.
//!
//! A [`BlockPool`] has one [`Group`] of blocks per KV group (full attention, or a window). A block is a number: the
//! device stores its bytes, this module counts its holders. A block without holders is free and waits in an intrusive
//! queue, least recently used first. While it waits, its hash stays in the prefix cache, and a new prompt can reuse it
//! in O(1).
//!
//! Pure: no device, no clock, no randomness (the hash key is an argument). The scheduler knows which sequence holds
//! which blocks.

use crate::engine::request::CacheOwner;
use crate::plan::Window;
use crate::plan::inputs::NONE;
use std::collections::HashMap;

/// Index of a block within its group.
pub type BlockId = u32;

/// Identifies the tokens of a full block and of everything before it. The hash is keyed, so that clients cannot
/// construct a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash([u8; 16]);

/// Group and hash of a block. The group after the KV groups is that of the state slots: such a block is a snapshot of
/// the state after the block with this hash.
pub type BlockKey = (usize, BlockHash);

impl BlockHash {
    /// The parent hash of a sequence's first block. Prompts with different owners, salts or adapters have different
    /// roots, and never share blocks.
    pub fn root(
        key: &[u8; 32],
        owner: Option<&CacheOwner>,
        salt: Option<&str>,
        adapter: Option<&[u8; 32]>,
    ) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(key);
        if let Some(owner) = owner {
            hasher.update(b"owner").update(owner);
        }
        if let Some(adapter) = adapter {
            hasher.update(b"adapter").update(adapter);
        }
        hasher.update(if salt.is_some() { b"salt" } else { b"none" });
        hasher.update(salt.unwrap_or_default().as_bytes());
        Self::truncated(&hasher)
    }

    /// The hash of the block that follows `self` and holds `token_ids`.
    pub fn next(self, key: &[u8; 32], token_ids: &[u32]) -> Self {
        self.next_with_images(key, token_ids, std::iter::empty())
    }

    /// [`Self::next`], where some of the tokens stand for parts of images: the digest of each part, and its first token
    /// counted from that of the block.
    pub(super) fn next_with_images<'a>(
        self,
        key: &[u8; 32],
        token_ids: &[u32],
        images: impl Iterator<Item = (&'a [u8; 32], i64)>,
    ) -> Self {
        debug_assert!(!token_ids.is_empty(), "a block holds tokens");
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(&self.0);
        hasher.update(bytemuck::cast_slice(token_ids));
        for (digest, first) in images {
            hasher.update(digest).update(&first.to_le_bytes());
        }
        Self::truncated(&hasher)
    }

    /// The hash as bytes, for names and files.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    fn truncated(hasher: &blake3::Hasher) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(bytes)
    }
}

impl From<[u8; 16]> for BlockHash {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    references: u32,
    /// Number of steps in flight that copy from this block. While it is above 0, the block does not join the free
    /// queue.
    pins: u32,
    hash: Option<BlockHash>,
    /// Neighbors in the free queue; [`NONE`] at the ends and for a block that is not queued.
    older: BlockId,
    newer: BlockId,
}

/// The blocks of one KV group.
#[derive(Clone, Debug)]
pub struct Group {
    window: Option<Window>,
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, BlockId>,
    /// Ends of the free queue. Blocks are taken from `oldest`.
    oldest: BlockId,
    newest: BlockId,
    free: u32,
    reserved: u32,
    /// Sum of all reference counts.
    held: u64,
}

impl Block {
    fn is_free(&self) -> bool {
        self.references == 0 && self.pins == 0
    }
}

impl Group {
    /// A group of free blocks.
    pub(crate) fn new(window: Option<Window>, blocks: u32) -> Self {
        assert!(blocks < NONE, "NONE is not a block id");
        assert!(
            window.is_none_or(|window| window.tokens() > 0),
            "a query sees its own key"
        );
        let blank = Block {
            references: 0,
            pins: 0,
            hash: None,
            older: NONE,
            newer: NONE,
        };
        let mut group = Self {
            window,
            blocks: vec![blank; blocks as usize],
            by_hash: HashMap::new(),
            oldest: NONE,
            newest: NONE,
            free: 0,
            reserved: 0,
            held: 0,
        };
        (0..blocks).for_each(|id| group.enqueue_newest(id));
        group
    }

    /// Attention window; `None` for full attention.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Number of blocks.
    pub fn total(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("block ids are u32")
    }

    /// Number of blocks without holders, cached ones included.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Number of free blocks that are not reserved.
    pub fn available(&self) -> u32 {
        self.free.saturating_sub(self.reserved)
    }

    /// Whether this block can be allocated.
    pub fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id as usize].is_free()
    }

    /// Number of blocks with at least one holder.
    pub fn referenced(&self) -> u32 {
        self.total() - self.free
    }

    /// Number of holders of all blocks: entries of block tables.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Number of block tables that hold this block.
    pub fn references(&self, id: BlockId) -> u32 {
        self.blocks[id as usize].references
    }

    /// Whether the prefix cache can find this block.
    pub fn is_cached(&self, id: BlockId) -> bool {
        self.blocks[id as usize].hash.is_some()
    }

    /// Reserves `count` free blocks for a sequence.
    pub(crate) fn reserve(&mut self, count: u32) {
        self.reserved += count;
        assert!(self.reserved <= self.free, "only free blocks are reserved");
    }

    /// Releases a reservation: just before its block is allocated, or when the sequence ends.
    pub(crate) fn unreserve(&mut self, count: u32) {
        assert!(
            count <= self.reserved,
            "only reserved blocks are unreserved"
        );
        self.reserved -= count;
    }

    /// Takes the least recently used free block and removes it from the prefix cache; also returns the hash it had
    /// there. Its old content stays in place.
    pub(crate) fn allocate(&mut self) -> Option<(BlockId, Option<BlockHash>)> {
        let id = self.oldest;
        if id == NONE {
            return None;
        }
        debug_assert!(self.is_free(id), "the free queue holds only free blocks");
        debug_assert!(
            self.free > self.reserved,
            "a reserved block is unreserved before it is allocated"
        );
        self.dequeue(id);
        let evicted = self.withdraw(id);
        self.blocks[id as usize].references = 1;
        self.held += 1;
        Some((id, evicted))
    }

    /// The cached block with this hash: these tokens after exactly this prefix.
    pub(crate) fn lookup(&self, hash: &BlockHash) -> Option<BlockId> {
        let found = self.by_hash.get(hash).copied();
        debug_assert!(
            found.is_none_or(|id| self.blocks[id as usize].hash == Some(*hash)),
            "hash and block match"
        );
        found
    }

    /// Adds a holder. A free cached block leaves the free queue.
    pub(crate) fn share(&mut self, id: BlockId) {
        assert!(
            self.references(id) > 0 || self.is_cached(id),
            "only a held or cached block is shared"
        );
        if self.is_free(id) {
            self.dequeue(id);
        }
        self.blocks[id as usize].references += 1;
        self.held += 1;
    }

    /// Removes a holder. Without holders, the block joins the free queue: a cached block at the end that is reused
    /// last, a block without a hash (useless to other prompts) at the end that is reused first. Callers release a chain
    /// from its deepest block, so that of equally old blocks the deepest is evicted first.
    pub(crate) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        assert!(
            block.references > 0,
            "only a block with a holder is released"
        );
        block.references -= 1;
        self.held -= 1;
        self.enqueue_if_free(id);
    }

    /// Keeps a held block's content until [`Group::unpin`], even if its holders leave, because a step copies from it.
    pub(crate) fn pin(&mut self, id: BlockId) {
        assert!(self.references(id) > 0, "only a held block is pinned");
        self.blocks[id as usize].pins += 1;
    }

    /// Removes the pin of a step that copied from this block and has completed.
    pub(crate) fn unpin(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        assert!(block.pins > 0, "only a pinned block is unpinned");
        block.pins -= 1;
        self.enqueue_if_free(id);
    }

    /// Adds a full block to the prefix cache. If another block has the same content, the first one registered stays.
    pub(crate) fn register(&mut self, id: BlockId, hash: BlockHash) {
        assert!(self.references(id) > 0, "only a held block is registered");
        let block = &mut self.blocks[id as usize];
        if block.hash.is_none() && !self.by_hash.contains_key(&hash) {
            block.hash = Some(hash);
            self.by_hash.insert(hash, id);
        }
    }

    /// Removes a block from the prefix cache: it is about to be overwritten, or its content turned out to be wrong.
    /// Returns the hash it had there.
    pub(crate) fn withdraw(&mut self, id: BlockId) -> Option<BlockHash> {
        let hash = self.blocks[id as usize].hash.take()?;
        let named = self.by_hash.remove(&hash);
        debug_assert_eq!(named, Some(id), "hash and block name each other");
        Some(hash)
    }

    /// Removes a block from the prefix cache that nobody will look for. If it is free, it is reused first.
    pub(crate) fn discard(&mut self, id: BlockId) {
        self.withdraw(id);
        if self.is_queued(id) {
            self.dequeue(id);
            self.enqueue_oldest(id);
        }
    }

    /// Whether the block is in the free queue.
    fn is_queued(&self, id: BlockId) -> bool {
        let Block { older, newer, .. } = self.blocks[id as usize];
        older != NONE || newer != NONE || self.oldest == id
    }

    fn enqueue_if_free(&mut self, id: BlockId) {
        debug_assert!(
            !self.is_queued(id),
            "a block that was held is not in the free queue"
        );
        let block = &self.blocks[id as usize];
        if block.is_free() {
            if block.hash.is_some() {
                self.enqueue_newest(id);
            } else {
                self.enqueue_oldest(id);
            }
        }
    }

    fn dequeue(&mut self, id: BlockId) {
        let Block { older, newer, .. } = self.blocks[id as usize];
        assert!(self.free > 0, "the free queue is not empty");
        debug_assert!(
            older != NONE || self.oldest == id,
            "only the oldest block has no older neighbor"
        );
        debug_assert!(
            newer != NONE || self.newest == id,
            "only the newest block has no newer neighbor"
        );
        self.link(older, newer);
        let block = &mut self.blocks[id as usize];
        (block.older, block.newer) = (NONE, NONE);
        self.free -= 1;
    }

    fn enqueue_newest(&mut self, id: BlockId) {
        debug_assert!(
            self.is_free(id) && !self.is_queued(id),
            "a block joins the queue once, when nobody holds it"
        );
        self.link(self.newest, id);
        self.link(id, NONE);
        self.free += 1;
    }

    fn enqueue_oldest(&mut self, id: BlockId) {
        debug_assert!(
            self.is_free(id) && !self.is_queued(id),
            "a block joins the queue once, when nobody holds it"
        );
        self.link(id, self.oldest);
        self.link(NONE, id);
        self.free += 1;
    }

    /// Links two blocks as neighbors in the free queue; [`NONE`] stands for its ends.
    fn link(&mut self, older: BlockId, newer: BlockId) {
        debug_assert!(
            older != newer || older == NONE,
            "a block is not its own neighbor"
        );
        match older {
            NONE => self.oldest = newer,
            id => self.blocks[id as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            id => self.blocks[id as usize].older = older,
        }
    }

    /// Asserts the group's invariants; `occurrences` counts how often each block occurs in live tables.
    pub(crate) fn check(&self, occurrences: &[u32]) {
        assert_eq!(
            occurrences.len(),
            self.blocks.len(),
            "there is one count per block"
        );
        for (block, &occurs) in self.blocks.iter().zip(occurrences) {
            assert_eq!(
                block.references, occurs,
                "a block's reference count equals its occurrences in live tables"
            );
        }
        let held: u64 = occurrences.iter().map(|&occurs| u64::from(occurs)).sum();
        assert_eq!(self.held, held, "holders are counted");
        let (mut id, mut queued, mut older) = (self.oldest, 0, NONE);
        while id != NONE {
            let block = &self.blocks[id as usize];
            assert!(block.is_free(), "a queued block has no holder");
            assert_eq!(block.older, older, "the free queue is linked both ways");
            (older, id, queued) = (id, block.newer, queued + 1);
        }
        assert_eq!(
            older, self.newest,
            "the free queue ends at its newest block"
        );
        assert_eq!(
            queued, self.free,
            "the free count equals the queue's length"
        );
        let held = self.blocks.iter().filter(|block| !block.is_free()).count();
        assert_eq!(
            held + queued as usize,
            self.blocks.len(),
            "free + referenced = total"
        );
        assert!(self.reserved <= self.free, "reserved blocks are free");
        let hashed = self
            .blocks
            .iter()
            .filter(|block| block.hash.is_some())
            .count();
        assert_eq!(
            hashed,
            self.by_hash.len(),
            "every registered hash has exactly one block"
        );
        for (hash, &id) in &self.by_hash {
            assert_eq!(
                self.blocks[id as usize].hash.as_ref(),
                Some(hash),
                "hash and block name each other"
            );
        }
    }
}

/// The blocks of all KV groups.
#[derive(Clone, Debug)]
pub struct BlockPool {
    block_size: u32,
    groups: Vec<Group>,
}

impl BlockPool {
    /// A pool with `blocks[g]` free blocks for the group with window `windows[g]`.
    pub fn new(block_size: u32, windows: &[Option<Window>], blocks: &[u32]) -> Self {
        assert_eq!(windows.len(), blocks.len(), "every KV group has blocks");
        assert!(block_size > 0, "a block holds tokens");
        let groups = windows
            .iter()
            .zip(blocks)
            .map(|(&window, &count)| Group::new(window, count))
            .collect();
        Self { block_size, groups }
    }

    /// The KV groups, in the order of the plan.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// One KV group, mutable.
    pub(crate) fn group_mut(&mut self, group: usize) -> &mut Group {
        &mut self.groups[group]
    }

    /// Tokens per block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Number of blocks needed for `tokens` tokens.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// Index of the first block that a query at `position` attends to in this group.
    pub(crate) fn first_visible(&self, group: usize, position: u32) -> u32 {
        let Some(window) = self.groups[group].window else {
            return 0;
        };
        let first = window.first_visible(position) / self.block_size;
        debug_assert!(
            first <= position / self.block_size,
            "a query sees its own block"
        );
        first
    }

    /// Number of leading blocks of this chain that a prompt can reuse. A group with full attention needs all of them to
    /// be cached; a window group needs those that the next query attends to. `elsewhere` says whether a colder tier
    /// holds a block of a group.
    pub(crate) fn longest_prefix(
        &self,
        hashes: &[BlockHash],
        elsewhere: impl Fn(usize, &BlockHash) -> bool,
    ) -> u32 {
        let mut length = hashes.len();
        let found = |group: usize, hash: &BlockHash| {
            self.groups[group].lookup(hash).is_some() || elsewhere(group, hash)
        };
        for group in (0..self.groups.len()).filter(|&group| self.groups[group].window.is_none()) {
            length = hashes[..length]
                .iter()
                .take_while(|hash| found(group, hash))
                .count();
        }
        // A gap in a window rules out every length whose window reaches it, so the search continues below it.
        while let Some(gap) = self.window_gap(&hashes[..length], &found) {
            debug_assert!(gap < length, "each gap shortens the chain");
            length = gap;
        }
        u32::try_from(length).expect("a chain has few blocks")
    }

    fn window_gap(
        &self,
        hashes: &[BlockHash],
        found: &impl Fn(usize, &BlockHash) -> bool,
    ) -> Option<usize> {
        let position =
            u32::try_from(hashes.len()).expect("a chain has few blocks") * self.block_size;
        let first = |group| (self.first_visible(group, position) as usize).min(hashes.len());
        let groups = 0..self.groups.len();
        // The next query may see nothing of what is before it, as the first of a chunk: then nothing was found either.
        if !groups.is_empty() && groups.clone().all(|group| first(group) == hashes.len()) {
            return hashes.len().checked_sub(1);
        }
        groups
            .filter(|&group| self.groups[group].window.is_some())
            .find_map(|group| {
                (first(group)..hashes.len())
                    .rev()
                    .find(|&index| !found(group, &hashes[index]))
            })
    }

    /// Forgets all content and all holders, after the device was lost.
    pub(crate) fn reset(&mut self) {
        for group in &mut self.groups {
            *group = Group::new(group.window, group.total());
        }
    }

    /// Asserts the pool's invariants; `occurrences[g][b]` counts block `b` in live tables of group `g`.
    pub(crate) fn check(&self, occurrences: &[Vec<u32>]) {
        assert_eq!(
            occurrences.len(),
            self.groups.len(),
            "every KV group is counted"
        );
        for (group, occurrences) in self.groups.iter().zip(occurrences) {
            group.check(occurrences);
        }
    }
}

#[cfg(test)]
mod tests;
