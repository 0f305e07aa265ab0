//! What one sequence holds.

use super::pool::{BlockHash, BlockId};
use crate::engine::request::{Cached, Tile};
use crate::plan::inputs::NONE;
use std::sync::Arc;

/// Index of a live sequence. Memory only tells one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub(crate) u32);

/// The blocks of one sequence in one KV group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Entry `i` is the block of positions `[i · block_size, (i + 1) · block_size)`; [`NONE`] once the window has moved
    /// past it.
    pub(crate) blocks: Vec<BlockId>,
    /// Number of leading entries that the window has moved past.
    pub(crate) passed: u32,
    /// Number of free blocks that the pool reserves for this table.
    pub(crate) reserved: u32,
}

impl Table {
    /// The blocks held, first positions first.
    pub(crate) fn held(&self) -> impl DoubleEndedIterator<Item = BlockId> + '_ {
        self.blocks[self.passed as usize..].iter().copied()
    }

    /// Number of entries.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("a table is short")
    }
}

/// The state slots that a sequence holds.
#[derive(Clone, Debug)]
pub(crate) struct HeldStates {
    /// The state after its computed tokens; [`NONE`] before the first of them is scheduled.
    pub(crate) live: u32,
    /// The state before its last row while that verifies drafts, else [`NONE`].
    pub(super) before: u32,
    /// Number of tokens at whose end the state becomes a snapshot once the ids of all are known, and its slot.
    pub(super) kept: Option<(u32, u32)>,
    /// The slot that its last row reads; not held.
    pub(super) read: u32,
    /// The last snapshot of its answer; not held.
    pub(crate) last: Option<(u32, BlockHash)>,
    /// Number of its leading tokens whose keys and values were cached on admission, maybe without the state after them.
    pub(super) branch: u32,
}

impl Default for HeldStates {
    fn default() -> Self {
        Self {
            live: NONE,
            before: NONE,
            kept: None,
            read: NONE,
            last: None,
            branch: 0,
        }
    }
}

impl HeldStates {
    /// The slots held, with repetitions.
    pub(crate) fn held(&self) -> impl Iterator<Item = u32> + use<> {
        let kept = self.kept.map_or(NONE, |(_, slot)| slot);
        [self.live, self.before, kept]
            .into_iter()
            .filter(|&slot| slot != NONE)
    }

    /// What a fork holds: the same state after the same tokens.
    fn fork(&self) -> Self {
        Self {
            live: self.live,
            ..Self::default()
        }
    }
}

/// The files that a waiting sequence waits for, and what it keeps in host memory meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct FileWait {
    /// Leading blocks that were cached or on their way when it last asked for files, since it was queued.
    pub(super) promised: Option<u32>,
    /// Files that are still being read.
    pub(super) unread: u32,
    /// Slots of host memory with blocks that were read for it.
    pub(super) arrived: Vec<u32>,
    /// Slots whose blocks were in host memory before.
    pub(super) kept: Vec<u32>,
}

/// What memory must know of a sequence's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    /// Prompts with different salts never share blocks, and such blocks never reach a file.
    pub(crate) salt: Option<&'a str>,
    /// Whose blocks it may share.
    pub(crate) owner: Option<&'a [u8; 32]>,
    /// Digest of the adapter that its keys and values depend on.
    pub(crate) adapter: Option<&'a [u8; 32]>,
    /// Parts of images that some of its tokens stand for, in order.
    pub(crate) tiles: &'a [Tile],
    /// Number of tokens of its prompt.
    pub(crate) prompt_len: u32,
    /// Number of its leading tokens that other sequences can share, once they are computed.
    pub(crate) shareable: u32,
    /// Whether its prompt may leave snapshots of the recurrent state.
    pub(crate) takes_snapshots: bool,
}

/// Tokens that stand for a part of an image.
#[derive(Clone, Debug)]
pub(super) struct ImageRun {
    start: u32,
    end: u32,
    digest: [u8; 32],
}

impl ImageRun {
    fn new(tile: &Tile) -> Self {
        Self {
            start: tile.start,
            end: tile.end(),
            digest: tile.digest,
        }
    }
}

/// What one sequence holds in the pool, the state slots and host memory. It must be released: see [`super::Memory`].
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    /// Block tables, one per KV group.
    pub(crate) tables: Vec<Table>,
    /// The state slots; none while waiting, or if the model keeps no state.
    pub(crate) states: HeldStates,
    /// Number of leading tokens whose keys and values are in the pool once all submitted steps have run.
    pub(crate) computed: u32,
    /// Number of leading blocks that have been registered in the prefix cache.
    pub(super) registered: u32,
    /// Hashes of the leading full blocks whose ids are known.
    pub(crate) hashes: Vec<BlockHash>,
    /// Parent of the first of them.
    pub(super) root: BlockHash,
    pub(super) is_salted: bool,
    /// Tokens that stand for parts of images, in order.
    pub(super) images: Arc<[ImageRun]>,
    pub(super) prompt_len: u32,
    pub(crate) shareable: u32,
    pub(super) takes_snapshots: bool,
    /// Whether all blocks it may need are reserved.
    pub(crate) is_guarded: bool,
    pub(super) wait: FileWait,
    /// Tokens found in the prefix cache on first admission; `None` before it.
    pub(crate) cached: Option<Cached>,
}

impl Holding {
    /// Holds nothing, and hashes its blocks after `root`.
    pub(super) fn new(groups: usize, root: BlockHash, claim: &Claim<'_>) -> Self {
        Self {
            tables: vec![Table::default(); groups],
            states: HeldStates::default(),
            computed: 0,
            registered: 0,
            hashes: Vec::new(),
            root,
            is_salted: claim.salt.is_some(),
            images: claim.tiles.iter().map(ImageRun::new).collect(),
            prompt_len: claim.prompt_len,
            shareable: claim.shareable,
            takes_snapshots: claim.takes_snapshots,
            is_guarded: false,
            wait: FileWait::default(),
            cached: None,
        }
    }

    /// Whether it holds no block and no state.
    pub(crate) fn is_empty(&self) -> bool {
        let has_blocks = self.tables.iter().any(|table| !table.blocks.is_empty());
        !has_blocks && self.states.held().next().is_none()
    }

    /// The parts of images in a block, as [`BlockHash::next_with_images`] takes them.
    pub(super) fn images_of(
        &self,
        index: usize,
        block_size: u32,
    ) -> impl Iterator<Item = (&[u8; 32], i64)> {
        let start = index as u32 * block_size;
        let runs = self.images.iter();
        let runs = runs.filter(move |run| run.start < start + block_size && start < run.end);
        runs.map(move |run| (&run.digest, i64::from(run.start) - i64::from(start)))
    }

    /// Whether a block depends on an image: some token of it, or before it, stands for a part of one.
    pub(super) fn sees_image(&self, index: usize, block_size: u32) -> bool {
        let end = (index as u32 + 1) * block_size;
        self.images.first().is_some_and(|run| run.start < end)
    }

    /// Number of leading tokens that were cached on admission, maybe without the state after them.
    pub(crate) fn branch(&self) -> u32 {
        self.states.branch
    }

    /// Number of slots of host memory that it keeps.
    pub(super) fn slots_kept(&self) -> usize {
        self.wait.arrived.len() + self.wait.kept.len()
    }

    /// The same tokens with nothing held, to be computed again.
    pub(crate) fn unheld(&self) -> Self {
        let mut copy = self.clone();
        copy.wait = FileWait::default();
        copy.drop_lost();
        copy
    }

    /// Forgets its blocks and states, after they were released or lost. The whole sequence must be computed again.
    pub(crate) fn drop_lost(&mut self) {
        self.tables.fill(Table::default());
        self.states = HeldStates::default();
        self.computed = 0;
        self.registered = 0;
        self.is_guarded = false;
    }

    /// Counts nothing as computed, though its blocks and states are still held while a step in flight uses them.
    pub(crate) fn restart(&mut self) {
        self.computed = 0;
        self.registered = 0;
    }

    /// A copy for a fork. The caller adds the holders of blocks and state.
    pub(super) fn copy_for_fork(&self) -> Self {
        let mut copy = self.clone();
        copy.states = self.states.fork();
        copy.wait = FileWait::default();
        copy.is_guarded = false;
        for table in &mut copy.tables {
            table.reserved = 0;
        }
        copy
    }
}

#[cfg(test)]
impl Default for Holding {
    /// Of a sequence in one KV group whose prompt nobody shares.
    fn default() -> Self {
        let claim = Claim {
            adapter: None,
            tiles: &[],
            salt: None,
            owner: None,
            prompt_len: 1,
            shareable: 0,
            takes_snapshots: false,
        };
        Self::new(1, BlockHash::from([0; 16]), &claim)
    }
}
