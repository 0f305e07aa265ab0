//! Test cases for Sample: each option alone, all together, difficult vocabulary sizes, ties, bad rows, feed slots.

use super::fixture::{Check, Fixture, Mutant, Noise, Run, plain_batch};
use super::{Draws, Shapes};
use crate::plan::inputs::{BiasEntry, DrawParams, HistoryEntry, NONE, Range, SampleRow};
use crate::plan::{
    BufferId, GatherRows, MatMul, Rows, Sample, Step, Storage, Tail, WeightFormat, WeightId,
};

/// Logits rows per batch; few enough for the lowest binding limit with the largest vocabulary.
const ROWS: u32 = 8;
/// Sample rows per logits row.
const CHOICES: u32 = 4;

/// Options of a row besides temperature 1.
type Option_ = (&'static str, fn(&mut SampleRow, &mut Noise));

const OPTIONS: [Option_; 14] = [
    ("greedy", |row, _| row.draw.temperature = 0.0),
    ("temperature", |row, noise| {
        row.draw.temperature = [0.3, 0.7, 1.0, 1.9][noise.below(4) as usize];
    }),
    ("top_k", |row, noise| {
        row.draw.top_k = [1, 2, 5, 40, 100_000][noise.below(5) as usize];
    }),
    ("top_p", |row, noise| {
        row.draw.top_p = [0.0, 0.1, 0.5, 0.9, 0.99][noise.below(5) as usize];
    }),
    ("min_p", |row, noise| {
        row.draw.min_p = [0.01, 0.1, 0.5, 1.0][noise.below(4) as usize];
    }),
    ("repetition", |row, noise| {
        row.draw.repetition_penalty = [0.8, 1.1, 2.0][noise.below(3) as usize];
    }),
    ("presence", |row, noise| {
        row.draw.presence_penalty = [-1.0, 0.5, 2.0][noise.below(3) as usize];
    }),
    ("frequency", |row, noise| {
        row.draw.frequency_penalty = [-0.5, 0.3, 1.5][noise.below(3) as usize];
    }),
    ("bias", |row, _| row.bias.len = 12),
    ("mask", |row, _| row.mask_start = 0),
    ("logprobs", |row, noise| {
        (row.logprob, row.top_logprobs) = (true, [0, 1, 5, 20][noise.below(4) as usize]);
    }),
    ("together", together),
    ("scored", scored),
    ("beam", beam),
];

fn together(row: &mut SampleRow, noise: &mut Noise) {
    for (_, option) in OPTIONS[1..11].iter().filter(|(name, _)| *name != "top_k") {
        if noise.below(3) > 0 {
            option(row, noise);
        }
    }
    row.draw.top_k = [0, 3, 50][noise.below(3) as usize];
}

/// A scored token instead of a drawn one, with any other options; every third row still draws.
fn scored(row: &mut SampleRow, noise: &mut Noise) {
    if noise.below(3) > 0 {
        (row.scored_token, row.logprob, row.top_logprobs) =
            (noise.below(33), true, [0, 5, 20][noise.below(3) as usize]);
        row.draw.temperature = [0.0, 1.0][noise.below(2) as usize];
    }
}

/// The best continuations of a beam: long lists, often of the tokens that a mask allows.
fn beam(row: &mut SampleRow, noise: &mut Noise) {
    (row.draw.temperature, row.top_allowed) = (0.0, true);
    row.top_logprobs = [4, 32, 64, 256][noise.below(4) as usize];
    row.mask_start = [0, 0, NONE][noise.below(3) as usize];
}

/// All fixtures.
pub(super) fn fixtures(draws: Draws, shapes: Shapes) -> Vec<Fixture> {
    let batches = match draws {
        Draws::Few => 3,
        Draws::Usual => 26,
        Draws::Many => 256,
    };
    let mut fixtures: Vec<Fixture> = OPTIONS
        .iter()
        .map(|option| drawn(256, *option, batches))
        .collect();
    for &vocab in shapes.of(&[33, 4096, 151_937]) {
        fixtures.extend([OPTIONS[12], OPTIONS[13]].map(|option| drawn(vocab, option, 2)));
    }
    for &vocab in shapes.of(&[1, 33, 1003, 4096]) {
        fixtures
            .extend([OPTIONS[0], OPTIONS[1], OPTIONS[11]].map(|option| drawn(vocab, option, 2)));
    }
    fixtures.extend(shapes.of(&[256, 1003]).iter().copied().map(ties));
    fixtures.extend(shapes.of(&[256, 4100]).iter().copied().map(bad_rows));
    if shapes == Shapes::All {
        fixtures.extend(
            [OPTIONS[0], OPTIONS[1], OPTIONS[3], OPTIONS[11]]
                .map(|option| drawn(151_937, option, 1)),
        );
        fixtures.extend(
            [OPTIONS[1], OPTIONS[2], OPTIONS[3], OPTIONS[10]]
                .map(|option| drawn(151_936, option, 1)),
        );
        fixtures.push(groups());
    }
    fixtures
}

/// A plan whose tail samples from logits that the run fills.
fn fixture(option: &str, vocab: u32) -> (Fixture, BufferId) {
    let mut fixture = Fixture::new("sample", option);
    fixture.plan.vocab = vocab;
    let logits = fixture.buffer("logits", Rows::Samples, vocab, Storage::F32);
    fixture
        .plan
        .tails
        .push((Tail::Sample, vec![Step::Sample(Sample { logits })]));
    (fixture, logits)
}

/// A batch of `ROWS` logits rows without sample rows.
fn batch(shape: String, values: Vec<f32>, logits: BufferId, vocab: u32) -> Run {
    let mut run = Run::new(shape, plain_batch(ROWS));
    run.inputs.token_ids.fill(0);
    run.inputs.logits_rows = (0..ROWS).collect();
    run.inputs.tails = vec![Tail::Sample];
    run.feed = (0..64).map(|slot| slot * 13 % vocab).collect();
    run.logits = Some(values.clone());
    run.buffers.push((logits, values));
    run.checks.push(Check::Sampled);
    run
}

/// Rows that draw with one option on.
fn drawn(vocab: u32, (name, option): Option_, batches: u32) -> Fixture {
    let (mut fixture, logits) = fixture(&format!("{name}, vocab {vocab}"), vocab);
    let mut noise = Noise::new(&fixture.name());
    for index in 0..batches {
        // Flat, moderate and sharp distributions.
        let spread = [0.5, 3.0, 12.0][index as usize % 3];
        let values = (0..ROWS * vocab).map(|_| noise.value() * spread).collect();
        let mut run = batch(format!("batch {index}"), values, logits, vocab);
        side_inputs(&mut run, vocab, &mut noise);
        for index in 0..ROWS * CHOICES {
            let mut row = SampleRow::greedy(index / CHOICES, noise.below(4096));
            (row.draw.temperature, row.seed, row.choice) = (1.0, noise.bits(), index % CHOICES);
            // Slots 0..32 are written, 32.. are read.
            row.feed_slot = if index % 5 == 4 { NONE } else { index };
            row.pending_slot = if index % 3 == 0 { 32 + index } else { NONE };
            let history = run.inputs.history.len() as u32 / 4;
            row.history = Range {
                start: index % 4 * history,
                len: history,
            };
            option(&mut row, &mut noise);
            row.bias.len = row.bias.len.min(run.inputs.bias.len() as u32);
            run.inputs.samples.push(row);
        }
        // If several tokens are likely, a different seed must change the result.
        if name == "temperature" && vocab > 1 {
            run.mutants
                .extend((spread < 12.0).then_some(Mutant::OtherSeed));
            run.mutants.push(Mutant::SwapRows(logits, 0, ROWS - 1));
        }
        fixture.runs.push(run);
    }
    fixture
}

/// Four histories, one bias list and one mask.
fn side_inputs(run: &mut Run, vocab: u32, noise: &mut Noise) {
    let ids = noise.shuffled(vocab.min(4096));
    let entries = 60.min(ids.len() / 2);
    for list in 0..4 {
        for &token_id in ids.iter().skip(list * entries / 4).take(entries) {
            run.inputs.history.push(HistoryEntry {
                token_id,
                generated: noise.below(4),
            });
        }
    }
    for &token_id in ids.iter().take(12) {
        run.inputs.bias.push(BiasEntry {
            token_id,
            bias: noise.uniform() * 5.0,
        });
    }
    run.inputs.masks = (0..vocab.div_ceil(32))
        .map(|_| noise.bits() as u32 | 1)
        .collect();
}

/// All logits equal: expects the lowest id, all of a tie at the k-th value, and top ids in order.
fn ties(vocab: u32) -> Fixture {
    let (mut fixture, logits) = fixture(&format!("ties, vocab {vocab}"), vocab);
    let mut noise = Noise::new("ties");
    let values: Vec<f32> = (0..ROWS * vocab)
        .map(|_| level(noise.bits() >> 7))
        .collect();
    let mut greedy = batch("greedy".into(), values.clone(), logits, vocab);
    greedy.exact = true;
    for row in 0..ROWS {
        let row = SampleRow {
            logprob: true,
            top_logprobs: 20,
            feed_slot: row,
            ..SampleRow::greedy(row, row)
        };
        greedy.inputs.samples.push(row);
    }
    // Shuffled ids would be detected: the result in each row is the lowest of hundreds.
    greedy.mutants.push(Mutant::SwapRows(logits, 0, ROWS - 1));
    let mut random = batch("top-k and top-p".into(), values, logits, vocab);
    for index in 0..ROWS * CHOICES {
        let row = SampleRow::greedy(index / CHOICES, index);
        let (top_k, top_p) = if index % 2 == 0 { (7, 1.0) } else { (0, 0.4) };
        let draw = DrawParams {
            temperature: 0.8,
            top_k,
            top_p,
            ..DrawParams::default()
        };
        random.inputs.samples.push(SampleRow {
            draw,
            seed: noise.bits(),
            ..row
        });
    }
    fixture.runs.extend([greedy, random]);
    fixture
}

fn level(bits: u64) -> f32 {
    [-1.5, 0.0, -0.0, 2.0, 2.0][(bits % 5) as usize]
}

/// NaN, +∞, all −∞, some −∞, masks that allow nothing: each in a separate row.
fn bad_rows(vocab: u32) -> Fixture {
    let (mut fixture, logits) = fixture(&format!("bad rows, vocab {vocab}"), vocab);
    let mut noise = Noise::new("bad rows");
    for temperature in [0.0, 0.9] {
        let mut values: Vec<f32> = (0..ROWS * vocab).map(|_| noise.value()).collect();
        let mut rows = values.chunks_exact_mut(vocab as usize);
        let mut row = || rows.next().expect("there are eight rows");
        row()[vocab as usize - 1] = f32::NAN;
        row()[0] = -f32::NAN;
        row().fill(f32::NEG_INFINITY);
        row()[7] = f32::INFINITY;
        row()[1..].fill(f32::NEG_INFINITY);
        let mut run = batch(format!("temperature {temperature}"), values, logits, vocab);
        run.inputs.masks = vec![0; 2 * vocab.div_ceil(32) as usize];
        *run.inputs.masks.last_mut().expect("masks have words") = 1;
        for index in 0..ROWS {
            let row = SampleRow::greedy(index, index);
            let mask_start = match index {
                5 => 0,
                6 => vocab.div_ceil(32),
                _ => NONE,
            };
            run.inputs.samples.push(SampleRow {
                draw: DrawParams {
                    temperature,
                    ..DrawParams::default()
                },
                seed: noise.bits(),
                feed_slot: index,
                logprob: true,
                top_logprobs: 3,
                mask_start,
                ..row
            });
        }
        run.mutants.push(Mutant::SwapRows(logits, 1, 4));
        fixture.runs.push(run);
    }
    fixture
}

/// The whole tail with more logits than a low limit binds at once: gather, product and draw in groups of rows.
fn groups() -> Fixture {
    let (rows, vocab, hidden) = (40, 100_003, 8);
    let mut fixture = Fixture::new(
        "sample",
        format!("gather, head and draw of {rows} rows, vocab {vocab}"),
    );
    fixture.plan.vocab = vocab;
    let mut noise = Noise::new(&fixture.name());
    let head: Vec<f32> = (0..vocab * hidden).map(|_| noise.uniform()).collect();
    let weight = fixture.weight("head", vocab, WeightFormat::Bf16, &head);
    let x = fixture.buffer("x", Rows::Tokens, hidden, Storage::F32);
    let gathered = fixture.buffer("gathered", Rows::Samples, hidden, Storage::F32);
    let logits = fixture.buffer("logits", Rows::Samples, vocab, Storage::F32);
    let product = Step::MatMul(MatMul {
        x: gathered,
        weight,
        bias: None,
        accumulate: false,
        out: logits,
    });
    let tail = vec![
        Step::GatherRows(GatherRows { x, out: gathered }),
        product,
        Step::Sample(Sample { logits }),
    ];
    fixture.plan.tails.push((Tail::Sample, tail));
    let values: Vec<f32> = (0..rows * hidden).map(|_| noise.uniform() * 4.0).collect();
    let run = groups_run(&fixture, (x, values), weight, &mut noise);
    fixture.runs.push(run);
    fixture
}

/// All rows, the last one first; every other one is drawn.
fn groups_run(
    fixture: &Fixture,
    (x, values): (BufferId, Vec<f32>),
    weight: WeightId,
    noise: &mut Noise,
) -> Run {
    let rows = values.len() as u32 / fixture.plan.weight_spec(weight).columns;
    let mut run = Run::new(format!("{rows} rows"), plain_batch(rows));
    run.inputs.token_ids.fill(0);
    run.inputs.logits_rows = (0..rows).rev().collect();
    run.inputs.tails = vec![Tail::Sample];
    run.feed = vec![0; 64];
    run.logits = Some(head_logits(fixture, weight, &values));
    run.buffers.push((x, values));
    for index in 0..rows {
        let mut row = SampleRow::greedy(index, index);
        row.feed_slot = index;
        row.seed = noise.bits();
        row.draw.temperature = (index % 2) as f32;
        row.logprob = true;
        run.inputs.samples.push(row);
    }
    run.checks.push(Check::Sampled);
    run.mutants = vec![
        Mutant::SwapRows(x, 0, rows - 1),
        Mutant::SwapLogitsRows(0, rows - 1),
    ];
    run
}

/// The logits of [`groups`], in the order of its reversed logits rows, to detect near-ties.
fn head_logits(fixture: &Fixture, weight: WeightId, x: &[f32]) -> Vec<f32> {
    let columns = fixture.plan.weight_spec(weight).columns as usize;
    let weights = fixture.weight_values(weight);
    x.chunks_exact(columns)
        .rev()
        .flat_map(|x| {
            let products = weights
                .chunks_exact(columns)
                .map(|weights| weights.iter().zip(x).map(|(w, x)| w * x).sum());
            products.collect::<Vec<f32>>()
        })
        .collect()
}
