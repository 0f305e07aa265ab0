//! Mistakes planted in small kernels (`planted/*.cu`), each of which the emulator of the CUDA kernels must notice. The
//! same kernels without a mistake must compute what they say.

use folio::backend::BackendError;
use folio::backend::cuda::{Trial, Watch};
use std::path::Path;

/// Launches, each in another order: a mistake that only some orders show must be seen in one of them.
const LAUNCHES: usize = 24;
const THREADS: u32 = 64;

/// A planted kernel with its buffers, or `None` without a compiler.
fn planted(
    stem: &'static str,
    defines: &[&'static str],
    words: &[Vec<u32>],
    watch: Watch,
) -> Option<Trial> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let buffers: Vec<usize> = words.iter().map(Vec::len).collect();
    match Trial::new(&sources, stem, defines, &buffers, watch) {
        Ok(trial) => Some(trial),
        Err(BackendError::Unavailable(fault)) => {
            let required = std::env::var("FOLIO_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "FOLIO_REQUIRE_GPU=1, but {fault}");
            println!("SKIPPED: {fault}");
            None
        }
        Err(fault) => panic!("{fault}"),
    }
}

/// Outcomes of some launches: the last buffer, or the races.
fn outcomes(trial: &mut Trial, words: &[Vec<u32>], blocks: u32) -> Vec<Result<Vec<u32>, String>> {
    outcomes_of(trial, words, (blocks, THREADS), 16 * THREADS)
}

fn outcomes_of(
    trial: &mut Trial,
    words: &[Vec<u32>],
    grid: (u32, u32),
    shared_bytes: u32,
) -> Vec<Result<Vec<u32>, String>> {
    let mut launch = || match trial.run(words, grid, shared_bytes) {
        Ok(mut buffers) => Ok(buffers.pop().expect("there is a buffer")),
        Err(BackendError::Validation(races)) => Err(races),
        Err(fault) => panic!("{fault}"),
    };
    (0..LAUNCHES).map(|_| launch()).collect()
}

const COPIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/planted/copies");
const BLOCKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/planted/blocks");
const EARLY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/planted/early");
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/planted/shared");
const PRODUCTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/kernels/planted/products"
);

fn copies() -> (Vec<Vec<u32>>, Vec<u32>) {
    let words: Vec<u32> = (0..8 * THREADS).collect();
    let expected = (0..2 * THREADS)
        .map(|i| words[(4 * ((i / 2) ^ 33) + i % 2 * 4 * THREADS) as usize])
        .collect();
    (vec![words, vec![0; 2 * THREADS as usize]], expected)
}

fn blocks(count: u32) -> (Vec<Vec<u32>>, Vec<u32>) {
    let each: Vec<u32> = (0..count).map(|block| 1 << block).collect();
    (
        vec![
            each.clone(),
            vec![0; (count * THREADS) as usize],
            vec![0],
            vec![0],
        ],
        vec![each.iter().sum()],
    )
}

/// An asynchronous copy may arrive at any moment before it is waited for, at once or late.
#[test]
fn an_asynchronous_copy_lands_at_any_moment() {
    let (words, expected) = copies();
    for (define, watch) in [("RIGHT", Watch::Results), ("RIGHT", Watch::Races)] {
        let Some(mut trial) = planted(COPIES, &[define], &words, watch) else {
            return;
        };
        assert!(
            outcomes(&mut trial, &words, 1)
                .iter()
                .all(|found| found.as_ref() == Ok(&expected)),
            "{watch:?}"
        );
    }
    for define in ["UNAWAITED", "OVERWRITTEN"] {
        let Some(mut trial) = planted(COPIES, &[define], &words, Watch::Results) else {
            return;
        };
        let found = outcomes(&mut trial, &words, 1);
        let wrong = found
            .iter()
            .filter(|found| found.as_ref() != Ok(&expected))
            .count();
        println!("{define}: {wrong} of {LAUNCHES} launches are wrong");
        assert!(wrong > 0, "{define} is noticed");
        let Some(mut trial) = planted(COPIES, &[define], &words, Watch::Races) else {
            return;
        };
        let found = outcomes(&mut trial, &words, 1);
        println!("{define}: {:?}", found[0]);
        assert!(found.iter().all(|found| {
            found
                .as_ref()
                .is_err_and(|races| races.contains("asynchronous copy"))
        }));
    }
}

/// A block that is counted before it has written is noticed, because blocks take turns.
#[test]
fn several_blocks_take_turns() {
    let (words, expected) = blocks(6);
    let Some(mut trial) = planted(BLOCKS, &["RIGHT"], &words, Watch::Results) else {
        return;
    };
    assert!(
        outcomes(&mut trial, &words, 6)
            .iter()
            .all(|found| found.as_ref() == Ok(&expected))
    );
    let Some(mut trial) = planted(BLOCKS, &["EARLY"], &words, Watch::Results) else {
        return;
    };
    let wrong = outcomes(&mut trial, &words, 6)
        .iter()
        .filter(|found| found.as_ref() != Ok(&expected))
        .count();
    println!("{wrong} of {LAUNCHES} launches are wrong");
    assert!(
        wrong > 0,
        "a block is counted too early, and nobody noticed"
    );
}

/// What another block has written is read only after fences on both sides; every launch without one is noticed.
#[test]
fn blocks_exchange_only_what_fences_order() {
    let (words, expected) = blocks(6);
    let Some(mut trial) = planted(BLOCKS, &["RIGHT"], &words, Watch::Races) else {
        return;
    };
    let found = outcomes(&mut trial, &words, 6);
    assert!(
        found.iter().all(|found| found.as_ref() == Ok(&expected)),
        "{found:?}"
    );
    for define in ["EARLY", "UNRELEASED", "UNACQUIRED"] {
        let Some(mut trial) = planted(BLOCKS, &[define], &words, Watch::Races) else {
            return;
        };
        let found = outcomes(&mut trial, &words, 6);
        println!("{define}: {:?}", found[0]);
        assert!(
            found.iter().all(|found| found
                .as_ref()
                .is_err_and(|races| races.contains("after write"))),
            "{define}"
        );
    }
}

/// Every race within a block is noticed in every launch, with the places of both accesses.
#[test]
fn accesses_to_shared_memory_are_ordered() {
    let words = [vec![0; THREADS as usize]];
    let Some(mut trial) = planted(SHARED, &["RIGHT"], &words, Watch::Races) else {
        return;
    };
    let found = outcomes(&mut trial, &words, 1);
    assert!(found.iter().all(Result::is_ok), "{found:?}");
    for (define, races) in [
        ("UNWRITTEN", "after write"),
        ("OVERWRITTEN", "after read"),
        ("LANES", "after write"),
        ("TWICE", "write by"),
        ("MIXED", "atomic operation"),
        ("HALVES", "write by"),
    ] {
        let Some(mut trial) = planted(SHARED, &[define], &words, Watch::Races) else {
            return;
        };
        let found = outcomes(&mut trial, &words, 1);
        println!("{define}: {:?}", found[0]);
        assert!(
            found
                .iter()
                .all(|found| found.as_ref().is_err_and(|found| found.contains(races))),
            "{define}"
        );
        assert!(
            found[0]
                .as_ref()
                .is_err_and(|found| found.matches("shared.cu:").count() >= 2),
            "{found:?}"
        );
    }
}

/// A kernel that accesses device memory before it has waited for the kernels before it is noticed in every launch, even
/// if it computes what it should; a prefetch is no access.
#[test]
fn no_kernel_accesses_memory_before_its_predecessors_have_ended() {
    let words = [(0..THREADS).collect(), vec![0; THREADS as usize]];
    let expected: Vec<u32> = (0..THREADS).map(|word| 2 * word).collect();
    let Some(mut trial) = planted(EARLY, &["RIGHT"], &words, Watch::Races) else {
        return;
    };
    let found = outcomes(&mut trial, &words, 1);
    assert!(
        found.iter().all(|found| found.as_ref() == Ok(&expected)),
        "{found:?}"
    );
    for (define, access) in [
        ("READS", "read by"),
        ("WRITES", "write by"),
        ("COPIES", "read by"),
    ] {
        let Some(mut trial) = planted(EARLY, &[define], &words, Watch::Races) else {
            return;
        };
        let found = outcomes(&mut trial, &words, 1);
        println!("{define}: {:?}", found[0]);
        let is_named = |races: &String| {
            races.contains(access) && races.contains("before the predecessors were awaited")
        };
        assert!(
            found
                .iter()
                .all(|found| found.as_ref().is_err_and(is_named)),
            "{define}"
        );
    }
}

/// Small whole numbers, so that all sums are exact: the operands as f16, and the bits of the second product.
fn products() -> (Vec<Vec<u32>>, Vec<u32>) {
    let matrix = |rows: usize, columns: usize, seed: usize| {
        let number = move |at: usize| (((at + seed) * 2_654_435_761) >> 20) % 5;
        (0..rows * columns)
            .map(|at| number(at) as f32 - 2.0)
            .collect::<Vec<f32>>()
    };
    let (a, b, values) = (matrix(64, 64, 1), matrix(128, 64, 7), matrix(128, 128, 3));
    let dot = |a: &[f32], b: &mut dyn Iterator<Item = f32>| {
        a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>()
    };
    let scores = a.chunks(64).flat_map(|row| {
        b.chunks(64)
            .map(move |key| dot(row, &mut key.iter().copied()))
    });
    let scores: Vec<f32> = scores.collect();
    let column = |column| values.iter().skip(column).step_by(128).copied();
    let out = scores
        .chunks(128)
        .flat_map(|row| (0..128).map(move |at| dot(row, &mut column(at)).to_bits()));
    let halves = |matrix: &[f32]| {
        let pair = |pair: &[f32]| {
            let [low, high] = [0, 1].map(|at| u32::from(half::f16::from_f32(pair[at]).to_bits()));
            low | high << 16
        };
        matrix.chunks(2).map(pair).collect::<Vec<u32>>()
    };
    (
        vec![halves(&a), halves(&b), halves(&values), vec![0; 64 * 128]],
        out.collect(),
    )
}

/// Products of warpgroups read shared memory and registers, and write their sums, at any moment until they are waited
/// for; their operands are where their descriptions say.
#[test]
fn products_of_a_warpgroup_take_effect_when_they_are_awaited() {
    let (words, expected) = products();
    let launched = |define: &'static str, watch| {
        let mut trial = planted(PRODUCTS, &[define], &words, watch)?;
        Some(outcomes_of(
            &mut trial,
            &words,
            (1, 128),
            1024 + (64 + 3 * 128) * 128,
        ))
    };
    for watch in [Watch::Results, Watch::Races] {
        let Some(found) = launched("RIGHT", watch) else {
            return;
        };
        let right = found
            .iter()
            .filter(|found| found.as_ref() == Ok(&expected))
            .count();
        assert_eq!(
            right,
            LAUNCHES,
            "{watch:?}: {:?}",
            found.iter().find_map(|found| found.as_ref().err())
        );
    }
    for (define, always) in [
        ("STRIDE", true),
        ("UNAWAITED", true),
        ("UNFENCED", true),
        ("OVERWRITTEN", false),
        ("REGISTERS", false),
    ] {
        let Some(found) = launched(define, Watch::Results) else {
            return;
        };
        let wrong = found
            .iter()
            .filter(|found| found.as_ref() != Ok(&expected))
            .count();
        println!("{define}: {wrong} of {LAUNCHES} launches are wrong");
        assert!(
            if always { wrong == LAUNCHES } else { wrong > 0 },
            "{define}"
        );
    }
    for (define, race) in [
        ("OVERWRITTEN", "after write"),
        ("UNPROXIED", "without a proxy fence after"),
    ] {
        let Some(found) = launched(define, Watch::Races) else {
            return;
        };
        println!("{define}: {:?}", found[0]);
        let is_named = |races: &String| races.contains("product by") && races.contains(race);
        assert!(
            found
                .iter()
                .all(|found| found.as_ref().is_err_and(is_named)),
            "{define}"
        );
    }
}
