//! Which blocks host memory holds: slots by hash, least recently used first. Pure: the bytes are the engine's.
//!
//! A slot is leaving or arriving (its copy from the device or its file is in flight: nobody finds it, nothing replaces
//! it) or held. A held slot from which an upload is in flight is pinned, one that a waiting sequence needs is kept;
//! neither is replaced.

use super::pool::{BlockHash, BlockKey};
use std::collections::{BTreeMap, HashMap};

/// Index of a block in host memory.
pub type HostSlot = u32;

/// What a slot's bytes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Its copy from the device has not been read yet.
    Leaving,
    /// Its file has not been read yet.
    Arriving,
    /// Nothing: they are there.
    Held,
}

/// A slot in use.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: BlockKey,
    fill: Fill,
    /// Steps in flight that upload from it.
    pins: u32,
    /// Waiting sequences that need it.
    keepers: u32,
    /// Its content turned out to be wrong: it cannot be found, and is vacated as soon as nothing uses it.
    withdrawn: bool,
    last_use: u64,
}

/// Blocks in host memory.
#[derive(Clone, Debug)]
pub struct HostTier {
    bytes_max: u64,
    block_bytes: Vec<u64>,
    bytes: u64,
    entries: Vec<Option<Entry>>,
    vacant: Vec<HostSlot>,
    by_key: HashMap<BlockKey, HostSlot>,
    /// Slots in use, least recently used first.
    by_use: BTreeMap<u64, HostSlot>,
    uses: u64,
}

impl HostTier {
    /// An empty tier of at most `bytes_max` bytes; a block of group `g` takes `block_bytes[g]`.
    pub fn new(bytes_max: u64, block_bytes: Vec<u64>) -> Self {
        debug_assert!(
            bytes_max == 0 || block_bytes.iter().all(|&bytes| bytes > 0),
            "a block has bytes"
        );
        Self {
            bytes_max,
            block_bytes,
            bytes: 0,
            entries: Vec::new(),
            vacant: Vec::new(),
            by_key: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Whether there is no such tier.
    pub fn is_off(&self) -> bool {
        self.bytes_max == 0
    }

    /// Most bytes that it may hold.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes of the blocks it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The slot that holds this block, if its bytes are complete.
    pub fn lookup(&self, group: usize, hash: &BlockHash) -> Option<HostSlot> {
        let slot = *self.by_key.get(&(group, *hash))?;
        let entry = self.entries[slot as usize].as_ref()?;
        (entry.fill == Fill::Held).then_some(slot)
    }

    /// Whether a slot holds or will hold this block.
    pub(crate) fn has(&self, group: usize, hash: &BlockHash) -> bool {
        self.by_key.contains_key(&(group, *hash))
    }

    /// The slot that this block is being read into from a file.
    pub(crate) fn arriving(&self, group: usize, hash: &BlockHash) -> Option<HostSlot> {
        let slot = *self.by_key.get(&(group, *hash))?;
        self.entries[slot as usize]
            .is_some_and(|entry| entry.fill == Fill::Arriving)
            .then_some(slot)
    }

    /// Takes a slot for a block whose copy is about to start. `None` if there is no room, because everything is in use.
    pub(crate) fn reserve(
        &mut self,
        group: usize,
        hash: BlockHash,
        fill: Fill,
    ) -> Option<HostSlot> {
        debug_assert!(!self.has(group, &hash), "a block has one slot");
        let needed = *self.block_bytes.get(group)?;
        // Nothing is evicted for what does not fit at all, as a large state may not.
        if needed > self.bytes_max {
            return None;
        }
        while self.bytes + needed > self.bytes_max {
            self.evict()?;
        }
        let (key, last_use) = ((group, hash), self.tick());
        debug_assert!(fill != Fill::Held, "its bytes are to come");
        let entry = Entry {
            key,
            fill,
            pins: 0,
            keepers: 0,
            withdrawn: false,
            last_use,
        };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            HostSlot::try_from(self.entries.len() - 1).expect("slots are counted in u32")
        });
        debug_assert!(
            self.entries[slot as usize].is_none(),
            "a vacant slot is empty"
        );
        self.entries[slot as usize] = Some(entry);
        self.by_key.insert(key, slot);
        self.by_use.insert(last_use, slot);
        self.bytes += needed;
        Some(slot)
    }

    /// The bytes of a leaving or arriving block are in its slot. Returns whether they are still wanted.
    pub(crate) fn complete(&mut self, slot: HostSlot) -> bool {
        let Some(entry) = &mut self.entries[slot as usize] else {
            return false;
        };
        entry.fill = Fill::Held;
        !self.vacate_if_withdrawn(slot)
    }

    /// The copy of a leaving block failed, or the file of an arriving one.
    pub(crate) fn abandon(&mut self, slot: HostSlot) {
        if self.entries[slot as usize].is_some_and(|entry| entry.fill != Fill::Held) {
            self.vacate(slot);
        }
    }

    /// Keeps a slot until [`HostTier::unpin`], and makes it the most recently used.
    pub(crate) fn pin(&mut self, slot: HostSlot) {
        let last_use = self.tick();
        let entry = self.entries[slot as usize]
            .as_mut()
            .expect("a slot that was found is in use");
        entry.pins += 1;
        self.by_use.remove(&entry.last_use);
        entry.last_use = last_use;
        self.by_use.insert(last_use, slot);
    }

    /// An upload from this slot has completed.
    pub(crate) fn unpin(&mut self, slot: HostSlot) {
        let entry = self.entries[slot as usize]
            .as_mut()
            .expect("a pinned slot is in use");
        assert!(entry.pins > 0, "only a pinned slot is unpinned");
        entry.pins -= 1;
        self.vacate_if_withdrawn(slot);
    }

    /// Keeps a slot until [`HostTier::release`], for a sequence that waits.
    pub(crate) fn keep(&mut self, slot: HostSlot) {
        self.entries[slot as usize]
            .as_mut()
            .expect("a slot that was found is in use")
            .keepers += 1;
    }

    /// A sequence does not wait any more.
    pub(crate) fn release(&mut self, slot: HostSlot) {
        let entry = self.entries[slot as usize]
            .as_mut()
            .expect("a kept slot is in use");
        assert!(entry.keepers > 0, "only a kept slot is released");
        entry.keepers -= 1;
        self.vacate_if_withdrawn(slot);
    }

    /// Removes a block whose content turned out to be wrong.
    pub(crate) fn withdraw(&mut self, group: usize, hash: &BlockHash) {
        let Some(slot) = self.by_key.remove(&(group, *hash)) else {
            return;
        };
        if let Some(entry) = &mut self.entries[slot as usize] {
            entry.withdrawn = true;
        }
        self.vacate_if_withdrawn(slot);
    }

    /// After the device was lost: what was being copied from it is gone, and no upload is in flight.
    pub(crate) fn restart(&mut self) {
        for slot in 0..HostSlot::try_from(self.entries.len()).expect("slots are counted in u32") {
            let Some(entry) = &mut self.entries[slot as usize] else {
                continue;
            };
            entry.pins = 0;
            if entry.fill == Fill::Leaving {
                self.vacate(slot);
            } else {
                self.vacate_if_withdrawn(slot);
            }
        }
    }

    /// Whether the slot is in use; the bytes of others can be dropped.
    pub(crate) fn is_used(&self, slot: HostSlot) -> bool {
        self.entries.get(slot as usize).is_some_and(Option::is_some)
    }

    /// Asserts the invariants between two steps; `pinned` is the number of uploads in flight, `kept` that of slots
    /// that waiting sequences keep.
    pub(crate) fn check(&self, pinned: u32, kept: usize) {
        let used = || self.entries.iter().flatten();
        let bytes: u64 = used().map(|entry| self.block_bytes[entry.key.0]).sum();
        assert_eq!(bytes, self.bytes, "every block in host memory is counted");
        assert!(
            bytes <= self.bytes_max,
            "host memory stays within its limit"
        );
        assert_eq!(
            used().map(|entry| entry.pins).sum::<u32>(),
            pinned,
            "a slot is pinned while it is uploaded"
        );
        let keepers: u32 = used().map(|entry| entry.keepers).sum();
        assert_eq!(
            keepers as usize, kept,
            "a slot is kept for waiting sequences alone"
        );
        assert_eq!(
            used().count(),
            self.by_use.len(),
            "every slot in use has a place in the order"
        );
        assert_eq!(
            used().count() + self.vacant.len(),
            self.entries.len(),
            "a slot is vacant or in use"
        );
        let findable = used().filter(|entry| !entry.withdrawn).count();
        assert_eq!(findable, self.by_key.len(), "every hash has one slot");
        for (key, &slot) in &self.by_key {
            assert!(
                self.entries[slot as usize].is_some_and(|entry| entry.key == *key),
                "hash and slot name each other"
            );
        }
    }

    fn tick(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Vacates the least recently used slot that no copy in flight needs.
    fn evict(&mut self) -> Option<()> {
        let slot = *self.by_use.values().find(|slot| {
            let entry = self.entries[**slot as usize].as_ref();
            entry.is_some_and(|entry| entry.pins + entry.keepers == 0 && entry.fill == Fill::Held)
        })?;
        self.vacate(slot);
        Some(())
    }

    fn vacate_if_withdrawn(&mut self, slot: HostSlot) -> bool {
        let vacates = self.entries[slot as usize].is_some_and(|entry| {
            entry.withdrawn && entry.fill == Fill::Held && entry.pins + entry.keepers == 0
        });
        if vacates {
            self.vacate(slot);
        }
        vacates
    }

    fn vacate(&mut self, slot: HostSlot) {
        let entry = self.entries[slot as usize]
            .take()
            .expect("only a slot in use is vacated");
        if !entry.withdrawn {
            self.by_key.remove(&entry.key);
        }
        self.by_use.remove(&entry.last_use);
        self.bytes -= self.block_bytes[entry.key.0];
        self.vacant.push(slot);
    }
}

#[cfg(test)]
mod tests;
