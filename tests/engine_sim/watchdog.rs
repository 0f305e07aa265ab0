//! A whole engine before a GPU with a watchdog, on a simulated clock: the work is that of an 8B model, the device
//! computes nothing. What cuts submissions, and what asks for shorter chunks, is the throttle of the wgpu backend.

use crate::faults::request;
use folio::backend::BackendError;
use folio::backend::fake::FakeBackend;
use folio::config::{Config, Speculation, SpeculationMethod};
use folio::engine::handle::channel;
use folio::engine::request::Event;
use folio::engine::{Engine, Others, Source};
use folio::model::{Model, ModelSpec, UploadError};
use folio::plan::{Plan, Storage, WeightId};
use folio::platform::block_on;

/// The plan of a model, without its weights.
struct Planned(Plan);

impl Planned {
    fn new(positions_max: u32) -> Self {
        let spec = ModelSpec::named("llama-3-8b").expect("a known shape");
        let plan = Model::random(spec, 0).record(Storage::F32);
        Self(Plan {
            positions_max,
            ..plan
        })
    }
}

impl Source for Planned {
    fn record(&self, _: Storage) -> Plan {
        self.0.clone()
    }

    fn identity(&self) -> [u8; 32] {
        [0; 32]
    }

    fn eos_token_ids(&self) -> Vec<u32> {
        Vec::new()
    }

    async fn upload(
        &self,
        _: &Plan,
        _: &mut dyn FnMut(WeightId, u32, bytes::Bytes) -> Result<(), BackendError>,
    ) -> Result<(), UploadError<BackendError>> {
        Ok(())
    }
}

/// A run on the simulated clock.
struct Run {
    /// Seconds from the first request to the end of the last.
    seconds: f64,
    /// Seconds of the longest submission.
    longest: f64,
    /// How often the device was lost.
    losses: u64,
}

/// Serves prompts of these lengths at once, with `tokens` tokens each.
fn serve(script: &str, prompts: &[u32], tokens: u32) -> Run {
    let context = prompts.iter().max().expect("there are prompts") + tokens + 1;
    let all: u32 = prompts.iter().map(|prompt| prompt + tokens).sum();
    let config = Config {
        max_num_seqs: 8,
        max_model_len: Some(context),
        kv_cache_bytes: Some(u64::from(all + 1024) * 131_072),
        seed: Some(1),
        ..Config::default()
    };
    let (handle, inbox) = channel(config.queue_requests_max);
    let device = FakeBackend::new(script.parse().expect("a script of this test"));
    let start = Engine::start(device, Planned::new(context), &config, inbox, |_| {});
    let mut engine = block_on(start).expect("the model fits");
    let begin = engine.parts().1.simulated_seconds();
    let mut first = 0;
    let mut receivers: Vec<_> = Vec::new();
    for &prompt in prompts {
        receivers.extend(
            handle
                .submit(request(first, prompt, tokens))
                .expect("the request is valid"),
        );
        first += prompt;
    }
    loop {
        block_on(engine.step()).unwrap_or_else(|end| panic!("{script}: {end}"));
        if engine.parts().0.is_idle() {
            break;
        }
    }
    for mut receiver in receivers {
        let events = std::iter::from_fn(|| receiver.try_recv().ok());
        let last = events.last();
        assert!(
            matches!(last, Some(Event::Finished { .. })),
            "{script}: {last:?}"
        );
    }
    let device = engine.parts().1;
    let (seconds, longest) = (
        device.simulated_seconds() - begin,
        device.longest_submission(),
    );
    Run {
        seconds,
        longest,
        losses: handle.stats().recoveries,
    }
}

/// At every speed no submission comes near the limit of a watchdog, and little time is lost to cutting.
#[test]
fn no_speed_trips_a_watchdog() {
    // Speeds in 10⁹ operations and bytes per second: from a processor's graphics of old to a data centre's GPU.
    let speeds = [
        (50, 10),
        (200, 20),
        (1000, 50),
        (5000, 100),
        (30_000, 500),
        (100_000, 1000),
        (500_000, 3300),
    ];
    for (gflops, gbps) in speeds {
        let speed = format!("gflops={gflops},gbps={gbps}");
        let work = |script: &str| serve(script, &[2000, 500, 6000, 40], 100);
        let watched = work(&format!("{speed},watchdog=1000"));
        let free = work(&speed);
        let share = free.seconds / watched.seconds;
        assert_eq!(
            watched.losses, 0,
            "{speed}: the watchdog left the device alone"
        );
        assert!(
            watched.longest < 0.5,
            "{speed}: a submission of {:.2} s",
            watched.longest
        );
        assert!(
            free.longest > 1.0 || gflops > 10_000,
            "{speed}: uncut, a submission takes {:.2} s",
            free.longest
        );
        assert!(
            share >= 0.85,
            "{speed}: {:.0} % of the throughput without a watchdog",
            100.0 * share
        );
        assert!(
            share < 1.15,
            "{speed}: cutting gains nothing: {:.0} %",
            100.0 * share
        );
    }
}

/// A layer's attention over a long context takes longer than the limit, so it is divided among several dispatches.
#[test]
fn attention_over_a_long_context_is_cut_within_a_layer() {
    let run = serve("gflops=50,gbps=10,watchdog=400", &[40_000], 4);
    assert_eq!(run.losses, 0);
    let pairs = 64.0 * 40_000.0;
    assert!(
        pairs * 4.0 * 32.0 * 128.0 / 50e9 > 0.8,
        "a dispatch for a chunk of the fewest tokens would be too long"
    );
}

/// The estimates rise after a loss, and the device is measured again: streams go on after a single one.
#[test]
fn a_gpu_that_slows_down_is_lost_once() {
    for batch in [3, 20, 60] {
        let run = serve(
            &format!("gflops=5000,gbps=100,watchdog=1000,slow@{batch}"),
            &[6000, 300],
            80,
        );
        assert_eq!(run.losses, 1, "batch {batch}");
    }
}

/// A draft model computes the rows of every step too: its device also asks for shorter chunks.
#[test]
fn a_slow_draft_model_has_shorter_chunks() {
    let speculation = Speculation {
        method: SpeculationMethod::DraftModel,
        ..Speculation::DEFAULT
    };
    let config = Config {
        max_num_seqs: 1,
        max_model_len: Some(2100),
        kv_cache_bytes: Some(2 * 4096 * 131_072),
        speculation: Some(speculation),
        ..Config::default()
    };
    let steps = |script: &str| {
        let (handle, inbox) = channel(config.queue_requests_max);
        let [device, draft] = ["", script]
            .map(|script| FakeBackend::new(script.parse().expect("a script of this test")));
        let others = Others {
            draft: Some((draft, Planned::new(2100))),
            tower: None,
        };
        let start =
            Engine::start_beside(device, Planned::new(2100), others, &config, inbox, |_| {});
        let engine = block_on(start).expect("the models fit");
        let _receivers = handle
            .submit(request(0, 2000, 1))
            .expect("the request is valid");
        handle.drain();
        block_on(engine.run()).expect("it ends when all is answered");
        handle.stats().steps
    };
    let [fast, slow] = ["gflops=500000,gbps=3300", "gflops=50,gbps=10"]
        .map(|speed| steps(&format!("{speed},watchdog=1000")));
    assert!(
        slow >= 2 * fast,
        "{slow} steps with a slow draft model, {fast} with a fast one"
    );
}
