//! Tests of `cli/rivals.rs`.

use super::*;
use folio::backend::cpu::{CpuBackend, CpuOptions};

#[test]
fn the_faster_one_for_a_typical_request_wins() {
    let speed = |prefill, decode| Speed { prefill, decode };
    let rivals = |gpu, cpu| Rivals { gpu, cpu };
    assert!(
        rivals(speed(900.0, 30.0), speed(100.0, 30.0)).gpu_wins(),
        "the same decode, a faster prompt"
    );
    assert!(
        !rivals(speed(900.0, 10.0), speed(300.0, 30.0)).gpu_wins(),
        "an answer takes longer than its prompt"
    );
    let said = rivals(speed(900.4, 10.0), speed(300.0, 30.0)).to_string();
    assert!(
        said.contains("900 tokens/s of a prompt and 10 of an answer on the integrated GPU"),
        "{said}"
    );
}

#[test]
fn a_device_is_measured_in_time() {
    let speed = speed(|| Ok(CpuBackend::new(&CpuOptions::default())))
        .expect("the processor is always there");
    assert!(
        speed.prefill > 1.0 && speed.decode > 1.0 && speed.seconds().is_finite(),
        "{speed}"
    );
}
