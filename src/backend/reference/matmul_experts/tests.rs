//! Tests of `backend/reference/matmul_experts.rs`.

use super::*;
use crate::plan::{Plan, WeightFormat};

/// Expert e multiplies two columns by e + 1 and swaps them if e is odd.
fn weight() -> Weight {
    let mut plan = Plan::default();
    let id = plan.weight("w", 6, 2, WeightFormat::F32);
    plan.stack_experts(id, 3);
    let mut weight = Weight::new(plan.weights.remove(0));
    let values = [
        1.0_f32, 0.0, 0.0, 1.0, 0.0, 2.0, 2.0, 0.0, 3.0, 0.0, 0.0, 3.0,
    ];
    weight
        .insert(
            0,
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<u8>>()
                .into(),
        )
        .unwrap();
    weight
}

#[test]
fn each_route_has_its_expert_and_a_token_their_weighted_sum() {
    let weight = weight();
    let routes = [2.0, 0.75, 1.0, 0.25, 0.0, 0.5, 1.0, 0.5];
    let bias = Some(vec![0.0, 0.0, 10.0, 0.0, 0.0, 0.0]);
    let product = |shared| {
        let shape = ExpertShape {
            per_token: 2,
            x_routes: if shared { 2 } else { 1 },
            x_stride: 2,
            outputs: 2,
            combine: !shared,
        };
        Product {
            weight: &weight,
            bias: bias.clone(),
            routes: &routes,
            shape,
        }
    };
    let mut spread = [f32::NAN; 8];
    let output = Output {
        accumulate: false,
        values: &mut spread,
        storage: Storage::F32,
    };
    product(true).spread(&[1.0, 2.0, 5.0, 7.0], output);
    assert_eq!(spread, [3.0, 6.0, 14.0, 2.0, 5.0, 7.0, 24.0, 10.0]);
    let mut combined = [100.0, 0.0, 0.0, 0.0];
    let output = Output {
        accumulate: true,
        values: &mut combined,
        storage: Storage::F32,
    };
    product(false).combine(&[1.0, 2.0, 1.0, 2.0, 5.0, 7.0, 5.0, 7.0], output);
    let row = |first: f32, second: f32| first * 0.5 + second * 0.5;
    assert_eq!(
        combined,
        [
            100.0 + 0.75 * 3.0 + 0.25 * 14.0,
            0.75 * 6.0 + 0.25 * 2.0,
            row(5.0, 24.0),
            row(7.0, 10.0)
        ]
    );
}
