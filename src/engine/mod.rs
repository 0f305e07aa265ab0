//! The engine: owns a device, a model, the KV pool and the queues, and turns requests into tokens.
//!
//! [`Engine::step`] is the whole flow: messages in, schedule, flatten, submit, read, commit, events out. The engine is
//! built and runs on one thread, so nothing in it needs `Send`; other threads use an
//! [`EngineHandle`](handle::EngineHandle). It awaits only the readback; when idle, it waits for a message.
//!
//! It knows [`Backend`] and [`Source`], never a concrete device. The scheduler decides what is computed when.

mod adapters;
pub mod batch;
mod beams;
mod device_queue;
pub mod disk;
mod draft_model;
mod draft_plan;
mod draft_report;
#[doc(hidden)]
mod fingerprint;
pub mod fit;
pub mod handle;
mod images;
mod loaded;
mod loading;
pub mod memory;
mod mover;
mod others;
mod predicted;
mod predictor;
pub mod request;
pub mod scheduler;
pub mod sequence;
mod sizes;
mod source;
mod speculation;
mod start;
mod states;
mod stats;
mod streams;
mod tower;
mod tower_plan;
mod whole;

pub use device_queue::DeviceQueue;
pub use draft_plan::{DraftError, DraftPlan};
pub use loaded::{Progress, StartError};
pub use others::Others;
pub use predictor::add_predictor;
pub use sizes::adapter_room;
pub use source::Source;
#[doc(hidden)]
pub use start::Extras;
pub use start::{spawn, spawn_with};
pub use tower_plan::TowerPlan;

use crate::backend::{Backend, BackendError};
use crate::config::Config;
use crate::engine::batch::Batch;
use crate::engine::disk::{Disk, DiskEvent};
use crate::engine::draft_model::DraftModel;
use crate::engine::handle::{Dropped, EngineInbox, Message, Stats};
use crate::engine::loaded::LoadedPlan;
use crate::engine::memory::{DiskJob, Group, Rates, SAVES_WHILE_IDLE, Save};
use crate::engine::mover::Mover;
use crate::engine::predicted::Followers;
use crate::engine::predictor::Predictor;
use crate::engine::request::{Event, RequestError};
use crate::engine::scheduler::Scheduler;

use crate::engine::device_queue::DeviceLease;
use crate::engine::streams::Streams;
use crate::engine::tower::Tower;
use crate::model::Model;
use crate::plan::inputs::BatchInputs;
use crate::platform::{self, Instant};
use bytes::Bytes;
use futures_util::future::{Either, select};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of steps that are submitted and not yet read.
const STEPS_IN_FLIGHT_MAX: usize = 2;
/// Number of device losses within [`RECOVERY_PERIOD`] that end the engine.
const LOSSES_MAX: usize = 3;
const RECOVERY_PERIOD: Duration = Duration::from_secs(600);

/// Why an engine ended before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum EngineEnd {
    /// It failed to start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The device was lost and did not come back, or too often.
    #[error("the device could not be recovered: {0}")]
    DeviceLost(String),
    /// The engine panicked, which is a bug.
    #[error("the engine panicked: {0}")]
    Panicked(String),
}

/// A device, a model and the requests being served.
pub struct Engine<B: Backend, S: Source = Model> {
    config: Config,
    backend: B,
    source: S,
    loaded: LoadedPlan,
    draft: Option<DraftModel<B, S>>,
    predictor: Option<Predictor>,
    tower: Option<Tower<B, S>>,
    scheduler: Scheduler,
    in_flight: VecDeque<InFlight<B>>,
    /// Of a device that other engines use too; held while steps are in flight.
    lease: Option<DeviceLease>,
    mover: Mover,
    disk: Option<Box<dyn Disk>>,
    /// Whether nothing can be computed before a file is read.
    waits_for_disk: bool,
    /// When the step before the next one to be read was read.
    last_read: Option<Instant>,
    inbox: EngineInbox,
    streams: Streams,
    seeds: Seeds,
    losses: Vec<Instant>,
    requests_taken: u64,
    requests_dequeued: u64,
    recoveries: u64,
    /// Every so many-th request needs host work between two tokens, as one with a grammar does; 0 for none.
    host_rows_every: u64,
}

/// A step that is submitted and not yet read.
struct InFlight<B: Backend> {
    batch: Batch,
    ticket: B::Ticket,
    /// Copies of blocks that left the device before it.
    saves: Option<B::Saves>,
    /// The same rows on the draft model.
    follower: Option<B::Ticket>,
    /// The same rows for the predictor.
    followers: Option<Followers>,
    submitted: Instant,
}

/// Generates seeds for requests without one.
struct Seeds(u64);

impl<B: Backend, S: Source> Engine<B, S> {
    /// Serves until it is drained, until every handle is dropped and every request is done, or until it fails.
    pub async fn run(mut self) -> Result<(), EngineEnd> {
        loop {
            self.take_messages();
            if self.inbox.is_aborting() {
                self.streams.set_last_words(RequestError::ShuttingDown);
                return Ok(());
            }
            if self.scheduler.is_idle() {
                self.scheduler.check();
                self.last_read = None;
                if self.scheduler.memory().files().has_finished() {
                    // Some of them are copied in the next step; then whoever came meanwhile is served.
                    if self.scheduler.memory().files().is_busy() {
                        self.wait_for_disk().await;
                    }
                } else if self.inbox.is_draining() {
                    // A request may have come before the drain, and after messages were taken above.
                    self.take_messages();
                    if self.scheduler.is_idle() {
                        return Ok(());
                    }
                } else if !self.wait_while_idle().await {
                    return Ok(());
                }
            } else if self.waits_for_disk {
                self.wait_for_disk().await;
            }
            self.step().await?;
        }
    }

    /// One iteration: takes new messages, keeps the device busy, and delivers the tokens of the oldest step in flight.
    pub async fn step(&mut self) -> Result<(), EngineEnd> {
        self.take_messages();
        self.take_disk_events();
        for (stream, how) in self.streams.take_closed() {
            match how {
                Dropped::Aborted => self.scheduler.abort(stream),
                Dropped::Complete => self.scheduler.stop(stream),
            }
        }
        let mut outcome = self.submit_and_read().await;
        if self.in_flight.is_empty() {
            self.lease = None;
        }
        if outcome.is_ok() && self.scheduler.is_idle() {
            outcome = self.save_while_idle().await;
        }
        if let Err(lost) = outcome {
            self.recover(&lost).await?;
        }
        if cfg!(debug_assertions) {
            self.scheduler.check();
        }
        self.publish();
        Ok(())
    }

    /// Submits the next step and reads the oldest one. An error means that the device is lost.
    async fn submit_and_read(&mut self) -> Result<(), BackendError> {
        while self.may_submit() {
            let batch = self.scheduler.schedule(self.tokens_max());
            self.ask_disk();
            let admitted = self.scheduler.take_admitted().into_iter();
            self.streams.send(
                admitted
                    .map(|(stream, event)| (stream, Event::Prompt(event)))
                    .collect(),
            );
            let Some(mut batch) = batch else { break };
            self.take_turn().await;
            self.guess_drafts(&mut batch).await?;
            self.follow_step(Some(&mut batch)).await?;
            self.submit(batch).await?;
        }
        self.waits_for_disk = self.in_flight.is_empty() && !self.scheduler.is_idle();
        let Some(step) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let outcome = self.backend.read(step.ticket).await;
        self.read_follower(step.follower).await?;
        let is_lost = outcome.as_ref().is_err_and(BackendError::is_loss);
        // The copies were submitted before the batch, so they have completed.
        let saved = match step.saves {
            Some(saves) if !is_lost => self.backend.saved_blocks(saves).await,
            _ => Ok(Vec::new()),
        };
        let results = match (outcome, saved) {
            (Ok(results), Ok(saved)) => {
                self.store(&step.batch.moves.saves, saved);
                results
            }
            (Err(error), _) | (_, Err(error)) => return self.refuse(&step.batch, error),
        };
        self.note_time(&step.batch, step.submitted);
        if let Some((predictor, mut followers)) = self.predictor.as_mut().zip(step.followers) {
            followers.take_results(&results.sampled, self.scheduler.limits().vocab);
            predictor.followers = Some(followers);
        }
        self.streams
            .send(self.scheduler.commit(&step.batch, results));
        if !step.batch.moves.saves.is_empty() {
            self.mover.trim(self.scheduler.memory().host());
        }
        if self.scheduler.is_idle() {
            self.follow_step(None).await?;
        }
        Ok(())
    }

    /// Token rows of the next step: as many as there is room for, or fewer if a device's submissions would take too
    /// long. A draft model's device computes the same rows.
    fn tokens_max(&self) -> u32 {
        let most = self.loaded.capacity.tokens_max;
        // A step of another size may round differently.
        if self.config.deterministic {
            return most;
        }
        let draft = self.draft.as_ref();
        [
            self.backend.token_budget_hint(),
            draft.and_then(|draft| draft.backend.token_budget_hint()),
        ]
        .into_iter()
        .flatten()
        .fold(most, u32::min)
        .max(1)
    }

    /// Waits until this engine may submit a step.
    async fn take_turn(&mut self) {
        if self.lease.is_none()
            && let Some(queue) = self.inbox.device_queue()
        {
            self.lease = Some(queue.take().await);
        }
    }

    /// Starts the copies of a batch, then submits it.
    async fn submit(&mut self, mut batch: Batch) -> Result<(), BackendError> {
        if let Err(error) = self.load_adapters(&batch) {
            self.scheduler.drop_adapters(&batch);
            return self.refuse(&batch, error);
        }
        if let Err(error) = self.compute_images(&batch).await {
            self.scheduler.drop_images(&batch);
            return self.refuse(&batch, error);
        }
        let saves = match self
            .mover
            .start(&mut self.backend, &batch, self.in_flight.is_empty())
            .await
        {
            Ok(saves) => saves,
            Err(error) => return self.refuse(&batch, error),
        };
        self.predict_further(&mut batch).await?;
        let inputs = self.scheduler.flatten(&batch);
        match self.backend.submit(&inputs) {
            Ok(ticket) => {
                let submitted = Instant::now();
                let follower = self.follow(&inputs)?;
                let followers = self
                    .predictor
                    .as_ref()
                    .map(|_| self.scheduler.followers(&batch, &inputs));
                self.in_flight.push_back(InFlight {
                    batch,
                    ticket,
                    saves,
                    follower,
                    followers,
                    submitted,
                });
                Ok(())
            }
            Err(error) => {
                if let Some(saves) = saves
                    && !error.is_loss()
                {
                    self.backend.saved_blocks(saves).await?;
                }
                self.refuse(&batch, error)
            }
        }
    }

    /// Writes the adapters that sequences of a batch are the first to use.
    fn load_adapters(&mut self, batch: &Batch) -> Result<(), BackendError> {
        for load in &batch.adapters {
            for (weight, first_row, rows) in load.content.rows(self.loaded.plan(), load.slot) {
                self.backend.write_weight(weight, first_row, rows)?;
            }
        }
        Ok(())
    }

    /// Computes the rows of images that a batch is the first to read.
    async fn compute_images(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let pool = self.loaded.plan().image_rows();
        match self.tower.as_mut().zip(pool) {
            Some((tower, pool)) => tower.compute(&batch.tiles, &mut self.backend, pool).await,
            None => Ok(()),
        }
    }

    /// Has the draft model guess the drafts that a step is to verify. If it fails, the step goes on without them.
    async fn guess_drafts(&mut self, batch: &mut Batch) -> Result<(), BackendError> {
        let Some(draft) = &mut self.draft else {
            return Ok(());
        };
        while let Some(inputs) = self.scheduler.flatten_guesses(batch) {
            match draft.guess(inputs).await {
                Ok(guesses) => self.scheduler.take_guesses(batch, &guesses),
                Err(error) if error.is_loss() => return Err(error),
                Err(error) => {
                    tracing::warn!("the draft model failed: {error}");
                    self.scheduler.drop_unguessed(batch);
                }
            }
        }
        Ok(())
    }

    /// Copies finished blocks and has them written, while nothing else runs.
    async fn save_while_idle(&mut self) -> Result<(), BackendError> {
        let saves = self.scheduler.memory_mut().save_finished(SAVES_WHILE_IDLE);
        if saves.is_empty() {
            return Ok(());
        }
        let saved = match self.backend.save_blocks(&Mover::leaving(&saves)) {
            Ok(ticket) => self.backend.saved_blocks(ticket).await,
            Err(error) => Err(error),
        };
        self.scheduler.land_saves(&saves, saved.is_err());
        match saved {
            Ok(saved) => self.store(&saves, saved),
            Err(error) if error.is_loss() => return Err(error),
            Err(error) => tracing::error!("KV blocks were not copied: {error}"),
        }
        Ok(())
    }

    /// Has the draft model compute the rows of a step too.
    fn follow(&mut self, inputs: &BatchInputs) -> Result<Option<B::Ticket>, BackendError> {
        let Some(draft) = &mut self.draft else {
            return Ok(None);
        };
        match draft.follow(inputs) {
            Err(error) if !error.is_loss() => {
                tracing::warn!("the draft model failed: {error}");
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    /// Waits for the draft model's rows of a step.
    async fn read_follower(&mut self, follower: Option<B::Ticket>) -> Result<(), BackendError> {
        let Some((draft, ticket)) = self.draft.as_mut().zip(follower) else {
            return Ok(());
        };
        match draft.backend.read(ticket).await {
            Err(error) if error.is_loss() => Err(error),
            Err(error) => {
                tracing::warn!("the draft model failed: {error}");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Keeps copies of blocks in host memory, or has them written, or both.
    fn store(&mut self, saves: &[Save], saved: Vec<Bytes>) {
        assert_eq!(saved.len(), saves.len(), "every leaving block has a copy");
        for (save, bytes) in saves.iter().zip(saved) {
            let origin = save
                .origin
                .as_ref()
                .filter(|origin| self.scheduler.memory_mut().hand_over(origin));
            if let Some((disk, origin)) = self.disk.as_mut().zip(origin) {
                disk.write(origin.clone(), bytes.clone());
            }
            if let Some(slot) = save.slot {
                self.mover.fill(slot, bytes);
            }
        }
    }

    /// Asks for the files that the scheduler wants.
    fn ask_disk(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        for job in self.scheduler.memory_mut().take_disk_jobs() {
            match job {
                DiskJob::Read(slot, origin) => disk.read(slot, origin),
                DiskJob::Remove(key) => disk.remove(key),
            }
        }
    }

    /// Waits for the list of the files that are there at the start.
    async fn find_files(&mut self) {
        while let Some(disk) = &mut self.disk {
            let event = disk.wait().await;
            let is_list = matches!(event, DiskEvent::Found(_));
            self.take_disk_event(event);
            if is_list {
                return;
            }
        }
    }

    fn take_disk_events(&mut self) {
        while let Some(event) = self.disk.as_mut().and_then(|disk| disk.take()) {
            self.take_disk_event(event);
        }
    }

    fn take_disk_event(&mut self, event: DiskEvent) {
        match event {
            DiskEvent::Read { slot, data, took } => {
                if let Some(data) = data.as_ref()
                    && self.backend.given_times().is_none()
                {
                    self.mover.rates.note_file(data.len() as u64, took);
                    self.scheduler.memory_mut().set_rates(self.mover.rates);
                }
                let wanted = self.scheduler.read_file(slot, data.is_some());
                if wanted {
                    self.mover.fill(slot, data.unwrap_or_default());
                }
            }
            DiskEvent::Written { key, done } => self.scheduler.wrote_file(key, done),
            DiskEvent::Found(keys) => self.scheduler.memory_mut().found_files(keys),
            DiskEvent::Lost(keys) => self.scheduler.memory_mut().lost_files(keys),
            DiskEvent::Emptied => self.scheduler.memory_mut().lost_all_files(),
            DiskEvent::Refused(files) => self.scheduler.refused_files(files),
            DiskEvent::Usable(is_usable) => {
                self.scheduler.memory_mut().set_disk_usable(is_usable);
            }
        }
    }

    /// Waits for a message; meanwhile files become known. Returns whether there is still a handle.
    async fn wait_while_idle(&mut self) -> bool {
        loop {
            let outcome = match &mut self.disk {
                Some(disk) => match select(disk.wait(), pin!(self.inbox.wait())).await {
                    Either::Left((event, _)) => Err(event),
                    Either::Right((message, _)) => Ok(message),
                },
                None => Ok(self.inbox.wait().await),
            };
            match outcome {
                Ok(Some(message)) => {
                    self.take(message);
                    return true;
                }
                Ok(None) => return false,
                Err(event) => {
                    self.take_disk_event(event);
                    self.publish();
                }
            }
        }
    }

    /// Waits for a file or a message.
    async fn wait_for_disk(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        let (event, message) = match select(disk.wait(), pin!(self.inbox.wait())).await {
            Either::Left((event, _)) => (Some(event), None),
            Either::Right((Some(message), _)) => (None, Some(message)),
            // All handles are gone, but the requests are still served.
            Either::Right((None, event)) => (Some(event.await), None),
        };
        event
            .into_iter()
            .for_each(|event| self.take_disk_event(event));
        message.into_iter().for_each(|message| self.take(message));
    }

    /// Measures what a step costs: to its sequences, with the time in which the device waited for the host; and its
    /// prompt tokens alone. Steps run one after the other.
    fn note_time(&mut self, batch: &Batch, submitted: Instant) {
        let now = Instant::now();
        let last = self.last_read.replace(now);
        let start = last.map_or(submitted, |last| last.max(submitted));
        let given = self.backend.given_times();
        if given.is_none() {
            self.scheduler
                .note_step(batch, now.duration_since(last.unwrap_or(submitted)));
        }
        if !self.scheduler.memory().host().is_off() {
            match given {
                Some(times) => self.mover.rates = Rates::given(times.byte, times.token),
                None => self
                    .mover
                    .rates
                    .note_prefill(batch.prefill_tokens(), now.duration_since(start)),
            }
            self.scheduler.memory_mut().set_rates(self.mover.rates);
        }
    }

    fn may_submit(&self) -> bool {
        // A draft model gets the ids of all tokens from the host, and a predictor the rows of the last step.
        let may_look_ahead =
            self.config.look_ahead && self.draft.is_none() && self.predictor.is_none();
        let is_wanted = self.lease.as_ref().is_some_and(DeviceLease::is_wanted);
        let ahead = may_look_ahead && !is_wanted && self.in_flight.len() < STEPS_IN_FLIGHT_MAX;
        self.in_flight.is_empty() || (ahead && self.scheduler.may_look_ahead())
    }

    /// Handles a batch that the device failed to compute. If the device still works, only the batch's requests end.
    fn refuse(&mut self, batch: &Batch, error: BackendError) -> Result<(), BackendError> {
        if error.is_loss() {
            return Err(error);
        }
        tracing::error!("a batch failed: {error}");
        self.streams
            .send(self.scheduler.fail(batch, RequestError::Internal));
        Ok(())
    }

    /// Recovers from a lost device. The KV pool is a cache: its content is recomputed from the tokens, and the streams
    /// stay open. Too many losses, or a failed recovery, end them.
    async fn recover(&mut self, lost: &BackendError) -> Result<(), EngineEnd> {
        tracing::warn!("{lost}; reloading the model");
        self.inbox.set_loading(true);
        self.in_flight.clear();
        self.predictor = self.predictor.take().map(|_| Predictor::default());
        self.lease = None;
        self.scheduler.restart();
        let now = Instant::now();
        self.losses
            .retain(|&loss| now.duration_since(loss) < RECOVERY_PERIOD);
        self.losses.push(now);
        if self.losses.len() >= LOSSES_MAX {
            return Err(self.give_up(format!("{lost} ({LOSSES_MAX} times within ten minutes)")));
        }
        if let Err(error) = self.bring_back().await {
            return Err(self.give_up(format!("{lost}; recovery failed: {error}")));
        }
        self.recoveries += 1;
        self.inbox.set_loading(false);
        Ok(())
    }

    async fn bring_back(&mut self) -> Result<(), StartError> {
        self.loaded
            .bring_back(&mut self.backend, &self.source)
            .await?;
        if let Some(draft) = &mut self.draft {
            let DraftModel {
                backend,
                source,
                loaded,
                ..
            } = draft;
            loaded.bring_back(backend, source).await?;
        }
        if let Some(Tower {
            backend,
            source,
            loaded,
        }) = &mut self.tower
        {
            loaded.bring_back(backend, source).await?;
        }
        Ok(())
    }

    fn give_up(&mut self, reason: String) -> EngineEnd {
        self.streams.set_last_words(RequestError::DeviceLost);
        self.inbox.set_failed(RequestError::DeviceLost);
        EngineEnd::DeviceLost(reason)
    }

    fn take_messages(&mut self) {
        while let Some(message) = self.inbox.take() {
            self.take(message);
        }
    }

    fn take(&mut self, message: Message) {
        // A drain is read from the status; its message only wakes the engine.
        let Message::Request(submission) = message else {
            return;
        };
        let streams = self.streams.open(submission.senders);
        let seed = submission
            .request
            .params
            .seed
            .unwrap_or_else(|| self.seeds.draw());
        self.requests_taken += 1;
        if let Some(disk) = &mut self.disk {
            disk.refresh();
        }
        let every = self.host_rows_every;
        let waits_for_host = every > 0 && self.requests_taken.is_multiple_of(every);
        self.scheduler
            .add(Arc::new(submission.request), &streams, seed, waits_for_host);
    }

    /// Tells the clients how the engine is doing.
    fn publish(&mut self) {
        let counts = self.scheduler.counts();
        let dequeued = counts.requests_dequeued - self.requests_dequeued;
        self.requests_dequeued = counts.requests_dequeued;
        let queued = self.requests_taken - counts.requests_dequeued;
        let groups = self.scheduler.pool().groups();
        let memory = self.scheduler.memory();
        let stats = Stats {
            requests_running: self.scheduler.running_len() as u64,
            requests_waiting: (self.scheduler.waiting_len() as u64).saturating_sub(queued),
            blocks_used: sum_of(groups, Group::referenced),
            blocks_held: groups.iter().map(Group::held).sum(),
            blocks_total: sum_of(groups, Group::total),
            tokens_stored: self.scheduler.tokens_stored(),
            host_bytes_used: memory.host().bytes(),
            host_bytes_total: memory.host().bytes_max(),
            disk_failing: memory.files().is_failing().into(),
            blocks_on_disk: memory.files().len() as u64,
            step_dispatches: self.backend.dispatches().unwrap_or(0).into(),
            recoveries: self.recoveries,
            ..Stats::from(counts)
        };
        self.inbox.publish(
            &stats,
            u32::try_from(dequeued).expect("the queue is bounded"),
        );
    }

    /// The scheduler and the device, for the simulator.
    #[doc(hidden)]
    pub fn parts(&mut self) -> (&Scheduler, &mut B) {
        (&self.scheduler, &mut self.backend)
    }
}

fn sum_of(groups: &[Group], count: impl Fn(&Group) -> u32) -> u64 {
    groups.iter().map(|group| u64::from(count(group))).sum()
}

impl Seeds {
    fn new(config: &Config) -> Self {
        Self(config.seed.unwrap_or_else(platform::random_u64))
    }

    /// The next pseudorandom number (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The message with which `work` panics.
#[cfg(test)]
fn panic_message(work: impl FnOnce()) -> String {
    let panic =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).expect_err("it panics");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or_default()
        .to_owned()
}
