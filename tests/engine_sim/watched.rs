//! The fake device under observation: no step in flight may use what is free.

use folio::backend::fake::{self, FakeBackend};
use folio::backend::{Backend, BackendError, BlockRef, Capacity, Caps, GivenTimes};
use folio::engine::scheduler::Scheduler;
use folio::plan::inputs::{BatchInputs, FEED, NONE, Results};
use folio::plan::{Plan, WeightId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The fake device, with a record of the blocks, feed slots and state slots that its steps in flight use, and of how
/// much it computed.
pub(crate) struct Watched {
    pub(crate) device: FakeBackend,
    in_flight: VecDeque<Named>,
    /// Blocks and states that are uploaded before the next step.
    arriving: BTreeSet<(usize, u32)>,
    /// Blocks that the rows of the predictor use which follow the last step: they run before the next one.
    followed: BTreeSet<(usize, u32)>,
    has_predictor: bool,
    pub(crate) computed: u64,
}

#[derive(Default)]
struct Named {
    blocks: BTreeSet<(usize, u32)>,
    feed_slots: BTreeSet<u32>,
    state_slots: BTreeSet<u32>,
}

impl Watched {
    pub(crate) fn new(device: FakeBackend) -> Self {
        Self {
            device,
            in_flight: VecDeque::new(),
            arriving: BTreeSet::new(),
            followed: BTreeSet::new(),
            has_predictor: false,
            computed: 0,
        }
    }
}

impl Backend for Watched {
    type Ticket = fake::Ticket;
    type Saves = fake::Saves;

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.has_predictor = plan.predictor.is_some();
        self.device.load(plan, capacity)
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: bytes::Bytes,
    ) -> Result<(), BackendError> {
        self.device.write_weight(weight, first_row, rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.device.allocate_pool(blocks)
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<fake::Ticket, BackendError> {
        let arriving = std::mem::take(&mut self.arriving);
        let (states, blocks) = arriving
            .into_iter()
            .partition(|&(group, _)| group == inputs.groups.len());
        let mut named = Named {
            blocks,
            ..Named::default()
        };
        let states: BTreeSet<(usize, u32)> = states;
        named
            .state_slots
            .extend(states.into_iter().map(|(_, slot)| slot));
        let ticket = self.device.submit(inputs)?;
        for (group, arrays) in inputs.groups.iter().enumerate() {
            let copies = arrays
                .copies
                .iter()
                .flat_map(|&(source, target)| [source, target]);
            let blocks = arrays
                .block_tables
                .iter()
                .copied()
                .chain(copies)
                .filter(|&block| block != NONE);
            named.blocks.extend(blocks.map(|block| (group, block)));
        }
        self.followed.clear();
        if self.has_predictor && inputs.carried.is_empty() {
            self.followed.clone_from(&named.blocks);
        }
        let fed = inputs
            .token_ids
            .iter()
            .filter(|&&id| id & FEED != 0)
            .map(|&id| id & !FEED);
        let slots = fed.chain(inputs.samples.iter().map(|sample| sample.feed_slot));
        named.feed_slots.extend(slots.filter(|&slot| slot != NONE));
        let states = inputs
            .states
            .iter()
            .flat_map(|states| [states.from, states.to]);
        named
            .state_slots
            .extend(states.filter(|&slot| slot != NONE));
        self.in_flight.push_back(named);
        self.computed += inputs.token_ids.len() as u64;
        Ok(ticket)
    }

    async fn read(&mut self, ticket: fake::Ticket) -> Result<Results, BackendError> {
        self.in_flight.pop_front();
        self.device.read(ticket).await
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<fake::Saves, BackendError> {
        self.device.save_blocks(blocks)
    }

    async fn saved_blocks(
        &mut self,
        saves: fake::Saves,
    ) -> Result<Vec<bytes::Bytes>, BackendError> {
        self.device.saved_blocks(saves).await
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, bytes::Bytes)]) -> Result<(), BackendError> {
        self.arriving
            .extend(blocks.iter().map(|(block, _)| (block.group, block.block)));
        self.device.restore_blocks(blocks)
    }

    fn given_times(&self) -> Option<GivenTimes> {
        self.device.given_times()
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.in_flight.clear();
        self.arriving.clear();
        self.followed.clear();
        self.device.reset().await
    }
}

/// Checks that no step in flight uses a free block or state. Those that are not cached may be overwritten at any time.
pub(crate) fn watch(scheduler: &Scheduler, device: &mut Watched) {
    let slots: BTreeSet<_> = device
        .in_flight
        .iter()
        .flat_map(|named| named.feed_slots.iter().copied())
        .collect();
    let handed_on = scheduler
        .feed_slots_free()
        .iter()
        .find(|slot| slots.contains(slot));
    assert_eq!(
        handed_on, None,
        "a feed slot is free while a step in flight uses it"
    );
    let states = scheduler.states();
    for slot in (0..states.total()).filter(|&slot| states.is_free(slot)) {
        let named = device
            .in_flight
            .iter()
            .any(|named| named.state_slots.contains(&slot));
        assert!(
            !named,
            "state slot {slot} is free while a step in flight uses it"
        );
        if !states.is_cached(slot) {
            device.device.poison_state(slot);
        }
    }
    for (index, group) in scheduler.pool().groups().iter().enumerate() {
        for block in (0..group.total()).filter(|&block| group.is_free(block)) {
            let named = device
                .in_flight
                .iter()
                .any(|named| named.blocks.contains(&(index, block)));
            assert!(
                !named,
                "block {block} of group {index} is free while a step in flight uses it"
            );
            if !group.is_cached(block) && !device.followed.contains(&(index, block)) {
                device.device.poison(index, block);
            }
        }
    }
}
