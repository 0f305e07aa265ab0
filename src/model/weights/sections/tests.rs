//! Tests of `model/weights/sections.rs`.

use super::*;

fn weights_of<P>(rows: Rows<P>) -> impl Iterator<Item = LayerWeight> {
    rows.iter().map(|(weight, _)| *weight)
}

#[test]
fn every_weight_of_a_layer_has_one_row() {
    let rows: Vec<LayerWeight> = weights_of(MIXER_NORMS)
        .chain(weights_of(MLP_NORMS))
        .chain(weights_of(ATTENTION))
        .chain(weights_of(LATENT))
        .chain(weights_of(CONVOLUTION))
        .chain(weights_of(STATE))
        .chain(weights_of(MLP))
        .chain(weights_of(EXPERTS))
        .chain(weights_of(LAYER_EMBEDDING))
        .chain(weights_of(ANY_LAYER))
        .collect();
    for weight in LayerWeight::ALL {
        let count = rows.iter().filter(|row| *row == weight).count();
        assert_eq!(count, 1, "{weight:?}");
    }
}
