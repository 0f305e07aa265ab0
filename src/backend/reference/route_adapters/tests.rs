//! Tests of `backend/reference/route_adapters.rs`.

use super::*;

#[test]
fn a_token_goes_to_the_slot_of_its_sequences_adapter() {
    let mut routes = [f32::NAN; 6];
    route_adapters([0, 2, 2].into_iter(), 1, None, 1, &mut routes);
    assert_eq!(routes, [0.0, 1.0, 2.0, 1.0, 2.0, 1.0]);
}

#[test]
fn a_route_to_an_expert_goes_to_its_matrix_in_the_slot() {
    let chosen = [3.0, 0.5, 1.0, 0.25, 0.0, 0.75, 2.0, 0.1];
    let mut routes = [f32::NAN; 8];
    route_adapters([0, 2].into_iter(), 4, Some(&chosen), 2, &mut routes);
    assert_eq!(routes, [3.0, 0.5, 1.0, 0.25, 8.0, 0.75, 10.0, 0.1]);
}
