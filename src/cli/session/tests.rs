//! Tests of `cli/session.rs`.

use super::*;

#[test]
fn each_part_of_a_start_has_its_own_phase() {
    let mut loading = Loading {
        phase: None,
        tells: Tells::Nothing,
        quantizes: true,
        compiling_since: None,
    };
    let mut told = |progress| {
        loading.tell(progress);
        let (stage, _) = loading.phase.as_ref().expect("something is being done");
        stage.in_words(loading.quantizes).0
    };
    let weights = |done| Progress::Weights { done, total: 9 };
    let kernels = |done| Progress::Kernels { done, total: 2 };
    assert_eq!(told(weights(1)), "quantizing weights");
    assert_eq!(told(weights(9)), "measuring the device");
    assert_eq!(told(kernels(1)), "compiling kernels");
    assert_eq!(
        told(kernels(2)),
        "measuring the device",
        "what follows is not the kernels' time"
    );
}
