//! Cache of compiled grammars, keyed by their source and limited in bytes; the least recently used is evicted first.

use super::Grammar;
use std::collections::HashMap;

/// Estimated bytes of a compiled grammar, in addition to those that its lexer reports.
const ENTRY_BYTES: usize = 64 << 10;

pub(super) struct Cache {
    entries: HashMap<String, Entry>,
    bytes_max: usize,
    bytes: usize,
    /// Logical time; grows with every use.
    clock: u64,
}

struct Entry {
    grammar: Grammar,
    bytes: usize,
    used: u64,
}

impl Cache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            entries: HashMap::new(),
            bytes_max,
            bytes: 0,
            clock: 0,
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Grammar> {
        self.entries.get(key).map(|entry| entry.grammar.clone())
    }

    /// Inserts a grammar, or updates its time of use and its size.
    pub(super) fn put(&mut self, key: String, grammar: Grammar, lexer_bytes: usize) {
        self.clock += 1;
        // The size of the grammar's rules is estimated as a multiple of its text.
        let bytes = ENTRY_BYTES + lexer_bytes + 32 * key.len();
        self.bytes += bytes;
        if let Some(old) = self.entries.insert(
            key,
            Entry {
                grammar,
                bytes,
                used: self.clock,
            },
        ) {
            self.bytes -= old.bytes;
        }
        while self.bytes > self.bytes_max {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |entry| entry.bytes);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
