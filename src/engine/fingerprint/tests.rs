//! Tests of `engine/fingerprint.rs`.

use super::*;
use crate::plan::{Section, WeightFormat, WeightSpec};

/// A plan of weights of one row of this many bf16 elements each.
fn plan(columns: &[u32]) -> Plan {
    let weight = |(index, &columns): (usize, &u32)| WeightSpec {
        name: format!("layers.{index}.o"),
        rows: 1,
        columns,
        sections: vec![Section {
            rows: 1,
            format: WeightFormat::Bf16,
        }],
        experts: 1,
    };
    Plan {
        weights: columns.iter().enumerate().map(weight).collect(),
        ..Plan::default()
    }
}

fn fingerprint(identity: u8, chunks: &[(u32, u32, &[u8])]) -> [u8; 32] {
    let (plan, mut samples) = (plan(&[2048, 1]), Samples::default());
    chunks
        .iter()
        .for_each(|&(weight, row, bytes)| samples.add(&plan, WeightId(weight), row, bytes));
    samples.fingerprint(|| [identity; 32], &plan).0
}

#[test]
fn other_weights_have_another_fingerprint() {
    let (long, mut changed) = (vec![1; 4096], vec![1; 4096]);
    changed[4095] = 2;
    let own = fingerprint(1, &[(0, 0, &long), (1, 0, &[1, 2])]);
    assert_eq!(
        own,
        fingerprint(1, &[(1, 0, &[1, 2]), (0, 0, &long)]),
        "in another order"
    );
    for other in [
        fingerprint(2, &[(0, 0, &long), (1, 0, &[1, 2])]),
        fingerprint(1, &[(0, 0, &changed), (1, 0, &[1, 2])]),
        fingerprint(1, &[(0, 0, &long), (1, 0, &[1, 3])]),
        fingerprint(1, &[(0, 0, &long), (1, 1, &[1, 2])]),
    ] {
        assert_ne!(other, own);
    }
}

#[test]
fn a_large_checkpoint_has_few_samples_and_each_of_its_weights_counts() {
    // More than 60 GB in 30,000 weights: most have one chunk, and each of a hundred has 150 chunks.
    const CHUNK: usize = 4 << 20;
    let chunks_of = |weight: usize| if weight.is_multiple_of(300) { 150 } else { 1 };
    let columns: Vec<u32> = (0..30_000)
        .map(|weight| (chunks_of(weight) * CHUNK / 2) as u32)
        .collect();
    let mut plan = plan(&columns);
    let (bytes, other) = (vec![7; CHUNK], vec![8; CHUNK]);
    let sampled = |plan: &Plan, changed: Option<u32>| {
        let mut samples = Samples::default();
        for weight in 0..30_000 {
            for chunk in 0..chunks_of(weight as usize) {
                let bytes = if changed == Some(weight) {
                    &other
                } else {
                    &bytes
                };
                samples.add(plan, WeightId(weight), chunk as u32, bytes);
            }
        }
        samples
    };
    let own = sampled(&plan, None);
    let chunks = own.hashes.len() as u64;
    assert!(
        chunks > 40_000 && own.bytes <= ALL_BYTES + 2 * SAMPLE_BYTES_MIN as u64 * chunks,
        "{}",
        own.bytes
    );
    let own = own.hash(&[1; 32], &plan);
    assert_ne!(
        sampled(&plan, Some(29_999)).hash(&[1; 32], &plan),
        own,
        "other bytes"
    );
    let same = sampled(&plan, None);
    plan.weights[15_001].sections[0].format = WeightFormat::F16;
    assert_ne!(
        same.hash(&[1; 32], &plan),
        own,
        "another format of the same size"
    );
}

#[test]
fn the_time_is_that_of_samples_and_identity() {
    const PAUSE: Duration = Duration::from_millis(5);
    let identity = || {
        std::thread::sleep(PAUSE);
        [1; 32]
    };
    let samples = Samples {
        took: 10 * PAUSE,
        ..Samples::default()
    };
    assert!(samples.fingerprint(identity, &plan(&[1])).1 >= 11 * PAUSE);
}
