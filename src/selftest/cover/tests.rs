//! Tests of `selftest/cover.rs`.

use super::*;

#[test]
fn a_value_of_one_case_is_met_by_all_devices() {
    let case = |values: &[&str]| {
        (
            "step",
            values.iter().map(|value| (*value).to_owned()).collect(),
        )
    };
    let shares = pairwise(
        &[case(&["a", "b"]), case(&["a", "c"]), case(&["a", "c"])],
        2,
    );
    assert_eq!(shares[0], BTreeSet::from([0, 1]), "b is in one case only");
    assert_eq!(
        (shares[1].len(), shares[2].len()),
        (1, 1),
        "c is in as many cases as there are devices"
    );
    assert_ne!(shares[1], shares[2]);
}
