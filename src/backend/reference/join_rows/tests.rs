//! Tests of `join_rows`.

use super::*;

fn norm(weight: &[f32], one_plus: bool) -> Norm {
    Norm {
        weight: weight.to_vec(),
        epsilon: 0.0,
        one_plus,
    }
}

/// Rows of two elements, of which the root mean square is 5 and 1.
#[test]
fn a_row_is_that_of_its_token_then_the_carried_one() {
    let x = [1.0, 7.0, 5.0, -5.0];
    let carried = [9.0, 9.0, 1.0, -1.0, 7.0, 1.0];
    let mut out = [0.0; 8];
    let norms = [norm(&[1.0, 10.0], false), norm(&[0.0, 1.0], true)];
    join_rows(&x, &carried, &[2, 1], &norms, &mut out, Storage::F32);
    assert_eq!(out, [0.2, 14.0, 1.4, 0.4, 1.0, -10.0, 1.0, -2.0]);
}
