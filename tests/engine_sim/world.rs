//! A seeded environment for the engine: a plan without arithmetic, a device that checks its engine, requests that share
//! prefixes, receivers that are dropped, and a simple oracle that computes every token.

mod cases;

pub(crate) use cases::case;

use crate::adapters::matrix;
use crate::watched::{Watched, watch};
use crate::{beams, images, rules, speculation};
use folio::backend::BackendError;
use folio::backend::fake::{self, FakeBackend, PlainHistory, Script};
use folio::config::Config;
use folio::engine::disk::{Disk, Form};
use folio::engine::handle::{EngineHandle, EventReceiver, Stats, channel};
use folio::engine::request::{
    CACHE_SALT_LEN_MAX, Cached, Event, FinishReason, Pooling, PromptEvent, Request, RequestError,
    SamplingParams, Token, Usage,
};
use folio::engine::scheduler::{Phase, Scheduler};
use folio::engine::sequence::StreamId;
use folio::engine::{Engine, EngineEnd, Extras, Others, Source};
use folio::model::{LoadError, UploadError};
use folio::plan::inputs::{BiasEntry, DrawParams, HistoryEntry, SampleRow};
use folio::plan::{
    AdapterSlots, KvFormat, KvGroup, KvLayer, Plan, StateLayer, Storage, WeightFormat, WeightId,
    Window,
};
use folio::platform::block_on;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum turns of a run; a longer run counts as a hang.
const TURNS_MAX: u32 = 4000;
/// Bytes of a block of one KV group of [`plan`] with four slots.
pub(crate) const BLOCK_BYTES: u64 = 256;

/// SplitMix64, the only source of randomness.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % u64::from(limit)) as u32
    }

    pub(crate) fn within(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// True once in `count` times.
    pub(crate) fn once_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }
}

/// A model with only KV groups, a state if it keeps one, and end tokens.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) windows: Vec<Option<Window>>,
    pub(crate) vocab: u32,
    pub(crate) eos_token_ids: Vec<u32>,
    pub(crate) model_len: u32,
    /// Whether a layer keeps a state per sequence.
    pub(crate) keeps_states: bool,
    /// Slots for adapters.
    pub(crate) adapter_slots: u32,
    /// Whether layers that predict further tokens were asked for.
    pub(crate) predicts: bool,
    pub(crate) role: Role,
}

/// What a model does with images.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Role {
    #[default]
    Text,
    /// Has so many rows of them.
    ReadsImages(u32),
    /// Turns so many of their patches in a step into rows.
    Tower(u32),
}

impl Shape {
    /// What rows of this model see in a request.
    pub(crate) fn plain_history(&self, request: &Request) -> PlainHistory {
        let mut plain = PlainHistory::new(&self.windows);
        if self.keeps_states {
            plain = plain.with_state();
        }
        match &request.adapter {
            Some(content) => plain.with_adapter(matrix(content.digest)),
            None => plain,
        }
    }
}

impl Case {
    /// Whether the row of a token at a position is valid. From the script's token on, rows are not: each sees the one
    /// before it, unless it sees nothing before it, as the first of a chunk.
    pub(crate) fn stays_valid(&self, was_valid: bool, position: u32, id: u32) -> bool {
        let shape = &self.shape;
        let sees_itself = |window: &Option<Window>| {
            window.is_some_and(|window| window.first_visible(position) == position)
        };
        let starts_anew = !shape.keeps_states && shape.windows.iter().all(sees_itself);
        (was_valid || starts_anew) && self.script.nan != Some(id)
    }
}

/// A plan with slots for adapters, each with one matrix of eight bytes.
fn with_adapter_slots(plain: Plan, slots: u32) -> Plan {
    let count = slots + 1;
    let mut plan = plain.clone();
    let matrix = plan.weight("adapters", count, 2, WeightFormat::F32);
    plan.stack_experts(matrix, count);
    plan.adapters = Some(AdapterSlots {
        count,
        unused: Arc::new(plain),
    });
    plan
}

impl Source for Shape {
    fn add_predictor(&mut self) -> Result<bool, LoadError> {
        self.predicts = true;
        Ok(true)
    }

    fn reserve_image_rows(&mut self, rows: u32) {
        self.role = Role::ReadsImages(rows);
    }

    fn reserve_patches(&mut self, patches: u32) {
        self.role = Role::Tower(patches);
    }

    fn tile_patches(&self, rows: u32) -> Option<u32> {
        matches!(self.role, Role::Tower(_)).then(|| images::TILE.min(rows * images::RUN))
    }

    fn record(&self, _: Storage) -> Plan {
        if let Role::Tower(patches) = self.role {
            return images::tower(patches);
        }
        let groups = self
            .windows
            .iter()
            .map(|&window| KvGroup { window })
            .collect();
        let layer = |group| KvLayer {
            group,
            heads: 1,
            head_dim: 8,
            latent: false,
        };
        let mut plan = Plan {
            kv_groups: groups,
            kv_layers: (0..self.windows.len() as u32).map(layer).collect(),
            state_layers: if self.keeps_states {
                vec![StateLayer { elements: 8 }]
            } else {
                Vec::new()
            },
            vocab: self.vocab,
            positions_max: self.model_len,
            ..Plan::default()
        };
        if let Role::ReadsImages(rows) = self.role {
            images::add_rows(&mut plan, rows);
        }
        let plan = Plan {
            predictor: self.predicts.then(|| {
                Arc::new(Plan {
                    state_layers: Vec::new(),
                    ..plan.clone()
                })
            }),
            ..plan
        };
        match self.adapter_slots {
            0 => plan,
            slots => with_adapter_slots(plan, slots),
        }
    }

    fn identity(&self) -> [u8; 32] {
        *blake3::hash(format!("{self:?}").as_bytes()).as_bytes()
    }

    fn eos_token_ids(&self) -> Vec<u32> {
        self.eos_token_ids.clone()
    }

    async fn upload(
        &self,
        _: &Plan,
        _: &mut dyn FnMut(WeightId, u32, bytes::Bytes) -> Result<(), BackendError>,
    ) -> Result<(), UploadError<BackendError>> {
        Ok(())
    }
}

/// A request, when it arrives, and when the receivers of its choices are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) turn: u32,
    pub(crate) request: Request,
    pub(crate) aborts: Vec<Option<u32>>,
}

/// All inputs of one run.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) config: Config,
    pub(crate) script: Script,
    /// The draft model and its device, if drafts come from one.
    pub(crate) draft: Option<(Shape, Script)>,
    /// Whether a tower reads images for the model.
    pub(crate) reads_images: bool,
    pub(crate) host_rows_every: u64,
    pub(crate) arrivals: Vec<Arrival>,
}

impl Case {
    /// Number of blocks of each KV group.
    pub(crate) fn blocks(&self) -> u32 {
        let bytes = self.config.kv_cache_bytes.expect("the case sets it") / BLOCK_BYTES;
        let layers = self.shape.windows.len()
            + self
                .draft
                .as_ref()
                .map_or(0, |(shape, _)| shape.windows.len());
        (bytes / layers as u64) as u32
    }
}

/// How one choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Aborted,
    Finished(FinishReason, Usage),
    Failed(RequestError),
}

/// What one choice's receiver got.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// Numbers reported for the prompt: logprobs of its tokens, or its embedding.
    pub(crate) told: Vec<f32>,
    pub(crate) tokens: Vec<u32>,
    /// Numbers reported for its tokens: logprobs, with those of the most likely alternatives.
    pub(crate) logprobs: Vec<f32>,
    pub(crate) end: End,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What the receivers got, by request and choice.
    pub(crate) seen: Vec<Vec<Seen>>,
    pub(crate) aborted_in: BTreeMap<Phase, u32>,
    pub(crate) stats: Stats,
    pub(crate) result: Result<(), EngineEnd>,
    /// Maximum turns between two tokens of a choice.
    pub(crate) gap_max: u32,
    /// Turn of each request's first token.
    pub(crate) first_turns: BTreeMap<usize, u32>,
    /// Number of tokens that the device computed.
    pub(crate) computed: u64,
}

/// Submits, steps, reads and aborts until everything is done.
pub(crate) fn run(case: &Case) -> Outcome {
    run_with(case, |_| None)
}

/// [`run`] with a disk.
pub(crate) fn run_with(case: &Case, disk: impl FnOnce(&Form) -> Option<Box<dyn Disk>>) -> Outcome {
    let (handle, inbox) = channel(case.config.queue_requests_max);
    let device = |script: &Script| Watched::new(FakeBackend::new(script.clone()));
    let draft = case
        .draft
        .as_ref()
        .map(|(shape, script)| (device(script), shape.clone()));
    let tower = case.reads_images.then(|| {
        let shape = Shape {
            role: Role::Tower(0),
            ..case.shape.clone()
        };
        (device(&Script::default()), shape)
    });
    let extras = Extras {
        others: Others { draft, tower },
        host_rows_every: case.host_rows_every,
        open_disk: |form: &Form| Ok(disk(form)),
    };
    let start = Engine::start_with(
        device(&case.script),
        case.shape.clone(),
        extras,
        &case.config,
        inbox,
        |_| {},
    );
    let mut engine = block_on(start).expect("the case's pool holds its model");
    let mut readers = Readers::new(case);
    for turn in 0.. {
        assert!(turn < TURNS_MAX, "the run hangs");
        readers.submit(turn, case, &handle);
        let (scheduler, _) = engine.parts();
        readers.abort(turn, case, scheduler);
        if let Err(end) = block_on(engine.step()) {
            let computed = engine.parts().1.computed;
            drop(engine);
            readers.read(turn);
            return Outcome {
                computed,
                ..readers.finish(&handle, Err(end))
            };
        }
        let (scheduler, device) = engine.parts();
        watch(scheduler, device);
        let idle = scheduler.is_idle();
        readers.read(turn);
        if idle && readers.all_came(case) {
            check_whole(scheduler, &handle);
            break;
        }
    }
    let computed = engine.parts().1.computed;
    Outcome {
        computed,
        ..readers.finish(&handle, Ok(()))
    }
}

/// An idle engine holds nothing.
fn check_whole(scheduler: &Scheduler, handle: &EngineHandle) {
    for group in scheduler.pool().groups() {
        assert_eq!(group.referenced(), 0, "an idle engine holds no block");
        assert_eq!(
            group.available(),
            group.total(),
            "an idle engine reserves no block"
        );
    }
    assert_eq!(
        scheduler.states().referenced(),
        0,
        "an idle engine holds no state"
    );
    let stats = handle.stats();
    assert_eq!(
        (stats.requests_running, stats.requests_waiting),
        (0, 0),
        "an idle engine has no requests"
    );
    assert_eq!(stats.blocks_used, 0, "an idle engine reports no block");
}

/// What one choice's receiver got so far.
#[derive(Clone, Default)]
struct Sight {
    told: Vec<f32>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    end: Option<End>,
}

struct Readers {
    /// Receivers by arrived request and choice.
    receivers: Vec<Vec<Option<EventReceiver>>>,
    seen: Vec<Vec<Sight>>,
    first_stream: Vec<u64>,
    streams: u64,
    aborted_in: BTreeMap<Phase, u32>,
    token_turns: BTreeMap<(usize, usize), u32>,
    first_turns: BTreeMap<usize, u32>,
    gap_max: u32,
}

impl Readers {
    fn new(case: &Case) -> Self {
        let seen = |arrival: &Arrival| vec![Sight::default(); arrival.request.params.n as usize];
        Self {
            receivers: Vec::new(),
            seen: case.arrivals.iter().map(seen).collect(),
            first_stream: Vec::new(),
            streams: 0,
            aborted_in: BTreeMap::new(),
            token_turns: BTreeMap::new(),
            first_turns: BTreeMap::new(),
            gap_max: 0,
        }
    }

    fn submit(&mut self, turn: u32, case: &Case, handle: &EngineHandle) {
        while let Some(arrival) = case
            .arrivals
            .get(self.receivers.len())
            .filter(|arrival| arrival.turn <= turn)
        {
            let receivers = handle
                .submit(arrival.request.clone())
                .expect("the case's requests are valid");
            self.receivers
                .push(receivers.into_iter().map(Some).collect());
            self.first_stream.push(self.streams);
            self.streams += u64::from(arrival.request.params.n);
        }
    }

    fn abort(&mut self, turn: u32, case: &Case, scheduler: &Scheduler) {
        for (index, receivers) in self.receivers.iter_mut().enumerate() {
            for (choice, receiver) in receivers.iter_mut().enumerate() {
                let due = case.arrivals[index].aborts[choice].is_some_and(|due| due <= turn);
                if due && receiver.take().is_some() {
                    let phase = scheduler.phase(StreamId(self.first_stream[index] + choice as u64));
                    let has_tokens = !self.seen[index][choice].tokens.is_empty();
                    assert!(
                        phase != Some(Phase::Prefill) || !has_tokens,
                        "an answer begins after its prompt"
                    );
                    assert!(
                        phase != Some(Phase::Queued) || scheduler.waiting_len() > 0,
                        "queued ones are counted"
                    );
                    *self
                        .aborted_in
                        .entry(phase.unwrap_or(Phase::Queued))
                        .or_default() += 1;
                    self.seen[index][choice].end = Some(End::Aborted);
                }
            }
        }
    }

    /// Reads all available events. Nothing may follow a terminal event.
    fn read(&mut self, turn: u32) {
        for (index, (receivers, seen)) in self.receivers.iter_mut().zip(&mut self.seen).enumerate()
        {
            for (
                choice,
                (
                    cell,
                    Sight {
                        told,
                        tokens,
                        logprobs,
                        end,
                    },
                ),
            ) in receivers.iter_mut().zip(seen).enumerate()
            {
                let Some(receiver) = cell else { continue };
                while let Ok(event) = receiver.try_recv() {
                    assert!(end.is_none(), "nothing follows a terminal event");
                    match event {
                        Event::Prompt(fact) => {
                            assert!(tokens.is_empty(), "prompt events come before tokens");
                            match fact {
                                PromptEvent::Admitted { .. }
                                | PromptEvent::Progress(_)
                                | PromptEvent::Prefix(_) => {}
                                PromptEvent::Logprobs(tokens) => {
                                    told.extend(tokens.iter().flat_map(numbers));
                                }
                                PromptEvent::Embedding(vector) => told.extend(vector),
                            }
                        }
                        Event::Token(token) => {
                            tokens.push(token.id);
                            logprobs.extend(numbers(&token));
                            self.first_turns.entry(index).or_insert(turn);
                            let before = self
                                .token_turns
                                .insert((index, choice), turn)
                                .unwrap_or(turn);
                            self.gap_max = self.gap_max.max(turn - before);
                        }
                        Event::Finished { reason, usage } => {
                            *end = Some(End::Finished(reason, usage));
                        }
                        Event::Failed(error) => *end = Some(End::Failed(error)),
                    }
                }
                if end.is_some() {
                    *cell = None;
                }
            }
        }
    }

    fn all_came(&self, case: &Case) -> bool {
        self.receivers.len() == case.arrivals.len()
    }

    fn finish(self, handle: &EngineHandle, result: Result<(), EngineEnd>) -> Outcome {
        let came = self.receivers.len();
        let seen = self.seen.into_iter().take(came).map(|choices| {
            let seen = |Sight {
                            told,
                            tokens,
                            logprobs,
                            end,
                        }: Sight| {
                let end = end.expect("every choice ends");
                Seen {
                    told,
                    tokens,
                    logprobs,
                    end,
                }
            };
            choices.into_iter().map(seen).collect()
        });
        let seen = seen.collect();
        Outcome {
            seen,
            aborted_in: self.aborted_in,
            stats: handle.stats(),
            result,
            gap_max: self.gap_max,
            first_turns: self.first_turns,
            computed: 0,
        }
    }
}

/// The numbers reported with a token, in order.
fn numbers(token: &Token) -> Vec<f32> {
    let top = token
        .top_logprobs
        .iter()
        .flat_map(|top| [top.token_id as f32, top.logprob]);
    token.logprob.into_iter().chain(top).collect()
}

/// The numbers that a token should be reported with, if its row asks for `count` alternatives.
fn wanted_numbers(case: &Case, history: u64, token_id: u32, count: Option<u32>) -> Vec<f32> {
    let Some(count) = count else {
        return Vec::new();
    };
    let top = fake::likely(history, token_id, count, case.shape.vocab);
    let own = -0.5 - fake::scored_rank(history, token_id) as f32;
    std::iter::once(own)
        .chain(
            top.into_iter()
                .flat_map(|(id, logprob)| [id as f32, logprob]),
        )
        .collect()
}

/// What a choice should get, computed from its list of tokens.
pub(crate) fn expected(case: &Case, request: &Request, choice: u32) -> Seen {
    let params = &request.params;
    if params.beams.is_some() {
        return beams::search(case, request)
            .seen
            .swap_remove(choice as usize);
    }
    let prompt_len = request.prompt.len() as u32;
    let limit = prompt_len
        .saturating_add(params.max_tokens.unwrap_or(u32::MAX))
        .min(case.shape.model_len);
    let (mut tokens, mut logprobs) = (request.prompt.to_vec(), Vec::new());
    let mut plain = case.shape.plain_history(request);
    let mut is_valid = true;
    let mut history_with = |id: u32| {
        is_valid = case.stays_valid(is_valid, plain.position(), id);
        let history = plain.push(id);
        is_valid.then_some(history)
    };
    let seen = images::seen_by_device(request).into_iter();
    let of_prompt: Vec<_> = seen.map(&mut history_with).collect();
    let mut last = of_prompt[of_prompt.len() - 1];
    let (told, sound) = told(case, request, &of_prompt);
    let mut state = params
        .constraint
        .as_ref()
        .map(|constraint| constraint.0.start());
    // Forced tokens are not drawn, so their logits are not used, unless their logprobs are to be reported.
    let mut forced = VecDeque::new();
    let end = loop {
        if !sound {
            break End::Failed(RequestError::NumericalError);
        }
        if request.pooling.is_some() {
            let usage = Usage {
                prompt_tokens: prompt_len,
                ..Usage::default()
            };
            break End::Finished(FinishReason::Stop, usage);
        }
        let mut mask = vec![0; case.shape.vocab.div_ceil(32) as usize];
        let is_masked = state
            .as_mut()
            .is_some_and(|state| state.fill_mask(&mut mask).expect("masks are cheap here"));
        if is_masked && mask.iter().all(|&word| word == 0) {
            break End::Failed(RequestError::Grammar);
        }
        let (id, is_drawn) = match (forced.pop_front(), last) {
            (Some(id), _) => (id, false),
            (None, None) => break End::Failed(RequestError::NumericalError),
            (None, Some(history)) => {
                let id = draw(
                    case,
                    params,
                    choice,
                    &tokens,
                    prompt_len,
                    history,
                    is_masked.then_some(&mask[..]),
                );
                logprobs.extend(wanted_numbers(case, history, id, params.logprobs));
                (id, true)
            }
        };
        tokens.push(id);
        last = history_with(id);
        let is_complete = state
            .as_mut()
            .is_some_and(|state| state.accept(id).expect("the token is allowed"));
        if let Some(state) = state
            .as_mut()
            .filter(|_| is_drawn && params.logprobs.is_none())
        {
            forced.extend(state.forced());
        }
        let is_eos = !params.ignore_eos && case.shape.eos_token_ids.contains(&id);
        let is_stop = is_complete || is_eos || params.stop_token_ids.contains(&id);
        if is_stop || tokens.len() as u32 == limit {
            let reason = if is_stop {
                FinishReason::Stop
            } else {
                FinishReason::Length
            };
            let completion_tokens = tokens.len() as u32 - prompt_len;
            break End::Finished(
                reason,
                Usage {
                    prompt_tokens: prompt_len,
                    completion_tokens,
                    ..Usage::default()
                },
            );
        }
    };
    Seen {
        told,
        tokens: tokens.split_off(prompt_len as usize),
        logprobs,
        end,
    }
}

/// The numbers reported for a prompt, up to the first invalid one, and whether all are valid; `histories` are those of
/// its tokens.
pub(crate) fn told(case: &Case, request: &Request, histories: &[Option<u64>]) -> (Vec<f32>, bool) {
    let prompt = &request.prompt;
    let valid = |from: usize, to: usize| histories[from..to].iter().map_while(|&history| history);
    if request.params.prompt_logprobs.is_some() {
        let histories: Vec<_> = valid(0, prompt.len() - 1).collect();
        let count = request.params.prompt_logprobs;
        let numbers = |(&history, &id): (&u64, &u32)| wanted_numbers(case, history, id, count);
        let told = histories
            .iter()
            .zip(&prompt[1..])
            .flat_map(numbers)
            .collect();
        return (told, histories.len() == prompt.len() - 1);
    }
    let Some(pooling) = request.pooling else {
        return (Vec::new(), true);
    };
    let from = if pooling == Pooling::Last {
        prompt.len() - 1
    } else {
        0
    };
    let states: Vec<_> = valid(from, prompt.len()).map(fake::hidden).collect();
    if states.len() < prompt.len() - from {
        return (Vec::new(), false);
    }
    let column = |column: usize| {
        states
            .iter()
            .map(|state| f64::from(state[column]))
            .sum::<f64>()
            / states.len() as f64
    };
    (
        (0..fake::POOLED_COLUMNS)
            .map(|index| column(index) as f32)
            .collect(),
        true,
    )
}

fn draw(
    case: &Case,
    params: &SamplingParams,
    choice: u32,
    tokens: &[u32],
    prompt_len: u32,
    history: u64,
    mask: Option<&[u32]>,
) -> u32 {
    let mut counts = BTreeMap::new();
    let window = params.penalty_window;
    let begin = window.map_or(0, |window| tokens.len().saturating_sub(window as usize));
    for (index, &id) in tokens.iter().enumerate().skip(begin) {
        let is_prompt = window.is_none() && index < prompt_len as usize;
        if !is_prompt || params.draw.repetition_penalty != 1.0 {
            *counts.entry(id).or_insert(0) += u32::from(!is_prompt);
        }
    }
    let past: Vec<_> = counts
        .into_iter()
        .map(|(token_id, generated)| HistoryEntry {
            token_id,
            generated,
        })
        .collect();
    let bias = biases(case, params, tokens.len() as u32 - prompt_len);
    let row = SampleRow {
        seed: params.seed.expect("the case's requests have seeds"),
        choice,
        draw: params.draw,
        ..SampleRow::greedy(0, tokens.len() as u32)
    };
    fake::next_token(history, &row, &past, None, &bias, mask, case.shape.vocab)
        .expect("a mask that allows something")
}

/// A request's own biases; before `min_tokens` are generated, what would end the choice is held back instead.
fn biases(case: &Case, params: &SamplingParams, generated: u32) -> Vec<BiasEntry> {
    let mut biases = params.logit_bias.clone();
    if generated < params.min_tokens {
        let eos = case
            .shape
            .eos_token_ids
            .iter()
            .filter(|_| !params.ignore_eos);
        biases.extend(
            params
                .stop_token_ids
                .iter()
                .chain(eos)
                .map(|&id| (id, f32::MIN)),
        );
    }
    biases
        .into_iter()
        .map(|(token_id, bias)| BiasEntry { token_id, bias })
        .collect()
}

/// Compares what every receiver got with the oracle.
pub(crate) fn check(case: &Case, outcome: &Outcome) {
    compare(case, outcome, |index, choice| {
        expected(case, &case.arrivals[index].request, choice as u32)
    });
    for (index, seen) in outcome
        .seen
        .iter()
        .enumerate()
        .flat_map(|(index, choices)| choices.iter().map(move |seen| (index, seen)))
    {
        let End::Finished(_, usage) = &seen.end else {
            continue;
        };
        let shareable = shareable_tokens(case, index);
        assert!(
            usage.cached.all <= shareable,
            "request {index}: {} cached, {shareable} shareable",
            usage.cached.all
        );
    }
}

/// Compares what every receiver got with `wanted`, by request and choice. Requests hit by a scripted refusal may end
/// early, but what they got must be correct.
pub(crate) fn compare(case: &Case, outcome: &Outcome, wanted: impl Fn(usize, usize) -> Seen) {
    let refusals = !case.script.invalid.is_empty() || !case.script.failed.is_empty();
    for (index, choices) in outcome.seen.iter().enumerate() {
        for (choice, seen) in choices.iter().enumerate() {
            let wanted = wanted(index, choice);
            let name = format!("request {index}, choice {choice}");
            let partial = match &seen.end {
                End::Aborted => true,
                End::Failed(RequestError::Internal) => refusals,
                End::Failed(RequestError::DeviceLost) => outcome.result.is_err(),
                _ => false,
            };
            if partial {
                assert!(
                    wanted.tokens.starts_with(&seen.tokens),
                    "{name}: its tokens before the end are correct"
                );
                assert!(
                    wanted.logprobs.starts_with(&seen.logprobs),
                    "{name}: its logprobs before the end are correct"
                );
                assert!(
                    wanted.told.starts_with(&seen.told),
                    "{name}: its prompt numbers before the end are correct"
                );
                continue;
            }
            assert_eq!(seen.tokens, wanted.tokens, "{name}: tokens");
            assert_eq!(seen.logprobs, wanted.logprobs, "{name}: logprobs");
            // A step that fails does not report its valid rows.
            let whole = wanted.end != End::Failed(RequestError::NumericalError);
            let right = if whole {
                wanted.told == seen.told
            } else {
                wanted.told.starts_with(&seen.told)
            };
            assert!(right, "{name}: told {:?}, not {:?}", seen.told, wanted.told);
            assert_eq!(
                without_hits(&seen.end),
                without_hits(&wanted.end),
                "{name}: end"
            );
        }
    }
}

/// An end without the number of cached tokens, which may depend on other requests.
fn without_hits(end: &End) -> End {
    match end {
        End::Finished(reason, usage) => End::Finished(
            *reason,
            Usage {
                cached: Cached::default(),
                ..*usage
            },
        ),
        other => other.clone(),
    }
}

/// Number of a prompt's tokens that another request with the same owner and salt shares, in whole blocks and without
/// the last token.
fn shareable_tokens(case: &Case, index: usize) -> u32 {
    let request = &case.arrivals[index].request;
    if !case.config.prefix_caching {
        return 0;
    }
    let others = case
        .arrivals
        .iter()
        .enumerate()
        .filter(|&(other, _)| other != index);
    let whose = |request: &Request| (request.cache_owner, request.cache_salt.clone());
    let same = others.filter(|(_, other)| whose(&other.request) == whose(request));
    let own = images::seen_by_device(request);
    let common = same.flat_map(|(_, other)| {
        let answers: Vec<_> = match other.request.params.beams {
            Some(_) => beams::search(case, &other.request).explored,
            None => (0..other.request.params.n)
                .map(|choice| expected(case, &other.request, choice).tokens)
                .collect(),
        };
        answers.into_iter().chain([Vec::new()]).map(|answer| {
            let tokens = [images::seen_by_device(&other.request), answer].concat();
            tokens
                .iter()
                .zip(&own)
                .take_while(|(left, right)| left == right)
                .count() as u32
        })
    });
    let size = case.config.block_size;
    common
        .max()
        .unwrap_or(0)
        .min(request.prompt.len() as u32 - 1)
        / size
        * size
}
