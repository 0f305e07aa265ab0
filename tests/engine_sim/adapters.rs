//! Requests with adapters, of which there are more than slots: the fake device folds the content of a sequence's slot
//! into the state of each row, so a wrong or stale slot is a wrong token.

use crate::faults::faulty;
use crate::world::{Case, Random, case};
use crate::{SEEDS_EACH, for_seeds, pass, pass_with_preemptions_and_hits};
use folio::engine::request::SlotContent;
use std::sync::Arc;

const SEEDS: u64 = 1_000;

/// The matrix of an adapter with this digest.
pub(crate) fn matrix(digest: [u8; 32]) -> [u8; 8] {
    *digest.first_chunk().expect("a digest is longer")
}

/// The case with a few adapters among its requests.
fn with_adapters(seed: u64, mut case: Case) -> Case {
    let mut random = Random(!seed);
    case.shape.adapter_slots = random.within(1, 3);
    case.config.max_loras = case.shape.adapter_slots;
    let contents = [1, 2, 3, 4].map(|number| {
        let digest = [number; 32];
        let matrix = bytes::Bytes::copy_from_slice(&matrix(digest));
        Arc::new(SlotContent::given(digest, vec![matrix]))
    });
    for arrival in &mut case.arrivals {
        let content = contents.get(random.below(6) as usize);
        arrival.request.adapter = content.cloned();
    }
    case
}

#[test]
fn every_seed_gives_the_oracles_tokens() {
    pass_with_preemptions_and_hits(SEEDS, |seed| with_adapters(seed, case(seed)));
}

#[test]
fn slots_are_written_anew_after_a_device_is_lost() {
    let work = |seed, (): &mut ()| drop(pass(seed, &with_adapters(seed, faulty(seed, case(seed)))));
    for_seeds(SEEDS_EACH, work, |()| {});
}
