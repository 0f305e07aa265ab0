//! [`Residents`]: which models are loaded, who waits for which, and what is to be done next.
//!
//! A model is *wanted* while a request waits for it. Wanted models are loaded in the order in which they were first
//! asked for. One that does not fit beside those that are loaded waits until enough of them are unloaded: those that
//! have not been used for the longest time, and of them first those that nobody uses. A model that nobody used for a
//! time is unloaded as well. A model that is to be unloaded takes no new requests, and those that it has are finished
//! first.
//!
//! All of this is plain data: it knows no thread, clock or engine. Times are given, and what has to be done is returned
//! as [`Task`]s, whose outcomes are told later.

use std::time::Duration;

/// How long a model stays loaded without requests; `None`: until its memory is needed.
pub(super) type Idle = Option<Duration>;

/// A model's part of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Index of the memory.
    pub(super) place: usize,
    pub(super) bytes: u64,
}

/// Something to do. Its outcome is told with [`Residents::loaded`] or [`Residents::unloaded`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Task<L> {
    /// Load this model.
    Load(usize),
    /// Unload this model.
    Unload(usize, L),
}

/// What is to be done now, and when to look again.
#[derive(Debug)]
pub(super) struct Step<L, W> {
    pub(super) tasks: Vec<Task<L>>,
    /// Those whose time is over, with their models.
    pub(super) expired: Vec<(usize, W)>,
    /// The next moment at which something may have to be done, if nothing else happens.
    pub(super) next: Option<Duration>,
}

/// The state of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase<L> {
    Unloaded,
    /// It could not be loaded, or its engine has failed.
    Failed(String),
    Loading,
    Loaded(L),
    /// It is unloaded when its last request is done.
    Draining(L),
    Unloading,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting<W> {
    waiter: W,
    deadline: Option<Duration>,
}

#[derive(Debug)]
struct Resident<L, W> {
    need: Need,
    phase: Phase<L>,
    /// Requests that it has.
    users: usize,
    waiting: Vec<Waiting<W>>,
    /// Its place in the order of those that are wanted.
    wanted: Option<u64>,
    /// It is loaded even if nobody waits for it.
    is_asked: bool,
    last_used: Duration,
    idle: Idle,
}

/// The models of a server. `L` is a loaded model, `W` somebody who waits for one.
#[derive(Debug)]
pub(super) struct Residents<L, W> {
    /// Bytes of each memory; `None`: unknown, and never full.
    places: Vec<Option<u64>>,
    models: Vec<Resident<L, W>>,
    /// The next place in the order of those that are wanted.
    turn: u64,
    /// Nothing is loaded any more, and everything is unloaded.
    is_closing: bool,
    /// Requests are not waited for.
    is_forced: bool,
}

impl<L: Clone, W> Residents<L, W> {
    /// Models with the memory that each needs, none of them loaded.
    pub(super) fn new(
        places: Vec<Option<u64>>,
        models: impl Iterator<Item = (Need, Idle)>,
    ) -> Self {
        let models = models.map(|(need, idle)| Resident {
            need,
            phase: Phase::Unloaded,
            users: 0,
            waiting: Vec::new(),
            wanted: None,
            is_asked: false,
            last_used: Duration::ZERO,
            idle,
        });
        Self {
            places,
            models: models.collect(),
            turn: 0,
            is_closing: false,
            is_forced: false,
        }
    }

    /// The state of a model.
    pub(super) fn phase(&self, index: usize) -> &Phase<L> {
        &self.models[index].phase
    }

    /// Number of requests that wait for a model.
    pub(super) fn waiting(&self, index: usize) -> usize {
        self.models[index].waiting.len()
    }

    /// When an unused model will be unloaded; `None` if it stays, or is in use.
    pub(super) fn expires(&self, index: usize) -> Option<Duration> {
        let model = &self.models[index];
        let is_idle = matches!(model.phase, Phase::Loaded(_)) && model.users == 0;
        if is_idle {
            Some(model.last_used.saturating_add(model.idle?))
        } else {
            None
        }
    }

    /// How long a model stays loaded without requests, from now on.
    pub(super) fn set_idle(&mut self, index: usize, idle: Idle) {
        self.models[index].idle = idle;
    }

    /// Begins a request if the model is loaded.
    pub(super) fn enter(&mut self, index: usize, now: Duration) -> Option<L> {
        let model = &mut self.models[index];
        let Phase::Loaded(loaded) = &model.phase else {
            return None;
        };
        model.users += 1;
        model.last_used = now;
        Some(loaded.clone())
    }

    /// Ends a request.
    pub(super) fn leave(&mut self, index: usize, now: Duration) {
        let model = &mut self.models[index];
        assert!(model.users > 0, "a request ends once");
        model.users -= 1;
        model.last_used = now;
    }

    /// Waits until the model is loaded. Gives the waiter back if the server is closing.
    pub(super) fn wait(
        &mut self,
        index: usize,
        waiter: W,
        deadline: Option<Duration>,
    ) -> Option<W> {
        if self.is_closing {
            return Some(waiter);
        }
        self.want(index);
        self.models[index]
            .waiting
            .push(Waiting { waiter, deadline });
        None
    }

    /// Has a model loaded, though nobody waits for it.
    pub(super) fn ask(&mut self, index: usize) {
        if !self.is_closing
            && !matches!(self.models[index].phase, Phase::Loaded(_) | Phase::Loading)
        {
            self.want(index);
            let model = &mut self.models[index];
            model.is_asked = true;
            // It is tried again, so whoever asks is not told of the last time.
            if matches!(model.phase, Phase::Failed(_)) {
                model.phase = Phase::Unloaded;
            }
        }
    }

    fn want(&mut self, index: usize) {
        self.models[index].wanted.get_or_insert_with(|| {
            self.turn += 1;
            self.turn
        });
    }

    /// Has a loaded model unloaded when its requests are done. Returns whether it is loaded.
    pub(super) fn unload(&mut self, index: usize) -> bool {
        let model = &mut self.models[index];
        let Phase::Loaded(loaded) = &model.phase else {
            return matches!(model.phase, Phase::Draining(_));
        };
        model.phase = Phase::Draining(loaded.clone());
        true
    }

    /// Forgets those who wait no more.
    pub(super) fn retain(&mut self, waits: impl Fn(&W) -> bool) {
        for model in &mut self.models {
            model.waiting.retain(|waiting| waits(&waiting.waiter));
            model.forget_unwanted();
        }
    }

    /// Loads nothing any more and unloads everything. Returns all who wait.
    pub(super) fn close(&mut self) -> Vec<(usize, W)> {
        self.is_closing = true;
        for index in 0..self.models.len() {
            self.unload(index);
        }
        self.take_all_waiting()
    }

    /// All who wait, with their models, which are wanted no more.
    pub(super) fn take_all_waiting(&mut self) -> Vec<(usize, W)> {
        let all = self.models.iter_mut().enumerate();
        all.flat_map(|(index, model)| {
            model
                .take_waiting()
                .into_iter()
                .map(move |waiter| (index, waiter))
        })
        .collect()
    }

    /// From now on, unloading waits for no request.
    pub(super) fn force(&mut self) {
        self.is_forced = true;
    }

    /// Whether nothing is loaded any more, nor being loaded or unloaded, and nothing ever will be.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closing && self.models.iter().all(|model| !model.holds_memory())
    }

    /// A model was loaded or could not be. Returns those who waited; for each of them, a request has begun if the model
    /// was loaded.
    pub(super) fn loaded(
        &mut self,
        index: usize,
        outcome: Result<L, String>,
        now: Duration,
    ) -> Vec<W> {
        let is_closing = self.is_closing;
        let model = &mut self.models[index];
        assert!(
            matches!(model.phase, Phase::Loading),
            "only what is loading is loaded"
        );
        let waiters = model.take_waiting();
        model.last_used = now;
        model.phase = match outcome {
            Err(reason) => Phase::Failed(reason),
            Ok(loaded) if is_closing => Phase::Draining(loaded),
            Ok(loaded) => {
                model.users += waiters.len();
                Phase::Loaded(loaded)
            }
        };
        waiters
    }

    /// A model was unloaded; an error says that its engine had failed.
    pub(super) fn unloaded(&mut self, index: usize, outcome: Result<(), String>) {
        let model = &mut self.models[index];
        assert!(
            matches!(model.phase, Phase::Unloading),
            "only what is unloading is unloaded"
        );
        model.phase = outcome.map_or_else(Phase::Failed, |()| Phase::Unloaded);
    }

    /// What is to be done now.
    pub(super) fn step(&mut self, now: Duration) -> Step<L, W> {
        let expired = self.expire(now);
        let mut tasks = self.load_wanted();
        let mut next = None;
        for (index, model) in self.models.iter_mut().enumerate() {
            let is_unused = model.users == 0;
            let idle = if is_unused { model.idle } else { None };
            let due = idle.map(|idle| model.last_used.saturating_add(idle));
            if let (Phase::Loaded(loaded), Some(due)) = (&model.phase, due) {
                if due <= now {
                    model.phase = Phase::Draining(loaded.clone());
                } else {
                    next = earlier(next, due);
                }
            }
            if let Phase::Draining(loaded) = &model.phase
                && (is_unused || self.is_forced)
            {
                tasks.push(Task::Unload(index, loaded.clone()));
                model.phase = Phase::Unloading;
            }
            next = model
                .waiting
                .iter()
                .filter_map(|waiting| waiting.deadline)
                .fold(next, earlier);
        }
        Step {
            tasks,
            expired,
            next,
        }
    }

    /// Takes out those whose time is over.
    fn expire(&mut self, now: Duration) -> Vec<(usize, W)> {
        let mut expired = Vec::new();
        for (index, model) in self.models.iter_mut().enumerate() {
            let is_over =
                |waiting: &Waiting<W>| waiting.deadline.is_some_and(|deadline| deadline <= now);
            if !model.waiting.iter().any(is_over) {
                continue;
            }
            let (over, waiting) = std::mem::take(&mut model.waiting)
                .into_iter()
                .partition(is_over);
            model.waiting = waiting;
            expired.extend(Vec::into_iter(over).map(|waiting: Waiting<W>| (index, waiting.waiter)));
            model.forget_unwanted();
        }
        expired
    }

    /// Loads what is wanted, in order, as far as there is room; else makes room for the first of each memory.
    fn load_wanted(&mut self) -> Vec<Task<L>> {
        let mut wanted: Vec<_> = (0..self.models.len())
            .filter(|&index| matches!(self.models[index].phase, Phase::Unloaded | Phase::Failed(_)))
            .collect();
        wanted.retain(|&index| self.models[index].wanted.is_some());
        wanted.sort_by_key(|&index| self.models[index].wanted);
        let mut is_full = vec![false; self.places.len()];
        let mut tasks = Vec::new();
        for index in wanted {
            let Need { place, bytes } = self.models[index].need;
            if is_full[place] {
                continue;
            }
            let held = self.held(place, Resident::holds_memory);
            if self.places[place].is_none_or(|room| held + bytes <= room) {
                let model = &mut self.models[index];
                (model.phase, model.wanted, model.is_asked) = (Phase::Loading, None, false);
                tasks.push(Task::Load(index));
            } else {
                // Whoever comes later does not overtake.
                is_full[place] = true;
                self.make_room(place, bytes);
            }
        }
        tasks
    }

    /// Lets the least recently used models go, as many as have to.
    fn make_room(&mut self, place: usize, bytes: u64) {
        let room = self.places[place].unwrap_or(u64::MAX).saturating_sub(bytes);
        loop {
            let staying = self.held(place, |model| {
                matches!(model.phase, Phase::Loading | Phase::Loaded(_))
            });
            if staying <= room {
                return;
            }
            let loaded = self.models.iter().enumerate().filter(|(_, model)| {
                model.need.place == place && matches!(model.phase, Phase::Loaded(_))
            });
            let least = loaded
                .min_by_key(|(_, model)| (model.users > 0, model.last_used))
                .map(|(index, _)| index);
            // What is loading now cannot go; the next step looks again.
            let Some(least) = least else { return };
            self.unload(least);
        }
    }

    fn held(&self, place: usize, counts: impl Fn(&Resident<L, W>) -> bool) -> u64 {
        let here = self
            .models
            .iter()
            .filter(|model| model.need.place == place && counts(model));
        here.map(|model| model.need.bytes).sum()
    }
}

impl<L, W> Resident<L, W> {
    fn holds_memory(&self) -> bool {
        !matches!(self.phase, Phase::Unloaded | Phase::Failed(_))
    }

    /// Everybody who waits; the model is wanted no more.
    fn take_waiting(&mut self) -> Vec<W> {
        (self.wanted, self.is_asked) = (None, false);
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|waiting| waiting.waiter)
            .collect()
    }

    fn forget_unwanted(&mut self) {
        if self.waiting.is_empty() && !self.is_asked {
            self.wanted = None;
        }
    }
}

fn earlier(next: Option<Duration>, due: Duration) -> Option<Duration> {
    Some(next.map_or(due, |next| next.min(due)))
}

#[cfg(test)]
mod tests;
