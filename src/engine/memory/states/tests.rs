//! Where snapshots are taken, and what a sequence gives up for a slot.

use super::*;
use crate::engine::memory::SequenceId;
use crate::engine::memory::admission::{Admission, Found};
use crate::engine::memory::holding::HeldStates;
use crate::engine::memory::host::Fill;
use crate::engine::memory::moves::Restore;
use crate::engine::memory::search::Reach;
use crate::engine::memory::{Claim, Demand, DiskUse, MemoryLimits, Rates, Spoilt, TierLimits};
use std::time::Duration;

/// With its type, which comparisons do not infer.
const EMPTY: [u32; 0] = [];
const RUNNING_MAX: u32 = 4;
const KEY: [u8; 32] = [3; 32];

/// Memory with blocks of 4 tokens, and 4 slots beside those of running sequences.
fn stateful(change: impl FnOnce(&mut MemoryLimits)) -> Memory {
    let mut limits = MemoryLimits {
        block_size: 4,
        windows: vec![None],
        blocks: vec![2000],
        state_slots: 2 * RUNNING_MAX,
        prefix_caching: true,
        hash_key: KEY,
        shared_key: KEY,
        tiers: TierLimits::default(),
    };
    change(&mut limits);
    let demand = Demand {
        step_tokens_max: 64,
        max_num_seqs: RUNNING_MAX,
        max_model_len: 4000,
        sharing_unit: limits.block_size,
    };
    Memory::new(limits, demand)
}

/// The same, where prompts share only whole chunks of 16 tokens.
fn chunked() -> Memory {
    let mut memory = stateful(|_| ());
    memory.demand.sharing_unit = 16;
    memory
}

fn prompt(memory: &Memory, prompt_len: u32) -> Holding {
    let unit = memory.demand.sharing_unit;
    let is_chunked = unit > memory.limits.block_size;
    let whole = prompt_len / unit * unit;
    memory.holding(&Claim {
        adapter: None,
        tiles: &[],
        salt: None,
        owner: None,
        prompt_len,
        shareable: if is_chunked { whole } else { u32::MAX },
        takes_snapshots: true,
    })
}

/// Where snapshots of a prompt are wanted once so many of its tokens are computed.
fn places(memory: &Memory, prompt_len: u32, computed: u32) -> Vec<u32> {
    let mut holding = prompt(memory, prompt_len);
    holding.computed = computed;
    let places = memory.snapshot_places(&holding);
    let next = places.iter().filter(|&&place| place > computed).min();
    let ahead = next.map_or(u32::MAX, |next| next - computed);
    assert_eq!(
        memory.tokens_to_snapshot(&holding),
        ahead,
        "chunks end at snapshots"
    );
    places
}

/// A chain of hashes of blocks of equal tokens.
fn chain(blocks: usize) -> Vec<BlockHash> {
    let next = |hash: &BlockHash| Some(hash.next(&KEY, &[1; 4]));
    std::iter::successors(next(&BlockHash::root(&KEY, None, None, None)), next)
        .take(blocks)
        .collect()
}

fn slot(memory: &mut Memory) -> u32 {
    memory.states.allocate().expect("one is free").0
}

#[test]
fn snapshots_of_a_prompt_are_at_every_quarter_or_32_blocks_and_at_its_last_whole_block() {
    let memory = &stateful(|_| ());
    assert_eq!(
        places(memory, 4, 0),
        EMPTY,
        "the last token is always computed"
    );
    assert_eq!(places(memory, 5, 0), [4]);
    assert_eq!(places(memory, 128, 0), [124]);
    assert_eq!(places(memory, 190, 0), [128], "32 blocks");
    assert_eq!(places(memory, 190, 128), [128, 188]);
    // A quarter of 1000 tokens, in whole blocks, is 252.
    let long = [0, 251, 252, 300, 900, 996].map(|computed| places(memory, 1000, computed));
    let expected: [&[u32]; 6] = [
        &[252],
        &[252],
        &[252, 504],
        &[252, 504],
        &[756, 996],
        &[756, 996],
    ];
    assert_eq!(long, expected);
    let mut holding = prompt(memory, 190);
    holding.states.branch = 40;
    assert_eq!(
        memory.snapshot_places(&holding),
        [128, 40],
        "where it differs from others"
    );
    holding.takes_snapshots = false;
    assert_eq!(
        memory.snapshot_places(&holding),
        EMPTY,
        "nobody goes on from an embedding"
    );
}

#[test]
fn snapshots_with_fixed_chunks_are_at_the_ends_of_chunks() {
    let memory = &chunked();
    assert_eq!(places(memory, 16, 0), EMPTY);
    assert_eq!(places(memory, 17, 0), [16]);
    assert_eq!(places(memory, 1000, 0), [256]);
    assert_eq!(places(memory, 1000, 800), [768, 992]);
}

#[test]
fn snapshots_need_slots_beside_those_of_running_sequences() {
    assert_eq!(stateful(|_| ()).snapshots_max(), 4);
    for change in [
        |limits: &mut MemoryLimits| limits.state_slots = RUNNING_MAX,
        |limits: &mut MemoryLimits| limits.prefix_caching = false,
    ] {
        let memory = stateful(change);
        assert_eq!(memory.snapshots_max(), 0);
        assert_eq!(places(&memory, 190, 0), EMPTY);
        let mut holding = prompt(&memory, 190);
        holding.computed = 188;
        assert!(!memory.wants_snapshot(&holding, true));
    }
}

#[test]
fn a_snapshot_is_taken_after_whole_blocks_and_in_answers_only_while_few_sequences_run() {
    let mut memory = stateful(|limits| limits.state_slots = 10);
    let hashes = chain(4);
    let keeps = |memory: &mut Memory, running: usize, computed: u32, is_beam: bool| {
        let mut holding = prompt(memory, 10);
        holding.states.live = slot(memory);
        holding.computed = computed;
        holding.hashes = hashes.clone();
        memory.keep_state(&mut holding, running, is_beam);
        let keeps = holding.states.kept.is_some();
        holding
            .states
            .held()
            .for_each(|slot| memory.states.release(slot));
        keeps
    };
    assert_eq!(
        [0, 4, 7, 8, 9].map(|computed| keeps(&mut memory, 1, computed, false)),
        [false, false, false, true, false],
        "of the prompt"
    );
    assert_eq!(
        [11, 12, 16].map(|computed| keeps(&mut memory, 3, computed, false)),
        [false, true, true],
        "of the answer"
    );
    assert_eq!(
        [8, 12, 16].map(|computed| keeps(&mut memory, 4, computed, false)),
        [true, false, false],
        "two slots for each"
    );
    assert_eq!(
        [8, 12].map(|computed| keeps(&mut memory, 1, computed, true)),
        [true, false],
        "nobody goes on from a beam, most of which are dropped"
    );
    let cached = slot(&mut memory);
    memory.states.register(cached, hashes[1]);
    assert!(!keeps(&mut memory, 1, 8, false), "there is one");
}

#[test]
fn so_many_sequences_can_have_slots_as_are_free() {
    let mut memory = stateful(|limits| limits.state_slots = 3);
    slot(&mut memory);
    assert_eq!(
        [2, 3].map(|count| memory.has_state_slots(count)),
        [true, false]
    );
    assert!(
        stateful(|limits| limits.state_slots = 0).has_state_slots(3),
        "the model keeps no states"
    );
}

#[test]
fn a_state_is_overwritten_only_if_nobody_else_needs_it() {
    let mut memory = stateful(|_| ());
    let mut holding = prompt(&memory, 10);
    let mut moves = Moves::new(1);
    assert!(!memory.is_own_state(&holding, &moves), "it has none");
    let live = slot(&mut memory);
    holding.states.live = live;
    assert!(memory.is_own_state(&holding, &moves));
    memory.states.share(live);
    assert!(
        !memory.is_own_state(&holding, &moves),
        "a fork goes on from it"
    );
    memory.states.release(live);
    memory.states.register(live, chain(1)[0]);
    assert!(!memory.is_own_state(&holding, &moves), "it is a snapshot");
    memory.states.withdraw(live);
    moves.states_read.push(live);
    assert!(
        !memory.is_own_state(&holding, &moves),
        "a row of the step reads it"
    );
}

/// Two slots: one that so many sequences hold as their state, and another one.
fn full(holders: u32) -> (Memory, Holding, [u32; 2]) {
    let mut memory = stateful(|limits| limits.state_slots = 2);
    let mut holding = prompt(&memory, 10);
    let [live, other] = [(); 2].map(|()| slot(&mut memory));
    (1..holders).for_each(|_| memory.states.share(live));
    holding.states.live = live;
    assert_eq!(memory.states.free(), 0);
    (memory, holding, [live, other])
}

#[test]
fn without_a_free_slot_a_sequence_gives_up_its_snapshots() {
    let moves = Moves::new(1);
    let (mut memory, mut holding, _) = full(1);
    assert!(
        memory.has_state_for(&mut holding, &moves),
        "it overwrites its own state"
    );
    holding.states.live = NONE;
    assert!(
        !memory.has_state_for(&mut holding, &moves),
        "it has none to give up"
    );
    let (mut memory, mut holding, _) = full(2);
    assert!(
        !memory.has_state_for(&mut holding, &moves),
        "another sequence holds it too"
    );
    let (mut memory, mut holding, [live, _]) = full(1);
    memory.states.register(live, chain(1)[0]);
    assert!(
        memory.has_state_for(&mut holding, &moves),
        "its state is a snapshot no more"
    );
    let (mut memory, mut holding, [_, other]) = full(2);
    holding.states.kept = Some((4, other));
    assert!(
        memory.has_state_for(&mut holding, &moves),
        "what it keeps becomes no snapshot"
    );
}

#[test]
fn a_slot_is_complete_once_the_step_that_writes_it_has_run() {
    let mut memory = stateful(|_| ());
    let group = memory.state_group();
    let mut holding = prompt(&memory, 10);
    let states = memory.take_state(&mut holding, &mut Vec::new(), &mut Moves::new(1));
    let live = holding.states.live;
    assert!(!memory.is_complete(group, live) && memory.is_complete(group, live + 1));
    memory.land_states(states.into_iter());
    assert!(memory.is_complete(group, live));
}

#[test]
fn a_slot_that_a_row_reads_is_kept_until_it_has_run() {
    let mut memory = stateful(|_| ());
    let mut holding = prompt(&memory, 10);
    let live = slot(&mut memory);
    holding.states.live = live;
    holding.computed = 4;
    memory.states.register(live, chain(1)[0]);
    let states = memory.take_state(&mut holding, &mut Vec::new(), &mut Moves::new(1));
    assert_ne!(holding.states.live, live, "it is a snapshot");
    assert!(!memory.states.is_free(live));
    memory.land_states(states.into_iter());
    assert!(memory.states.is_free(live));
}

#[test]
fn a_snapshot_far_away_is_worth_what_it_spares_beyond_the_nearest() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![100, 1000],
        disk: DiskUse::Off,
    };
    let chain = chain(8);
    let longest = |far: &[usize], tokens_worth: u64| {
        let mut memory = stateful(|limits| limits.tiers = tiers.clone());
        memory.demand.sharing_unit = 8;
        let near = slot(&mut memory);
        memory.states.register(near, chain[1]);
        for &index in far {
            let slot = memory.host.reserve(1, chain[index], Fill::Leaving);
            memory.host.complete(slot.expect("there is room"));
        }
        // A snapshot of 1000 bytes is worth moving if it spares so many tokens.
        let byte = Duration::from_nanos(tokens_worth);
        memory.set_rates(Rates::given(byte, Duration::from_micros(1)));
        memory.blocks_to_snapshot(Reach::Host, &chain[..7])
    };
    // Units are two blocks of four tokens; the chain has three, and a snapshot after the first.
    assert_eq!(longest(&[5], 15), 6);
    assert_eq!(longest(&[5], 17), 2, "it spares 16 tokens");
    assert_eq!(longest(&[3], 7), 4);
    assert_eq!(longest(&[3], 9), 2, "it spares 8 tokens");
    assert_eq!(longest(&[4], 1), 2, "no whole unit ends there");
    assert_eq!(longest(&[], 1), 2, "the one on the device");
    let stateless = stateful(|limits| limits.state_slots = 0);
    assert_eq!(stateless.blocks_to_snapshot(Reach::Host, &chain[..7]), 7);
}

/// Up to where the blocks of a prompt are cached, if its first blocks are.
fn branch(memory: &mut Memory, prompt_len: u32, hashed: usize, cached: usize) -> u32 {
    let mut holding = prompt(memory, prompt_len);
    for &hash in &chain(cached) {
        let (block, _) = memory.pool.group_mut(0).allocate().expect("one is free");
        memory.pool.group_mut(0).register(block, hash);
    }
    holding.hashes = chain(hashed);
    let admission = Admission {
        matched: 0,
        known: prompt_len,
        reserved: None,
    };
    let mut moves = Moves::new(1);
    memory.take_snapshot(SequenceId(0), &mut holding, &admission, None, &mut moves);
    holding.branch()
}

#[test]
fn a_prompt_that_differs_from_what_is_cached_gets_a_snapshot_there() {
    assert_eq!(branch(&mut stateful(|_| ()), 33, 8, 5), 20);
    assert_eq!(branch(&mut stateful(|_| ()), 33, 8, 0), 0);
    assert_eq!(
        branch(&mut stateful(|_| ()), 8, 2, 2),
        4,
        "the last token is computed in any case"
    );
    assert_eq!(branch(&mut stateful(|_| ()), 9, 2, 2), 8);
    assert_eq!(branch(&mut chunked(), 49, 12, 7), 16, "a whole fixed chunk");
}

#[test]
fn the_state_after_drafts_is_kept_if_all_are_accepted() {
    for all in [true, false] {
        let mut memory = stateful(|_| ());
        let [before, live] = [(); 2].map(|()| slot(&mut memory));
        let mut holding = prompt(&memory, 12);
        holding.states = HeldStates {
            live,
            before,
            ..HeldStates::default()
        };
        holding.computed = 11;
        assert_eq!(memory.settle_drafts(&mut holding, 8, all), all);
        assert_eq!(
            (holding.states.live, holding.computed),
            if all { (live, 11) } else { (before, 8) }
        );
        assert_eq!(memory.states.free(), 7, "the other one is free");
        assert!(
            !memory.settle_drafts(&mut holding, 8, true),
            "there are none"
        );
    }
}

#[test]
fn states_of_a_failed_step_are_found_no_more_and_neither_is_what_goes_on_from_them() {
    let mut memory = stateful(|_| ());
    let slots = [(); 5].map(|()| slot(&mut memory));
    let [live, kept, written, restored, foreign] = slots;
    for (&slot, hash) in slots.iter().zip(chain(5)) {
        memory.states.register(slot, hash);
    }
    let mut holding = prompt(&memory, 12);
    holding.states = HeldStates {
        live,
        kept: Some((4, kept)),
        ..HeldStates::default()
    };
    let mut moves = Moves::new(1);
    moves.restores = [(1, restored), (0, foreign)]
        .map(|(group, block)| Restore {
            sequence: SequenceId(0),
            group,
            block,
            slot: 0,
        })
        .to_vec();
    let states = Some(StateRows {
        from: foreign,
        to: written,
    });
    let mut spoilt = Spoilt::default();
    memory.withdraw_restored(&moves, &mut spoilt);
    memory.withdraw_row(&mut holding, 4, states, &mut spoilt);
    let goes_on_from = |state: u32| {
        let mut other = prompt(&memory, 12);
        other.states.live = state;
        spoilt.concerns(&other, false)
    };
    assert_eq!(
        slots.map(goes_on_from),
        [true, false, true, true, false],
        "its state, and what the step wrote and restored"
    );
    assert_eq!(
        slots.map(|slot| memory.states.is_cached(slot)),
        [false, true, false, false, true]
    );
    assert_eq!(
        holding.states.kept, None,
        "what it keeps becomes no snapshot"
    );
    assert!(memory.states.is_free(kept));
    let mut reader = prompt(&memory, 12);
    reader.states.read = live;
    assert!(!spoilt.concerns(&reader, false), "its row has run");
    assert!(spoilt.concerns(&reader, true), "its row is in flight");
}

#[test]
fn the_state_after_a_chain_is_found_on_the_device_or_in_host_memory() {
    let mut memory = stateful(|limits| {
        limits.tiers.host_bytes = 1 << 20;
        limits.tiers.block_bytes = vec![1 << 10; 2];
    });
    let chain = chain(3);
    let slots = [0, 1, 2].map(|index| {
        let slot = memory.host.reserve(1, chain[index], Fill::Leaving);
        let slot = slot.expect("there is room");
        memory.host.complete(slot);
        slot
    });
    let found = memory.keep_snapshot(&chain);
    assert!(matches!(found, Some(Found::Host(slot)) if slot == slots[2]));
    let near = slot(&mut memory);
    memory.states.register(near, chain[2]);
    let found = memory.keep_snapshot(&chain);
    assert!(matches!(found, Some(Found::Device(slot)) if slot == near));
    assert_eq!(memory.states.references(near), 2);
}

#[test]
fn a_block_spares_its_own_tokens_and_a_snapshot_those_of_a_whole_sequence() {
    let memory = stateful(|_| ());
    let spared = [0, memory.state_group()].map(|group| memory.spared_max(group));
    assert_eq!(spared, [4, 4000]);
}
