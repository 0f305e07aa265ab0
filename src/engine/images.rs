//! The rows of images on the device: which are of which tile, and who uses them.
//!
//! A sequence takes the rows of all its tiles when it starts to run, and leaves them once the tokens that stand for
//! them are computed. A tile is computed when the first of these tokens is scheduled. Rows that nobody uses stay until
//! others need them, so that the next question about an image finds them; those unused longest go first. Writes are
//! ordered with steps on the device: what a step in flight reads is not replaced before it.

use super::request::Tile;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A tile whose rows are to be computed and written before the next step.
#[derive(Clone, Debug)]
pub(super) struct TileLoad {
    pub(super) tile: Tile,
    /// Where its rows belong.
    pub(super) rows: Arc<[u32]>,
}

/// What tells tiles apart.
type Key = ([u8; 32], u32);

fn key(tile: &Tile) -> Key {
    (tile.digest, tile.rows)
}

/// The rows that images may have.
#[derive(Debug)]
pub(super) struct ImagePool {
    total: u32,
    free: Vec<u32>,
    held: BTreeMap<Key, Held>,
    /// Number of times that a tile was left.
    clock: u64,
    /// Tiles to be computed before the next step.
    loads: Vec<TileLoad>,
}

#[derive(Debug)]
struct Held {
    rows: Arc<[u32]>,
    /// Tiles of running sequences that these are the rows of.
    users: u32,
    /// When they were left last.
    left: u64,
    is_written: bool,
}

impl ImagePool {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            free: (0..total).rev().collect(),
            held: BTreeMap::new(),
            clock: 0,
            loads: Vec::new(),
        }
    }

    /// Whether a sequence that needs these tiles may start to run.
    pub(super) fn has_room<'a>(&self, tiles: impl Iterator<Item = &'a Tile>) -> bool {
        let needed: BTreeSet<Key> = tiles.map(key).collect();
        let missing = needed.iter().filter(|key| !self.held.contains_key(key));
        let missing: usize = missing.map(|(_, rows)| *rows as usize).sum();
        let unused = self.held.iter();
        let unused = unused.filter(|(key, held)| held.users == 0 && !needed.contains(key));
        let unused: usize = unused.map(|(_, held)| held.rows.len()).sum();
        missing <= self.free.len() + unused
    }

    /// Gives a sequence that starts to run the rows of its tiles, for which there is room.
    pub(super) fn take<'a>(
        &mut self,
        tiles: impl Iterator<Item = &'a Tile> + Clone,
    ) -> Vec<Arc<[u32]>> {
        // Those that are there are kept before room is made for the others.
        let mut missing: BTreeMap<Key, u32> = BTreeMap::new();
        for tile in tiles.clone() {
            match self.held.get_mut(&key(tile)) {
                Some(held) => held.users += 1,
                None => *missing.entry(key(tile)).or_default() += 1,
            }
        }
        for (key, users) in missing {
            let held = Held {
                rows: self.allocate(key.1 as usize),
                users,
                left: 0,
                is_written: false,
            };
            self.held.insert(key, held);
        }
        tiles
            .map(|tile| self.held[&key(tile)].rows.clone())
            .collect()
    }

    fn allocate(&mut self, count: usize) -> Arc<[u32]> {
        while self.free.len() < count {
            let unused = self.held.iter().filter(|(_, held)| held.users == 0);
            let oldest = unused.min_by_key(|(_, held)| held.left);
            let oldest = *oldest
                .expect("a sequence runs only if there is room for its images")
                .0;
            let held = self.held.remove(&oldest).expect("it was just found");
            self.free.extend(held.rows.iter());
        }
        self.free.split_off(self.free.len() - count).into()
    }

    /// Takes the rows of a tile back from a sequence.
    pub(super) fn release(&mut self, tile: &Tile) {
        self.clock += 1;
        let held = self.held.get_mut(&key(tile));
        let held = held.expect("rows in use are held");
        held.users = held.users.checked_sub(1).expect("a tile is released once");
        held.left = self.clock;
    }

    /// Whether the rows of a tile in use are still to be computed.
    pub(super) fn is_unwritten(&self, tile: &Tile) -> bool {
        let held = self.held.get(&key(tile));
        !held.is_some_and(|held| held.is_written)
    }

    /// Has the rows of a tile in use computed before the next step, unless they are there.
    pub(super) fn write(&mut self, tile: &Tile) {
        let held = self.held.get_mut(&key(tile));
        let held = held.expect("rows in use are held");
        if !std::mem::replace(&mut held.is_written, true) {
            self.loads.push(TileLoad {
                tile: tile.clone(),
                rows: held.rows.clone(),
            });
        }
    }

    /// The tiles to be computed before the next step.
    pub(super) fn take_loads(&mut self) -> Vec<TileLoad> {
        std::mem::take(&mut self.loads)
    }

    /// The rows of these tiles were not written.
    pub(super) fn drop_loads(&mut self, loads: &[TileLoad]) {
        for load in loads {
            if let Some(held) = self.held.get_mut(&key(&load.tile)) {
                held.is_written = false;
            }
        }
    }

    /// All rows are lost, and no sequence runs.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.total);
    }

    /// Asserts that the running sequences use these tiles, and that every row is free or of one tile.
    pub(super) fn check<'a>(&self, used: impl Iterator<Item = &'a Tile>) {
        let mut users: BTreeMap<Key, u32> = BTreeMap::new();
        used.for_each(|tile| *users.entry(key(tile)).or_default() += 1);
        for (key, held) in &self.held {
            let counted = users.remove(key).unwrap_or(0);
            assert_eq!(held.users, counted, "every user of a tile is counted");
        }
        assert!(users.is_empty(), "a tile in use has rows");
        let held = self.held.values().flat_map(|held| held.rows.iter());
        let mut rows: Vec<u32> = self.free.iter().chain(held).copied().collect();
        rows.sort_unstable();
        assert!(
            rows.into_iter().eq(0..self.total),
            "every row is free or of one tile"
        );
    }
}

#[cfg(test)]
mod tests;
