//! Tests of the shares of several models.

use super::super::tests::{ACTIVATION_BYTES, BLOCK_BYTES, SHAPE, WEIGHT_BYTES, config, gpu};
use super::*;
use crate::model::{Model, ModelSpec};

/// Bytes of a model without its pool.
const FIXED_BYTES: u64 = WEIGHT_BYTES + ACTIVATION_BYTES;

fn neighbour(config: Config, caps: &Caps) -> Neighbour {
    let model = Model::random(ModelSpec::named(SHAPE).expect("a shape"), 0);
    Neighbour::new(&model, model.record(caps.activations), None, config, caps)
}

/// Settings with a pool of so many blocks.
fn with_blocks(blocks: u64) -> Config {
    Config {
        kv_cache_bytes: Some(blocks * BLOCK_BYTES),
        ..config()
    }
}

/// Bytes of the pool of each model, in blocks.
fn pools(models: &[Neighbour], caps: &Caps) -> Vec<u64> {
    let memory = SharedMemory::new(caps, models.iter().collect());
    models
        .iter()
        .map(|model| memory.share(model).expect("it fits").fit.kv_bytes / BLOCK_BYTES)
        .collect()
}

/// A device of which models may take half: `models` without their pools, and so many blocks.
fn device(models: u64, blocks: u64) -> Caps {
    gpu(Some(2 * (models * FIXED_BYTES + blocks * BLOCK_BYTES)))
}

#[test]
fn pools_without_a_size_share_what_weights_and_activations_leave_equally() {
    let caps = device(2, 80);
    let models = [neighbour(config(), &caps), neighbour(config(), &caps)];
    assert_eq!(pools(&models, &caps), [40, 40]);
}

#[test]
fn a_pool_with_a_size_keeps_it_and_the_others_share_the_rest() {
    let caps = device(3, 100);
    let models = [
        neighbour(with_blocks(60), &caps),
        neighbour(config(), &caps),
        neighbour(config(), &caps),
    ];
    assert_eq!(pools(&models, &caps), [60, 20, 20]);
}

#[test]
fn models_that_only_fit_in_turn_have_the_pool_of_one_whole_context() {
    // Two models leave no block, one alone 80; a sequence of the whole context takes 34.
    let caps = gpu(Some(2 * (FIXED_BYTES + 80 * BLOCK_BYTES)));
    let models = [neighbour(config(), &caps), neighbour(config(), &caps)];
    const { assert!(80 * BLOCK_BYTES < FIXED_BYTES, "both do not fit") };
    assert_eq!(pools(&models, &caps), [34, 34]);
}

#[test]
fn a_model_beyond_what_models_may_take_is_refused_with_both_numbers() {
    let caps = device(1, 40);
    // Alone, its pool may take all of the device's memory; beside others, only their common share.
    let models = [neighbour(with_blocks(60), &caps)];
    let memory = SharedMemory::new(&caps, models.iter().collect());
    let refusal = memory.share(&models[0]).expect_err("it is too large");
    let needed = Bytes(FIXED_BYTES + 60 * BLOCK_BYTES);
    let budget = Bytes(FIXED_BYTES + 40 * BLOCK_BYTES);
    let expected = format!("it needs {needed}, but models may take {budget} together");
    assert_eq!(refusal, expected);
}

#[test]
fn the_smallest_share_that_settings_allow_counts_for_all() {
    let caps = device(2, 80);
    let smaller = Config {
        gpu_memory_utilization: 0.25,
        ..config()
    };
    let models = [neighbour(config(), &caps), neighbour(smaller, &caps)];
    let memory = SharedMemory::new(&caps, models.iter().collect());
    assert_eq!(memory.budget(), Some(FIXED_BYTES + 40 * BLOCK_BYTES));
}

#[test]
fn without_a_known_memory_each_engine_chooses_its_own_pool() {
    let caps = gpu(None);
    let models = [neighbour(config(), &caps)];
    let memory = SharedMemory::new(&caps, models.iter().collect());
    let share = memory.share(&models[0]).expect("nothing is refused");
    assert_eq!((memory.budget(), share.kv_cache_bytes), (None, None));
}
