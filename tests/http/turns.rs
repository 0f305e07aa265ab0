//! Engines of several models on one device: they take turns, step by step.

use crate::harness::{COMPLETIONS, config, post, send, with};
use crate::models::{Log, Several, of, source_of};
use bytes::Bytes;
use folio::backend::fake::{self, FakeBackend};
use folio::backend::{Backend, BackendError, BlockRef, Capacity, Caps, GivenTimes};
use folio::config::Config;
use folio::engine;
use folio::model::Model;
use folio::plan::inputs::{BatchInputs, Results};
use folio::plan::{Plan, WeightId};
use folio::platform::block_on;
use folio::server::{FleetOptions, ModelSource};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The models whose steps were submitted, in order.
type Steps = Arc<Mutex<Vec<&'static str>>>;

/// A fake device that notes the steps of its model.
struct Noted {
    device: FakeBackend,
    name: &'static str,
    steps: Steps,
}

impl Backend for Noted {
    type Ticket = fake::Ticket;
    type Saves = fake::Saves;

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.device.load(plan, capacity)
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        self.device.write_weight(weight, first_row, rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.device.allocate_pool(blocks)
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<fake::Ticket, BackendError> {
        self.steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.name);
        self.device.submit(inputs)
    }

    async fn read(&mut self, ticket: fake::Ticket) -> Result<Results, BackendError> {
        self.device.read(ticket).await
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<fake::Saves, BackendError> {
        self.device.save_blocks(blocks)
    }

    async fn saved_blocks(&mut self, saves: fake::Saves) -> Result<Vec<Bytes>, BackendError> {
        self.device.saved_blocks(saves).await
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        self.device.restore_blocks(blocks)
    }

    fn given_times(&self) -> Option<GivenTimes> {
        self.device.given_times()
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.device.reset().await
    }
}

/// A model whose steps take four milliseconds, and at most 32 tokens of a prompt each.
fn noted(log: &Arc<Log>, steps: &Steps, name: &'static str) -> ModelSource {
    let steps = steps.clone();
    source_of(log, name, 1, move |inbox| {
        let steps = steps.clone();
        let script = "pause=4".parse().expect("a script");
        let open = move || {
            Ok(Noted {
                device: FakeBackend::new(script),
                name,
                steps,
            })
        };
        let config = Config {
            max_num_batched_tokens: 32,
            max_num_seqs: 8,
            ..config()
        };
        Ok(engine::spawn(open, Model::demo(), config, inbox, |_| {}))
    })
}

#[test]
fn engines_on_one_device_take_turns() {
    const STEP: Duration = Duration::from_millis(4);
    let log = Arc::<Log>::default();
    let sources = ["a", "b"]
        .map(|name| noted(&log, &Arc::default(), name))
        .into();
    let server = Several::of(
        sources,
        &FleetOptions {
            places: vec![None],
            load_timeout: None,
        },
        log.clone(),
    );
    let stream = |model: &str, tokens: u32| {
        let more = json!({"stream": true, "ignore_eos": true, "max_tokens": tokens});
        let mut open = server.open(&with(&of(model), &more));
        while !open.text.contains("content\":\"") {
            assert!(open.more());
        }
        open
    };
    let steps = |model: &str| -> u32 {
        let text = server.get("/metrics").text;
        let line = format!("vllm:engine_steps_total{{engine=\"0\",model_name=\"{model}\"}} ");
        let count = text
            .lines()
            .find_map(|line_of| line_of.strip_prefix(&line))
            .expect("it is counted");
        count.parse().expect("a number")
    };
    let long = stream("a", 2000);
    let short = stream("b", 40);
    let (started, before) = (Instant::now(), [steps("a"), steps("b")]);
    assert!(short.rest().contains("\"finish_reason\":\"length\""));
    let (took, after) = (started.elapsed(), [steps("a"), steps("b")]);
    let [of_a, of_b] = [0, 1].map(|index| after[index] - before[index]);
    assert!(
        of_b > 20 && of_a <= 2 * of_b + 4 && of_b <= 2 * of_a + 4,
        "{of_a} and {of_b} steps"
    );
    assert!(
        took >= STEP * (of_a + of_b) * 3 / 4,
        "{of_a} and {of_b} steps of 4 ms one after the other in {took:?}"
    );
    drop(long);
}

/// Engines that wait for a processor are late to join the line, so a tenth of the pauses may be longer.
#[test]
fn a_long_prompt_of_one_model_delays_the_streams_of_another_by_two_steps() {
    const PROMPT: u32 = 1900;
    let (log, steps) = (Arc::<Log>::default(), Steps::default());
    let sources = ["a", "b"].map(|name| noted(&log, &steps, name)).into();
    let server = Several::of(
        sources,
        &FleetOptions {
            places: vec![None],
            load_timeout: None,
        },
        log,
    );
    let prompt: Vec<u32> = (0..PROMPT).map(|index| 5 + index * 7 % 4000).collect();
    let prompt = json!({"model": "a", "prompt": prompt, "max_tokens": 1});
    // So that loading it takes no part.
    block_on(send(
        &server.app,
        post(COMPLETIONS, &with(&prompt, &json!({"prompt": [5]}))),
    ));
    let mut stream = server.open(&with(
        &of("b"),
        &json!({"stream": true, "ignore_eos": true, "max_tokens": 1000}),
    ));
    while !stream.text.contains("content\":\"") {
        assert!(stream.more());
    }
    steps.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let answer = block_on(send(&server.app, post(COMPLETIONS, &prompt)));
    assert_eq!(
        answer.json()["usage"]["prompt_tokens"],
        PROMPT,
        "{}",
        answer.text
    );
    let steps = std::mem::take(&mut *steps.lock().unwrap_or_else(PoisonError::into_inner));
    drop(stream);
    let last = steps
        .iter()
        .rposition(|name| *name == "a")
        .expect("it was computed");
    let between: Vec<_> = steps[..=last]
        .split(|name| *name == "b")
        .map(<[_]>::len)
        .collect();
    let count: usize = between.iter().sum();
    assert!(count >= PROMPT as usize / 32, "{count} steps");
    let long = between.iter().filter(|steps| **steps > 2).count();
    let longest = between.iter().max().copied().unwrap_or(0);
    assert!(
        long <= between.len() / 10 && longest <= count / 4,
        "steps between two tokens: {between:?}"
    );
}
