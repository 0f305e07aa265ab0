//! A fake device without arithmetic, for the engine simulator and for `--device fake[:script]` in the real server.
//!
//! Where a real device stores keys and values, it stores the *state* of each row: a hash of the row's token and of all
//! states that the row reads *through the block table*. So a wrong, stale or mistakenly shared block changes the states
//! of all later rows, near or far, as attention does in every layer. If the model keeps a state per sequence, it is a
//! hash of all its rows, which each row also reads ([`states`]). The sampled token is a hash of the states that its row
//! reads; the expected token is the same hash over a plain list of tokens ([`PlainHistory`], [`next_token`]). The hash
//! includes penalties and bias; logprobs are a hash of history and token ([`likely`]). Feed slots are read when the
//! batch runs, and a batch runs at a random moment between its submission and its read. A batch that fails when it runs
//! destroys the blocks that it should have filled. Copies of blocks to and from host memory wait in the same queue as
//! batches.
//! A [`Script`] lists the faults to inject. It may also give the device the speed of a GPU, on a simulated clock with a
//! watchdog ([`clock`]).

mod checks;
mod clock;
mod draws;
mod images;
mod plain;
mod predictor;
mod script;
mod slots;
mod states;
mod tokens;

pub use plain::PlainHistory;
pub use script::{Say, Script};
pub use tokens::{continuations, hidden, likely, mix, next_token, scored_rank};

use super::layout::{Layout, PoolLayout};
use super::{Allocation, Backend, BackendError, BlockRef, Capacity, Caps, DeviceKind, GivenTimes};
use crate::plan::inputs::{BatchInputs, NONE, Results};
use crate::plan::{Plan, Storage, WeightId};
use crate::platform;
use bytes::Bytes;
use clock::{Clock, Timed};
use predictor::{Carried, Predictor};
use slots::{BLANK, SLOT_BYTES, Slot, bytes_to_slots, slots_to_bytes};
use states::States;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokens::{first_visible, history, row_state, see, sum_of_states};

/// Elements of a pooled row.
pub const POOLED_COLUMNS: usize = 8;

/// Token id in a slot or feed slot before it is written, and after it was poisoned.
const POISON: u32 = u32::MAX - 1;

/// State of a row without valid numbers, and of all rows that see it.
const INVALID: u64 = u64::MAX;

/// A token with a lower bias is drawn only if no other is allowed. A request's own biases are far above.
const HELD_BACK: f32 = -1e20;

/// A fake device; see the module's documentation.
pub struct FakeBackend {
    caps: Caps,
    script: Script,
    plan: Arc<Plan>,
    capacity: Option<Capacity>,
    /// Per KV group, `[block][slot]`.
    pool: Vec<Vec<Slot>>,
    feed: Vec<u32>,
    states: States,
    /// What the layers that predict further tokens have.
    predictor: Predictor,
    /// Content of each adapter slot, of which the first has none.
    adapters: Vec<u64>,
    /// Content of each row of images, or of each patch of a tower.
    images: Vec<u32>,
    /// What was submitted and has not run yet, in order.
    queue: VecDeque<Command>,
    /// Copies of blocks that ran and were not read yet, with their numbers.
    saved: BTreeMap<u64, Vec<Bytes>>,
    saves: u64,
    /// Results of batches that ran and were not read yet.
    results: VecDeque<Results>,
    /// Bytes of weights, rows and states.
    held_bytes: u64,
    submitted: u64,
    is_lost: bool,
    random: u64,
    clock: Option<Clock>,
}

/// What the device does next.
enum Command {
    /// A batch with its number.
    Run(u64, Box<BatchInputs>),
    /// Copies of blocks with their number.
    Save(u64, Vec<BlockRef>),
    Restore(Vec<(BlockRef, Bytes)>),
    /// Another content of an adapter slot.
    Adapt(usize, u64),
    /// Other rows of images, or patches, from this one on.
    Place(usize, Vec<u32>),
}

/// The number of copies to host memory.
#[derive(Debug)]
pub struct Saves(u64);

/// The number of a batch, and its times on the simulated clock.
#[derive(Debug)]
pub struct Ticket(u64, Option<Timed>);

impl FakeBackend {
    /// A device that injects these faults.
    pub fn new(script: Script) -> Self {
        let caps = Caps {
            name: "fake".into(),
            api: "fake",
            kind: if script.memory.is_some() {
                DeviceKind::Discrete
            } else {
                DeviceKind::Software
            },
            tier: "no arithmetic".into(),
            activations: Storage::F32,
            int8_activations: false,
            half_products: false,
            binding_bytes_max: script.binding.unwrap_or(u64::MAX),
            memory_bytes: script.memory,
            memory_source: "",
            machine_bytes: None,
            allocation: Allocation::default(),
        };
        Self {
            caps,
            random: script.seed,
            clock: Clock::new(&script),
            script,
            plan: Arc::default(),
            capacity: None,
            pool: Vec::new(),
            feed: Vec::new(),
            states: States::default(),
            predictor: Predictor::default(),
            adapters: Vec::new(),
            images: Vec::new(),
            queue: VecDeque::new(),
            saved: BTreeMap::new(),
            saves: 0,
            results: VecDeque::new(),
            held_bytes: 0,
            submitted: 0,
            is_lost: false,
        }
    }

    /// Seconds since the device was opened, on the simulated clock.
    pub fn simulated_seconds(&self) -> f64 {
        self.clock.as_ref().map_or(0.0, |clock| clock.now)
    }

    /// Seconds of the longest submission so far, on the simulated clock.
    pub fn longest_submission(&self) -> f64 {
        self.clock.as_ref().map_or(0.0, |clock| clock.longest)
    }

    /// Destroys a block's content immediately, before pending batches run: no batch may need it any more.
    pub fn poison(&mut self, group: usize, block: u32) {
        let size = self.block_size() as usize;
        self.pool[group][block as usize * size..][..size].fill(BLANK);
        self.predictor.poison(group, block, size);
    }

    /// Destroys a state immediately, before pending batches run: no batch may need it any more.
    pub fn poison_state(&mut self, slot: u32) {
        self.states.poison(slot);
    }

    /// Fails if `bytes`, the total in use, exceed the device memory.
    fn check_memory(&self, what: &str, bytes: u64) -> Result<(), BackendError> {
        match self.script.memory {
            Some(memory) if bytes > memory => Err(BackendError::OutOfMemory {
                what: what.into(),
                bytes,
            }),
            _ => Ok(()),
        }
    }

    fn lose(&mut self) -> BackendError {
        self.is_lost = true;
        BackendError::Lost("fake device: as scripted".into())
    }

    fn chance(&mut self) -> bool {
        self.random = mix(self.random, self.submitted);
        self.random.is_multiple_of(2)
    }

    fn run_next(&mut self) {
        match self.queue.pop_front() {
            Some(Command::Run(number, inputs)) => {
                let fails = self.script.failed.contains(&number);
                let results = match (fails, inputs.carried.is_empty()) {
                    (true, true) => self.spoil(&inputs),
                    (true, false) => self.predictor.spoil(&inputs),
                    (false, true) => self.run(&inputs),
                    (false, false) => self.predict(&inputs),
                };
                self.results.push_back(results);
            }
            Some(Command::Save(number, blocks)) => {
                let copies = blocks.iter().map(|&block| self.copy_of(block)).collect();
                self.saved.insert(number, copies);
            }
            Some(Command::Restore(blocks)) => {
                blocks
                    .iter()
                    .for_each(|(block, bytes)| self.overwrite(*block, bytes));
            }
            Some(Command::Adapt(slot, content)) => self.adapters[slot] = content,
            Some(Command::Place(first, rows)) => {
                self.images[first..first + rows.len()].copy_from_slice(&rows);
            }
            None => {}
        }
    }

    /// A copy of a block or state: its content, and zeros up to the length that a copy has on every backend.
    fn copy_of(&mut self, block: BlockRef) -> Bytes {
        let kv_format = self
            .capacity
            .as_ref()
            .expect("a loaded device has a capacity")
            .kv_format;
        let length = self
            .plan
            .block_bytes(block.group, self.block_size(), kv_format);
        let is_state = self.plan.state_group() == Some(block.group);
        let mut copy = if is_state {
            self.states.copy_of(block.block)
        } else {
            let size = self.block_size() as usize;
            let predicted = self.predictor.copy_of(block, size);
            [slots_to_bytes(self.block(block)), predicted].concat()
        };
        copy.resize(
            copy.len()
                .max(usize::try_from(length).expect("a block fits memory")),
            0,
        );
        copy.into()
    }

    /// Overwrites a block or state with a copy.
    fn overwrite(&mut self, block: BlockRef, copy: &[u8]) {
        if self.plan.state_group() == Some(block.group) {
            self.states.overwrite(block.block, copy);
        } else {
            let size = self.block_size() as usize;
            bytes_to_slots(copy, self.block(block));
            let predicted = copy.get(size * SLOT_BYTES..).unwrap_or_default();
            self.predictor.overwrite(block, size, predicted);
        }
    }

    /// The slots of a block.
    fn block(&mut self, BlockRef { group, block }: BlockRef) -> &mut [Slot] {
        let size = self.block_size() as usize;
        &mut self.pool[group][block as usize * size..][..size]
    }

    /// Runs a batch that fails: nothing that it should have written can be read afterwards.
    fn spoil(&mut self, inputs: &BatchInputs) -> Results {
        let size = self.block_size();
        for (index, group) in inputs.groups.iter().enumerate() {
            let written = group.slot_mapping.iter().map(|slot| slot / size);
            let copied = group.copies.iter().map(|&(_, target)| target);
            written
                .chain(copied)
                .for_each(|block| self.poison(index, block));
        }
        self.states.spoil(inputs);
        let slots = inputs
            .samples
            .iter()
            .map(|sample| sample.feed_slot)
            .filter(|&slot| slot != NONE);
        slots.for_each(|slot| self.feed[slot as usize] = POISON);
        Results::default()
    }

    /// Runs one batch in the order of a real device: copies, then all writes, then all reads. A row reads the states of
    /// earlier rows of its batch.
    fn run(&mut self, inputs: &BatchInputs) -> Results {
        let size = self.block_size() as usize;
        self.predictor.copy_blocks(&mut self.pool, inputs, size);
        let token_ids = self.tokens_seen(inputs);
        if self.plan.pools_merged_rows() {
            return self.merge(inputs);
        }
        for (pool, group) in self.pool.iter_mut().zip(&inputs.groups) {
            for (&slot, &token_id) in group.slot_mapping.iter().zip(&token_ids) {
                pool[slot as usize] = Slot { token_id, ..BLANK };
            }
        }
        self.predictor.carried.clear();
        let mut hashes = Vec::with_capacity(token_ids.len());
        (0..inputs.sequences.len())
            .for_each(|index| self.run_sequence(index, inputs, &token_ids, &mut hashes));
        let sampled = self.sample(inputs, &hashes);
        for (sample, sampled) in inputs
            .samples
            .iter()
            .zip(&sampled)
            .filter(|(sample, _)| sample.feed_slot != NONE)
        {
            self.feed[sample.feed_slot as usize] = sampled.token_id;
        }
        let pooled = inputs
            .pools
            .iter()
            .map(|pool| {
                sum_of_states(&hashes[pool.row_start as usize..][..pool.row_count as usize])
            })
            .collect();
        Results { sampled, pooled }
    }

    /// Computes and stores the states of a sequence's rows, and adds the hash of what each row sees; `None` if the
    /// script makes it invalid.
    fn run_sequence(
        &mut self,
        index: usize,
        inputs: &BatchInputs,
        token_ids: &[u32],
        hashes: &mut Vec<Option<u64>>,
    ) {
        let rows = inputs.sequences[index];
        let start = inputs.positions[rows.row_start as usize];
        let rounding = self
            .script
            .rounding
            .then(|| u64::from(start) << 32 | u64::from(rows.row_count));
        let adapter = self.adapter(index, inputs);
        let mut kept = self.states.before(inputs, index);
        let mut views = self.views(index, start, inputs);
        for row in (rows.row_start..rows.row_start + rows.row_count).map(|row| row as usize) {
            let (position, token_id) = (inputs.positions[row], token_ids[row]);
            let is_invalid = self.script.nan == Some(token_id)
                || kept == Some(INVALID)
                || views.iter().any(|view| view.invalid > 0);
            let state = if is_invalid {
                INVALID
            } else {
                let sums = views.iter().map(|view| view.sum);
                let changed = sums.chain(rounding).chain(kept).chain(adapter);
                row_state(position, token_id, changed)
            };
            kept = kept.map(|kept| states::fold(kept, state));
            for (group, view) in views.iter_mut().enumerate() {
                self.pool[group][inputs.groups[group].slot_mapping[row] as usize].state = state;
                view.add(position, self.slot(group, index, position, inputs).state);
            }
            let is_valid = views.iter().all(|view| view.invalid == 0);
            hashes.push(is_valid.then(|| history(views.iter().map(|view| view.sum))));
            self.pass_windows(&mut views, index, position, inputs);
            if self.plan.predictor.is_some() {
                self.predictor.carried.push(Carried {
                    views: views.clone(),
                    kept,
                    adapter,
                    known: position,
                    ahead: Vec::new(),
                });
            }
        }
        self.states.store(inputs, index, kept);
    }

    /// The content of a sequence's adapter slot, if it has one.
    fn adapter(&self, index: usize, inputs: &BatchInputs) -> Option<u64> {
        let slot = inputs.adapters.get(index).filter(|slot| **slot != 0)?;
        Some(self.adapters[*slot as usize])
    }
}

impl Backend for FakeBackend {
    type Ticket = Ticket;
    type Saves = Saves;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        platform::pause(self.script.loading);
        let layout = Layout::checked(&plan, capacity, &self.caps)?;
        self.held_bytes = layout.weight_bytes() + layout.state_bytes() + layout.work_bytes();
        self.check_memory("weights and rows", self.held_bytes)?;
        (self.feed, self.states) = (
            vec![POISON; capacity.feed_slots as usize],
            States::new(&plan, capacity),
        );
        let slots = plan.adapters.as_ref().map_or(0, |slots| slots.count);
        self.adapters = vec![0; slots as usize];
        self.images = vec![POISON; images::count(&plan) as usize];
        (self.plan, self.capacity) = (plan, Some(capacity.clone()));
        Ok(())
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        let spec = self.plan.weight_spec(weight);
        assert!(
            spec.whole_rows(first_row, rows.len() as u64).is_some(),
            "rows of {} lie within it",
            spec.name
        );
        let own = self.plan.with_adapters(false).weights.len();
        if weight.0 as usize >= own {
            let slot = first_row / (spec.rows / spec.experts);
            let content = rows.first_chunk().copied().unwrap_or_default();
            let command = Command::Adapt(slot as usize, u64::from_le_bytes(content));
            self.queue.push_back(command);
        } else if self.has_images_in(weight) {
            let rows = images::contents(&rows, spec.row_bytes(first_row));
            self.queue
                .push_back(Command::Place(first_row as usize, rows));
        }
        Ok(())
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        let capacity = self
            .capacity
            .as_ref()
            .expect("a pool is allocated after loading");
        let layout = PoolLayout::checked(&self.plan, capacity, &self.caps, blocks)?;
        let total: u32 = blocks.iter().sum();
        if self.script.oom.is_some_and(|limit| total > limit) {
            return Err(BackendError::OutOfMemory {
                what: "the KV pool".into(),
                bytes: layout.bytes(),
            });
        }
        self.check_memory(
            "weights, rows and the KV pool",
            self.held_bytes + layout.bytes(),
        )?;
        self.pool = blocks
            .iter()
            .map(|&count| vec![BLANK; count as usize * self.block_size() as usize])
            .collect();
        if self.plan.predictor.is_some() {
            self.predictor.allocate(&self.pool);
        }
        Ok(())
    }

    async fn warm_up(&mut self, _progress: &mut dyn FnMut(u32, u32)) -> Result<(), BackendError> {
        let capacity = self.capacity.as_ref().expect("the pool is allocated");
        match self
            .clock
            .as_mut()
            .is_none_or(|clock| clock.calibrate(&self.plan, capacity))
        {
            true => Ok(()),
            false => Err(self.lose()),
        }
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<Ticket, BackendError> {
        assert!(!self.is_lost, "nothing is submitted to a lost device");
        self.submitted += 1;
        let number = self.submitted;
        assert!(
            !self.script.panic.contains(&number),
            "fake device: a panic at batch {number}, as scripted"
        );
        if self.script.lost_submit.contains(&number) {
            return Err(self.lose());
        }
        if self.script.invalid.contains(&number) {
            return Err(BackendError::Validation(format!(
                "fake device: batch {number}, as scripted"
            )));
        }
        self.check(inputs);
        let capacity = self
            .capacity
            .as_ref()
            .expect("a loaded device has a capacity");
        let timed = self.clock.as_mut().map(|clock| {
            if self.script.slow.contains(&number) {
                clock.slow_down();
            }
            clock.submit(&self.plan, capacity, inputs)
        });
        self.queue
            .push_back(Command::Run(number, Box::new(inputs.clone())));
        while !self.queue.is_empty() && self.chance() {
            self.run_next();
        }
        Ok(Ticket(number, timed))
    }

    async fn read(&mut self, ticket: Ticket) -> Result<Results, BackendError> {
        let Ticket(number, timed) = ticket;
        platform::pause(self.script.pause);
        if self.script.hang.contains(&number) {
            self.is_lost = true;
            return Err(BackendError::Hung(self.script.pause));
        }
        let is_killed = self
            .clock
            .as_mut()
            .zip(timed)
            .is_some_and(|(clock, timed)| !clock.read(&timed));
        if is_killed || self.script.lost.contains(&number) || self.script.dead.contains(&number) {
            return Err(self.lose());
        }
        while self.results.is_empty() && !self.queue.is_empty() {
            self.run_next();
        }
        let results = self
            .results
            .pop_front()
            .expect("a batch is read once, in order");
        if self.script.failed.contains(&number) {
            return Err(BackendError::Validation(format!(
                "fake device: batch {number}, as scripted"
            )));
        }
        Ok(results)
    }

    fn token_budget_hint(&self) -> Option<u32> {
        self.clock.as_ref()?.tokens_max()
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<Saves, BackendError> {
        self.saves += 1;
        self.queue
            .push_back(Command::Save(self.saves, blocks.to_vec()));
        Ok(Saves(self.saves))
    }

    async fn saved_blocks(&mut self, Saves(number): Saves) -> Result<Vec<Bytes>, BackendError> {
        while !self.saved.contains_key(&number) && !self.queue.is_empty() {
            self.run_next();
        }
        Ok(self
            .saved
            .remove(&number)
            .expect("copies are read once, while their device lives"))
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        self.queue.push_back(Command::Restore(blocks.to_vec()));
        Ok(())
    }

    fn given_times(&self) -> Option<GivenTimes> {
        Some(self.script.times(self.submitted))
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        if let Some(clock) = &mut self.clock {
            clock.note_loss();
        }
        if self
            .script
            .dead
            .iter()
            .any(|&number| number <= self.submitted)
        {
            return Err(self.lose());
        }
        self.is_lost = false;
        self.queue.clear();
        self.results.clear();
        self.saved.clear();
        (self.pool, self.feed, self.capacity) = (Vec::new(), Vec::new(), None);
        self.predictor = Predictor::default();
        Ok(())
    }
}
