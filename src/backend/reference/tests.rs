//! What the reference device does with batches and its memory.

use super::*;
use crate::plan::inputs::{DrawParams, GroupInputs, NONE, SampleRow, SequenceRows};
use crate::plan::{
    AttendPaged, CopyBlocks, Embed, GatherRows, KvFormat, KvGroup, KvLayer, MatMul, RopeStoreKv,
    RowId, Rows, Sample, StoreOptions, Tail, WeightFormat,
};
use crate::platform::block_on;

/// One layer without MLP over 8 columns, tied to a vocabulary of 32.
fn plan() -> Plan {
    let mut plan = Plan {
        vocab: 32,
        positions_max: 64,
        ..Plan::default()
    };
    plan.kv_groups.push(KvGroup { window: None });
    plan.kv_layers.push(KvLayer {
        group: 0,
        heads: 1,
        head_dim: 8,
        latent: false,
    });
    let table = plan.weight("table", 32, 8, WeightFormat::Bf16);
    let qkv_weight = plan.weight("qkv", 24, 8, WeightFormat::Bf16);
    let x = plan.buffer("x", Rows::Tokens, 8, Storage::F32);
    let qkv = plan.buffer("qkv", Rows::Tokens, 24, Storage::F32);
    let q = plan.buffer("q", Rows::Tokens, 8, Storage::F32);
    let attended = plan.buffer("attended", Rows::Tokens, 8, Storage::F32);
    let last = plan.buffer("last", Rows::Samples, 8, Storage::F32);
    let logits = plan.buffer("logits", Rows::Samples, 32, Storage::F32);
    let matmul = |x, weight, out| {
        Step::MatMul(MatMul {
            x,
            weight,
            bias: None,
            accumulate: false,
            out,
        })
    };
    let (q_norm, k_norm, rope, softcap, alibi, sinks) = (None, None, None, None, None, None);
    let options = StoreOptions::default();
    plan.body = vec![
        Step::CopyBlocks(CopyBlocks),
        Step::Embed(Embed {
            table,
            id: RowId::Token,
            accumulate: false,
            scale: 1.0,
            out: x,
        }),
        matmul(x, qkv_weight, qkv),
        Step::RopeStoreKv(RopeStoreKv {
            qkv,
            layer: 0,
            query_heads: 1,
            q_norm,
            k_norm,
            rope,
            options,
            q,
        }),
        Step::AttendPaged(AttendPaged {
            q,
            layer: 0,
            query_heads: 1,
            scale: 0.4,
            softcap,
            alibi,
            sinks,
            out: attended,
        }),
    ];
    let gather = Step::GatherRows(GatherRows {
        x: attended,
        out: last,
    });
    plan.tails = vec![(
        Tail::Sample,
        vec![
            gather,
            matmul(last, table, logits),
            Step::Sample(Sample { logits }),
        ],
    )];
    plan
}

fn backend() -> ReferenceBackend {
    let plan = plan();
    let capacity = Capacity {
        tokens_max: 16,
        sequences_max: 4,
        samples_max: 4,
        feed_slots: 4,
        state_slots: 0,
        table_entries_max: 16,
        history_max: 8,
        bias_max: 8,
        mask_words_max: 4,
        copies_max: 4,
        block_size: 4,
        kv_format: KvFormat::F16,
        deterministic: false,
    };
    let mut backend = ReferenceBackend::new();
    backend.load(Arc::new(plan.clone()), &capacity).unwrap();
    for (index, spec) in (0..).zip(&plan.weights) {
        let values = (0..spec.rows * spec.columns).map(|i| ((i * 37 + index * 11) as f32).sin());
        let bytes: Vec<u8> = values
            .flat_map(|value| half::bf16::from_f32(value).to_le_bytes())
            .collect();
        backend
            .write_weight(WeightId(index), 0, bytes.into())
            .unwrap();
    }
    backend.allocate_pool(&[8]).unwrap();
    backend
}

/// Rows of (token id, position) sequences, each with its own blocks, the last row of each sampled.
fn batch(sequences: &[(&[u32], u32, &[u32])]) -> BatchInputs {
    let mut inputs = BatchInputs {
        tails: vec![Tail::Sample],
        ..BatchInputs::default()
    };
    let mut group = GroupInputs::default();
    for (index, &(tokens, first, table)) in (0..).zip(sequences) {
        let row_start = inputs.token_ids.len() as u32;
        let row_count = tokens.len() as u32;
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count,
            context_len: first + row_count,
        });
        inputs.token_ids.extend(tokens);
        inputs.positions.extend(first..first + row_count);
        group.table_starts.push(group.block_tables.len() as u32);
        group.block_tables.extend(table);
        let slot = |position: u32| table[position as usize / 4] * 4 + position % 4;
        group
            .slot_mapping
            .extend((first..first + row_count).map(slot));
        inputs.logits_rows.push(row_start + row_count - 1);
        let row = SampleRow {
            logprob: true,
            ..SampleRow::greedy(index, first + row_count)
        };
        let draw = DrawParams {
            temperature: 0.8,
            ..DrawParams::default()
        };
        inputs.samples.push(SampleRow {
            draw,
            top_logprobs: 5,
            feed_slot: index,
            ..row
        });
    }
    inputs.groups.push(group);
    inputs
}

fn run(backend: &mut ReferenceBackend, inputs: &BatchInputs) -> Vec<crate::plan::inputs::Sampled> {
    let ticket = backend.submit(inputs).unwrap();
    block_on(backend.read(ticket)).unwrap().sampled
}

/// Same bits for prompts together, alone, in chunks, and after a shared prefix that another sequence computed.
#[test]
fn results_do_not_depend_on_the_batch() {
    let (first, second): (&[u32], &[u32]) = (&[3, 1, 4, 1, 5, 9], &[2, 7, 1, 8, 2]);
    let together = run(
        &mut backend(),
        &batch(&[(first, 0, &[5, 2]), (second, 0, &[7, 0])]),
    );
    assert_eq!(
        run(&mut backend(), &batch(&[(first, 0, &[1, 3])])),
        together[..1],
        "alone, other blocks"
    );
    let mut chunked = backend();
    run(&mut chunked, &batch(&[(&first[..3], 0, &[4])]));
    let rest = run(&mut chunked, &batch(&[(&first[3..], 3, &[4, 6])]));
    assert_eq!(rest, together[..1], "in two chunks");
    let shared = run(&mut chunked, &batch(&[(&first[4..], 4, &[4, 7])]));
    assert_eq!(shared, together[..1], "over a shared first block");
}

#[test]
fn a_sampled_token_feeds_the_next_batch() {
    let mut fed = backend();
    let token = run(&mut fed, &batch(&[(&[3, 1, 4], 0, &[2])]))[0].token_id;
    assert_eq!(block_on(fed.read_feed(1)).unwrap(), [token]);
    let by_slot = run(&mut fed, &batch(&[(&[crate::plan::inputs::FEED], 3, &[2])]));
    assert_eq!(by_slot, run(&mut fed, &batch(&[(&[token], 3, &[2])])));
}

/// An invalid batch is an error with a message, and the backend still works afterwards.
#[test]
fn wrong_batches_are_refused() {
    let mut backend = backend();
    let good = batch(&[(&[3, 1, 4], 0, &[2])]);
    let expected = run(&mut backend, &good);
    let mut refuse = |what: &str, change: &dyn Fn(&mut BatchInputs)| {
        let mut inputs = good.clone();
        change(&mut inputs);
        let error = backend.submit(&inputs).expect_err(what).to_string();
        assert!(error.contains(what), "{error} does not name {what}");
    };
    refuse("token 32", &|inputs| inputs.token_ids[0] = 32);
    refuse("feed slot 4", &|inputs| {
        inputs.token_ids[0] = crate::plan::inputs::FEED | 4;
    });
    refuse("a slot lies", &|inputs| {
        inputs.groups[0].slot_mapping[1] = 32;
    });
    refuse("a table names", &|inputs| {
        inputs.groups[0].block_tables[0] = 8;
    });
    refuse("table entries", &|inputs| {
        inputs.groups[0].block_tables.clear();
    });
    refuse("a copy names", &|inputs| {
        inputs.groups[0].copies.push((0, 8));
    });
    refuse("logits row", &|inputs| inputs.logits_rows[0] = 3);
    refuse("position", &|inputs| inputs.positions[2] = 3);
    refuse("mask", &|inputs| inputs.samples[0].mask_start = 0);
    refuse("temperature", &|inputs| {
        inputs.samples[0].draw.temperature = f32::NAN;
    });
    refuse("token rows", &|inputs| inputs.token_ids = vec![0; 17]);
    let mut hidden = good.clone();
    hidden.groups[0].slot_mapping[0] = NONE;
    run(&mut backend, &hidden);
    assert_eq!(run(&mut backend, &good), expected);
}

#[test]
fn a_plan_without_all_its_weights_does_not_run() {
    let mut whole = backend();
    let mut backend = ReferenceBackend::new();
    let loaded = whole.loaded().unwrap();
    backend
        .load(Arc::clone(&loaded.plan), &loaded.capacity)
        .unwrap();
    backend.allocate_pool(&[8]).unwrap();
    let error = backend
        .submit(&batch(&[(&[3], 0, &[2])]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("table"), "{error}");
}
