//! Memory alone: every short history of a few sequences in a small pool, on a device that knows what each block holds.

use super::*;
use crate::plan::inputs::{NONE, StateRows};
use std::collections::HashMap;

const KEY: [u8; 32] = [3; 32];
const BLOCK_SIZE: u32 = 2;
/// The same beginning, and another one.
const PROMPTS: [&[u32]; 3] = [&[1, 1, 1, 1, 1], &[1, 1, 1, 1, 2], &[2, 2, 2]];
/// Tokens of a sequence at most.
const TOKENS_MAX: usize = 8;

/// What happens to the sequences.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A sequence with this prompt is admitted, if it fits, and computes it.
    Admit(usize),
    /// A sequence computes one more token.
    Extend(usize),
    /// A sequence forks.
    Fork(usize),
    /// A sequence leaves.
    Release(usize),
    /// A sequence's content turns out to be wrong, and it leaves.
    Withdraw(usize),
}

const ACTS: [Act; 9] = [
    Act::Admit(0),
    Act::Admit(1),
    Act::Admit(2),
    Act::Extend(0),
    Act::Extend(1),
    Act::Fork(0),
    Act::Release(0),
    Act::Release(1),
    Act::Withdraw(0),
];

/// The tokens up to and including the one in a slot, as the device computed it; or those that a state is after.
type Content = Vec<u32>;

#[derive(Clone)]
struct Live {
    id: SequenceId,
    holding: Holding,
    tokens: Vec<u32>,
}

/// Memory, and a device and a host that do what it says.
#[derive(Clone)]
struct World {
    memory: Memory,
    live: Vec<Live>,
    started: u32,
    /// By group and block: the content of each of its slots, or of a state.
    device: HashMap<(usize, BlockId), Vec<Content>>,
    host: HashMap<HostSlot, Vec<Content>>,
    hits: u32,
    restored: u32,
}

impl World {
    fn new(limits: MemoryLimits) -> Self {
        let demand = Demand {
            step_tokens_max: 8,
            max_num_seqs: 2,
            max_model_len: 16,
            sharing_unit: limits.block_size,
        };
        Self {
            memory: Memory::new(limits, demand),
            live: Vec::new(),
            started: 0,
            device: HashMap::new(),
            host: HashMap::new(),
            hits: 0,
            restored: 0,
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Admit(prompt) => self.admit(PROMPTS[prompt]),
            Act::Extend(at) if self.can_grow(at) => {
                self.live[at].tokens.push(1);
                self.compute(at);
            }
            Act::Fork(at) if at < self.live.len() => self.fork(at),
            Act::Release(at) if at < self.live.len() => {
                let mut live = self.live.remove(at);
                self.memory
                    .release(live.id, &mut live.holding, &live.tokens);
            }
            Act::Withdraw(at) if at < self.live.len() => {
                self.memory.withdraw_everywhere(&mut self.live[at].holding);
                self.act(Act::Release(at));
            }
            _ => {}
        }
        self.check();
    }

    fn can_grow(&self, at: usize) -> bool {
        let live = self.live.get(at);
        live.is_some_and(|live| live.tokens.len() < TOKENS_MAX)
    }

    fn next_id(&mut self) -> SequenceId {
        self.started += 1;
        SequenceId(self.started)
    }

    fn admit(&mut self, prompt: &[u32]) {
        let claim = Claim {
            adapter: None,
            tiles: &[],
            salt: None,
            owner: None,
            prompt_len: prompt.len() as u32,
            shareable: u32::MAX,
            takes_snapshots: true,
        };
        if self.live.len() == 2 || !self.memory.has_state_slots(1) {
            return;
        }
        let tokens = prompt.to_vec();
        let mut holding = self.memory.holding(&claim);
        let known = prompt.len() as u32;
        let matched = self.memory.match_prefix(&mut holding, &tokens, known - 1);
        let others = vec![0; self.memory.kv_groups()];
        let room = self
            .memory
            .room(&holding, matched, known + 1, &others, None);
        if room.is_none() {
            return;
        }
        let admission = Admission {
            matched,
            known,
            reserved: None,
        };
        let id = self.next_id();
        let mut moves = self.moves();
        self.memory
            .take_prefix(id, &mut holding, &admission, &mut moves);
        self.hits += matched;
        self.restored += moves.restores.len() as u32;
        self.run(&moves);
        self.memory.land_moves(&moves, false);
        self.live.push(Live {
            id,
            holding,
            tokens,
        });
        self.compute(self.live.len() - 1);
    }

    fn fork(&mut self, at: usize) {
        if self.live.len() == 2 {
            return;
        }
        let id = self.next_id();
        let parent = &self.live[at];
        let holding = self.memory.fork(&parent.holding);
        let tokens = parent.tokens.clone();
        self.live.push(Live {
            id,
            holding,
            tokens,
        });
    }

    fn moves(&self) -> Moves {
        Moves::new(self.memory.kv_groups())
    }

    /// Computes the missing tokens of a sequence, as far as they fit, a step for each chunk.
    fn compute(&mut self, at: usize) {
        loop {
            let mut live = self.live[at].clone();
            let missing = live.tokens.len() as u32 - live.holding.computed;
            let fits = self.memory.tokens_that_fit(&live.holding);
            let chunk = self.memory.tokens_to_snapshot(&live.holding);
            let count = missing.min(fits).min(chunk);
            let mut moves = self.moves();
            if count == 0 || !self.memory.has_state_for(&mut live.holding, &moves) {
                self.live[at] = live;
                return;
            }
            let states = self
                .memory
                .take_state(&mut live.holding, &mut Vec::new(), &mut moves);
            self.memory.extend(&mut live.holding, count, &mut moves);
            let start = live.holding.computed;
            live.holding.computed += count;
            self.memory
                .register_full_blocks(&mut live.holding, &live.tokens);
            self.memory
                .keep_state(&mut live.holding, self.live.len(), false);
            let known = live.tokens.len() as u32;
            self.memory.register_snapshot(&mut live.holding, known);
            self.run(&moves);
            self.write(&live, start, states);
            self.memory.land_moves(&moves, false);
            self.memory.land_states(states.into_iter());
            self.live[at] = live;
        }
    }

    /// Copies what a step moves.
    fn run(&mut self, moves: &Moves) {
        for save in &moves.saves {
            let content = self.device[&(save.group, save.block)].clone();
            self.host.extend(save.slot.map(|slot| (slot, content)));
        }
        for restore in &moves.restores {
            let content = self.host[&restore.slot].clone();
            self.device.insert((restore.group, restore.block), content);
        }
        for (group, copies) in moves.copies.iter().enumerate() {
            for (source, target) in copies {
                let content = self.device[&(group, *source)].clone();
                self.device.insert((group, *target), content);
            }
        }
    }

    /// Writes the keys, values and the state of the tokens from `start` on.
    fn write(&mut self, live: &Live, start: u32, states: Option<StateRows>) {
        let holding = &live.holding;
        for (group, table) in holding.tables.iter().enumerate() {
            for position in start..holding.computed {
                let block = table.blocks[(position / BLOCK_SIZE) as usize];
                let slots = self.device.entry((group, block)).or_default();
                slots.resize(BLOCK_SIZE as usize, Content::new());
                slots[(position % BLOCK_SIZE) as usize] =
                    live.tokens[..=position as usize].to_vec();
            }
        }
        let group = holding.tables.len();
        if let Some(StateRows { from, to }) = states {
            let read = self
                .device
                .get(&(group, from))
                .map_or(&[][..], |held| &held[0]);
            let read = if from == NONE { &[] } else { read };
            assert_eq!(
                read,
                &live.tokens[..start as usize],
                "a row goes on from its state"
            );
            let after = live.tokens[..holding.computed as usize].to_vec();
            self.device.insert((group, to), vec![after]);
        }
    }

    /// Asserts that every sequence finds what it computed, or what another one computed for the same tokens.
    fn check(&self) {
        self.memory
            .check(self.live.iter().map(|live| &live.holding), true);
        for Live {
            holding, tokens, ..
        } in &self.live
        {
            for (group, table) in holding.tables.iter().enumerate() {
                for position in table.passed * BLOCK_SIZE..holding.computed {
                    let block = table.blocks[(position / BLOCK_SIZE) as usize];
                    let slot = (position % BLOCK_SIZE) as usize;
                    let content = &self.device[&(group, block)][slot];
                    assert_eq!(
                        content,
                        &tokens[..=position as usize],
                        "position {position} of group {group} holds what was computed there"
                    );
                }
            }
        }
    }
}

/// Every history of at most `length` more acts. Returns the numbers of hits and restored blocks.
fn histories(world: &World, length: u32, done: &mut Vec<Act>) -> (u32, u32) {
    if length == 0 {
        return (world.hits, world.restored);
    }
    let mut sums = (0, 0);
    for act in ACTS {
        let mut next = world.clone();
        done.push(act);
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| next.act(act)));
        assert!(acted.is_ok(), "after {done:?}");
        let (hits, restored) = histories(&next, length - 1, done);
        sums = (sums.0 + hits, sums.1 + restored);
        done.pop();
    }
    sums
}

fn limits(
    windows: &[Option<Window>],
    blocks: u32,
    state_slots: u32,
    host_blocks: u64,
) -> MemoryLimits {
    let block_bytes = vec![1; windows.len() + 1];
    MemoryLimits {
        block_size: BLOCK_SIZE,
        windows: windows.to_vec(),
        blocks: vec![blocks; windows.len()],
        state_slots,
        prefix_caching: true,
        hash_key: KEY,
        shared_key: KEY,
        tiers: TierLimits {
            host_bytes: host_blocks,
            block_bytes,
            disk: DiskUse::Off,
        },
    }
}

#[test]
fn every_short_history_in_a_small_pool_keeps_what_each_sequence_computed() {
    let (hits, restored) = histories(&World::new(limits(&[None], 5, 0, 0)), 5, &mut Vec::new());
    assert!(
        hits > 1000 && restored == 0,
        "{hits} hits, {restored} restored"
    );
}

#[test]
fn every_short_history_with_a_window_keeps_what_each_sequence_attends_to() {
    for window in [Window::Last(3), Window::Chunk(3)] {
        let windows = [None, Some(window)];
        let (hits, _) = histories(&World::new(limits(&windows, 6, 0, 0)), 5, &mut Vec::new());
        assert!(hits > 1000, "{hits} hits with {window:?}");
    }
}

#[test]
fn every_short_history_with_host_memory_restores_what_was_evicted() {
    let (hits, restored) = histories(&World::new(limits(&[None], 3, 0, 3)), 5, &mut Vec::new());
    assert!(
        hits > 1000 && restored > 0,
        "{hits} hits, {restored} restored"
    );
}

#[test]
fn every_short_history_with_states_goes_on_from_the_right_one() {
    let (hits, restored) = histories(&World::new(limits(&[None], 3, 4, 6)), 5, &mut Vec::new());
    assert!(
        hits > 1000 && restored > 0,
        "{hits} hits, {restored} restored"
    );
}
