//! Random cases: pools, devices, requests and when they arrive.

use super::*;

/// The case of a seed: small pools, shared prefixes, dropped receivers.
pub(crate) fn case(seed: u64) -> Case {
    let mut random = Random(seed);
    let kind = if seed.is_multiple_of(3) {
        Window::Chunk
    } else {
        Window::Last
    };
    let windows = match random.below(5) {
        0 | 1 => vec![None],
        2 => vec![Some(kind(random.within(3, 14)))],
        _ => vec![None, Some(kind(random.within(3, 14)))],
    };
    let model_len = random.within(24, 48);
    let shape = Shape {
        windows,
        vocab: random.within(30, 200),
        eos_token_ids: vec![0, 7],
        model_len,
        keeps_states: false,
        adapter_slots: 0,
        predicts: false,
        role: Role::default(),
    };
    let config = config(&mut random, &shape);
    let nan = random
        .once_in(10)
        .then(|| random.within(8, shape.vocab - 1));
    let script = Script {
        seed,
        nan,
        ..Script::default()
    };
    let host_rows_every = if random.once_in(5) {
        u64::from(random.within(1, 4))
    } else {
        0
    };
    let arrivals = arrivals(&mut random, &shape);
    let mut case = Case {
        shape,
        config,
        script,
        draft: None,
        reads_images: false,
        host_rows_every,
        arrivals,
    };
    if random.once_in(3) {
        speculation::speculate(&mut random, &mut case);
    }
    case
}

fn config(random: &mut Random, shape: &Shape) -> Config {
    let max_num_seqs = random.within(1, 6);
    let blocks = shape.model_len.div_ceil(4) + 2 + random.below(14);
    Config {
        max_num_seqs,
        max_num_batched_tokens: max_num_seqs + 4 + random.below(24),
        block_size: 4,
        kv_cache_bytes: Some(u64::from(blocks) * BLOCK_BYTES * shape.windows.len() as u64),
        kv_format: KvFormat::F32,
        prefix_caching: !random.once_in(6),
        look_ahead: !random.once_in(6),
        deterministic: random.once_in(8),
        seed: Some(1),
        ..Config::default()
    }
}

fn arrivals(random: &mut Random, shape: &Shape) -> Vec<Arrival> {
    let documents: Vec<Vec<u32>> = (0..2)
        .map(|_| {
            (0..shape.model_len)
                .map(|_| random.within(8, shape.vocab - 1))
                .collect()
        })
        .collect();
    // Salts of a case differ only at their ends.
    let salt = "s".repeat(random.below(CACHE_SALT_LEN_MAX as u32 - 1) as usize);
    let mut turn = 0;
    let count = random.within(2, 9);
    let mut arrivals: Vec<_> = (0..count)
        .map(|_| {
            turn += random.below(8) * random.below(2);
            let document = &documents[random.below(2) as usize];
            let request = request(random, shape, document, &salt);
            let abort = |random: &mut Random| random.once_in(7).then(|| turn + random.below(25));
            let aborts = (0..request.params.n).map(|_| abort(random)).collect();
            Arrival {
                turn,
                request,
                aborts,
            }
        })
        .collect();
    arrivals.sort_by_key(|arrival| arrival.turn);
    arrivals
}

fn request(random: &mut Random, shape: &Shape, document: &[u32], salt: &str) -> Request {
    let length = random.within(1, shape.model_len - 1) as usize;
    let shared = random.below(length as u32 + 1) as usize;
    let mut prompt = document[..shared].to_vec();
    prompt.extend((shared..length).map(|_| random.within(8, shape.vocab - 1)));
    let salts = [None, None, Some("a"), Some("b"), Some("ab")];
    let penalties = random.once_in(3);
    // Half of the biases concern tokens that may end the choice.
    let biased = |random: &mut Random| {
        if random.once_in(2) {
            [0, 7, 9][random.below(3) as usize]
        } else {
            random.below(shape.vocab)
        }
    };
    let bias = |random: &mut Random| (biased(random), [-1.5, 1.0, 2.0][random.below(3) as usize]);
    let max_tokens = (!random.once_in(6)).then(|| random.within(1, 24));
    let constraint = random
        .once_in(3)
        .then(|| rules::shared(random.below(1000).into(), shape.vocab));
    let mut params = SamplingParams {
        n: if random.once_in(3) {
            random.within(2, 4)
        } else {
            1
        },
        max_tokens,
        min_tokens: if random.once_in(3) {
            random.below(max_tokens.unwrap_or(20) + 1)
        } else {
            0
        },
        draw: DrawParams {
            temperature: if random.once_in(2) { 0.0 } else { 1.0 },
            repetition_penalty: if penalties && random.once_in(2) {
                1.2
            } else {
                1.0
            },
            frequency_penalty: if penalties { 0.5 } else { 0.0 },
            ..DrawParams::default()
        },
        penalty_window: (penalties && random.once_in(3)).then(|| random.within(1, 12)),
        logit_bias: (0..random.below(2) * random.below(3))
            .map(|_| bias(random))
            .collect(),
        seed: Some(u64::from(random.below(1000))),
        stop_token_ids: if random.once_in(4) {
            vec![9]
        } else {
            Vec::new()
        },
        ignore_eos: random.once_in(4),
        constraint,
        logprobs: random.once_in(4).then(|| random.below(4)),
        ..SamplingParams::default()
    };
    let cache_salt = salts[random.below(5) as usize].map(|end| format!("{salt}{end}"));
    let priority = if random.once_in(5) { -1 } else { 0 };
    let (client, explain_prefix) = (random.below(3), random.once_in(4));
    let pooling = random.once_in(8).then(|| {
        if random.once_in(2) {
            Pooling::Last
        } else {
            Pooling::Mean
        }
    });
    params.prompt_logprobs = (pooling.is_none() && random.once_in(5)).then(|| random.below(4));
    Request {
        prompt: prompt.into(),
        second_text: None,
        tiles: Arc::default(),
        params,
        adapter: None,
        cache_salt,
        cache_owner: None,
        priority,
        client,
        explain_prefix,
        explain_drafts: explain_prefix,
        report_admission: explain_prefix,
        report_progress: explain_prefix,
        pooling,
        prompt_only: false,
        predicted: None,
    }
}
