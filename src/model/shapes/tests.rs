//! Tests of `model/shapes.rs`.

use super::*;

#[test]
fn every_published_shape_has_its_config() {
    let mut names = ModelSpec::SHAPES;
    names.sort_unstable();
    let mut published: Vec<String> = published().into_iter().map(|(name, _)| name).collect();
    published.sort_unstable();
    assert_eq!(published, names);
}
