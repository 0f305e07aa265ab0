//! What the engine saves, and how it shares: floors over many seeds, so that bugs that cost only time are found too.

use crate::for_seeds;
use crate::world::{Arrival, BLOCK_BYTES, Case, Outcome, Random, Role, Shape, run};
use folio::backend::fake::Script;
use folio::config::Config;
use folio::engine::request::{Request, SamplingParams};
use folio::plan::KvFormat;

const SEEDS: u64 = 60;
const VOCAB: u32 = 5000;
/// The client of [`crowd`] that sends many requests.
const BUSY_CLIENT: u32 = 0;

/// Sums over the runs of all workloads.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// [`revisits`]: tokens of prompts, and those found in the prefix cache.
    prompt_tokens: u64,
    hits: u64,
    /// [`pressure`]: tokens of prompts and answers, and those that the device computed.
    tokens: u64,
    computed: u64,
    /// [`briefs`]: requests, and how often one was preempted.
    briefs: u64,
    preemptions: u64,
    /// [`crowd`]: requests of the busy client and of the others, and how many turns they waited for a token.
    busy: u64,
    busy_turns: u64,
    others: u64,
    other_turns: u64,
}

impl Costs {
    fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.hits += other.hits;
        self.tokens += other.tokens;
        self.computed += other.computed;
        self.briefs += other.briefs;
        self.preemptions += other.preemptions;
        self.busy += other.busy;
        self.busy_turns += other.busy_turns;
        self.others += other.others;
        self.other_turns += other.other_turns;
    }

    /// The first floor that is missed. Each is about halfway between what the engine reaches and what it reaches with
    /// the mildest bug that concerns it.
    fn missed(&self) -> Option<&'static str> {
        let floors = [
            (
                self.hits * 100 >= self.prompt_tokens * 60,
                "60 % of the revisited tokens are found (69 % usually)",
            ),
            (
                self.computed * 100 <= self.tokens * 115,
                "15 % of the tokens are computed twice (12 % usually)",
            ),
            (
                self.preemptions * 30 <= self.briefs,
                "one brief request in 30 is preempted (one in 56 usually)",
            ),
            (
                self.other_turns * self.busy * 4 <= self.busy_turns * self.others,
                "who sends little waits a quarter of the others' time (a twelfth usually)",
            ),
        ];
        floors
            .into_iter()
            .find_map(|(held, floor)| (!held).then_some(floor))
    }
}

fn measure() -> Costs {
    let mut costs = Costs::default();
    for_seeds(
        SEEDS,
        |seed, sum: &mut Costs| sum.add(&measure_seed(seed)),
        |sum| costs.add(&sum),
    );
    costs
}

fn measure_seed(seed: u64) -> Costs {
    let run = |case: Case| {
        let outcome = run(&case);
        (case, outcome)
    };
    let (_, visits) = run(revisits(seed));
    let (_, pressed) = run(pressure(seed));
    let (briefs, brief) = run(briefs(seed));
    let (case, crowded) = run(crowd(seed));
    Costs {
        prompt_tokens: visits.stats.prompt_tokens,
        hits: visits.stats.prefix_hits,
        tokens: pressed.stats.prompt_tokens + pressed.stats.generation_tokens,
        computed: pressed.computed,
        briefs: briefs.arrivals.len() as u64,
        preemptions: brief.stats.preemptions,
        busy: requests(&case, true).count() as u64,
        busy_turns: requests(&case, true)
            .map(|(index, turn)| waited(&crowded, index, turn))
            .sum(),
        others: requests(&case, false).count() as u64,
        other_turns: requests(&case, false)
            .map(|(index, turn)| waited(&crowded, index, turn))
            .sum(),
    }
}

/// The requests of the busy client or of the others, with their turns of arrival.
fn requests(case: &Case, busy: bool) -> impl Iterator<Item = (usize, u32)> {
    let counts = move |arrival: &Arrival| (arrival.request.client == BUSY_CLIENT) == busy;
    let arrivals = case
        .arrivals
        .iter()
        .enumerate()
        .filter(move |(_, arrival)| counts(arrival));
    arrivals.map(|(index, arrival)| (index, arrival.turn))
}

/// Turns from a request's arrival to its first token.
fn waited(outcome: &Outcome, index: usize, turn: u32) -> u64 {
    u64::from(outcome.first_turns[&index] - turn)
}

/// A case without faults and without stop tokens.
fn quiet(seed: u64, sequences: u32, blocks: u64, arrivals: Vec<Arrival>) -> Case {
    let shape = Shape {
        windows: vec![None],
        vocab: VOCAB,
        eos_token_ids: Vec::new(),
        model_len: 48,
        keeps_states: false,
        adapter_slots: 0,
        predicts: false,
        role: Role::default(),
    };
    let config = Config {
        max_num_seqs: sequences,
        max_num_batched_tokens: 24,
        block_size: 4,
        kv_cache_bytes: Some(blocks * BLOCK_BYTES),
        kv_format: KvFormat::F32,
        seed: Some(1),
        ..Config::default()
    };
    let script = Script {
        seed,
        ..Script::default()
    };
    Case {
        shape,
        config,
        script,
        draft: None,
        reads_images: false,
        host_rows_every: 0,
        arrivals,
    }
}

fn arrival(turn: u32, client: u32, prompt: Vec<u32>, answer_len: u32) -> Arrival {
    let params = SamplingParams {
        max_tokens: Some(answer_len),
        seed: Some(1),
        ..SamplingParams::default()
    };
    let request = Request {
        prompt: prompt.into(),
        params,
        client,
        ..Request::default()
    };
    Arrival {
        turn,
        request,
        aborts: vec![None],
    }
}

fn words(random: &mut Random, count: u32) -> Vec<u32> {
    (0..count).map(|_| random.below(VOCAB)).collect()
}

/// Questions about documents, often about one of the last two. The pool holds a part of the documents.
fn revisits(seed: u64) -> Case {
    let mut random = Random(seed);
    let documents: Vec<_> = (0..8).map(|_| words(&mut random, 24)).collect();
    let (mut turn, mut last, mut arrivals) = (0, [0, 1], Vec::new());
    for _ in 0..40 {
        let next = if random.once_in(3) {
            random.below(8) as usize
        } else {
            last[random.below(2) as usize]
        };
        last = [next, if next == last[0] { last[1] } else { last[0] }];
        let mut prompt = documents[next].clone();
        prompt.extend(words(&mut random, 3));
        arrivals.push(arrival(turn, 0, prompt, 4));
        turn += random.within(3, 8);
    }
    quiet(seed, 3, 40, arrivals)
}

/// Long answers that do not fit the pool together.
fn pressure(seed: u64) -> Case {
    let mut random = Random(seed);
    let arrivals = (0..12).map(|_| {
        let prompt_len = random.within(5, 14);
        let prompt = words(&mut random, prompt_len);
        arrival(0, 0, prompt, random.within(20, 32))
    });
    let arrivals = arrivals.collect();
    quiet(seed, 5, 30, arrivals)
}

/// Short answers to long prompts: a request that is admitted into the last blocks is soon preempted, and has computed
/// its prompt in vain.
fn briefs(seed: u64) -> Case {
    let mut random = Random(seed);
    let arrivals = (0..30).map(|_| {
        let prompt_len = random.within(20, 31);
        let prompt = words(&mut random, prompt_len);
        arrival(0, 0, prompt, random.within(2, 5))
    });
    let arrivals = arrivals.collect();
    quiet(seed, 3, 22, arrivals)
}

/// A client with many requests, and three that send two each while those wait.
fn crowd(seed: u64) -> Case {
    let mut random = Random(seed);
    let mut arrivals: Vec<_> = (0..24).map(|_| (0, BUSY_CLIENT)).collect();
    arrivals.extend(
        (1..=3)
            .flat_map(|client| [client; 2])
            .map(|client| (random.within(5, 40), client)),
    );
    arrivals.sort_by_key(|&(turn, _)| turn);
    let request = |(turn, client)| {
        let prompt = words(&mut random, 6);
        arrival(turn, client, prompt, random.within(4, 8))
    };
    let arrivals = arrivals.into_iter().map(request).collect();
    quiet(seed, 2, 40, arrivals)
}

#[test]
fn caching_and_fairness_reach_their_floors() {
    let costs = measure();
    println!("{costs:?}");
    assert_eq!(costs.missed(), None, "{costs:?}");
}
