//! Tests of `selftest/cover.rs`.

use super::*;

#[test]
fn a_value_of_one_case_is_met_by_all_devices() {
    let case = |values: &[&str]| Case {
        step: "step",
        kernels: values.concat(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
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

#[test]
fn cases_with_the_same_kernels_stay_together() {
    let case = |kernels: &str, value: &str| Case {
        step: "step",
        kernels: kernels.to_owned(),
        values: vec![value.to_owned()],
    };
    let shares = pairwise(
        &[
            case("a", "1"),
            case("b", "1"),
            case("a", "1"),
            case("b", "1"),
        ],
        2,
    );
    assert_ne!(shares[0], shares[1], "each device runs the value");
    assert_eq!((&shares[2], &shares[3]), (&shares[0], &shares[1]));
}

#[test]
fn a_packed_format_counts_by_its_components() {
    assert_eq!(components("bias"), ["bias"]);
    let dense = format!("{} to F16", WeightFormat::Bf16);
    assert_eq!(components(&dense), std::slice::from_ref(&dense));
    let parts = |format: WeightFormat| components(&format!("{format} to F32"));
    let (first, second) = (parts(WeightFormat::Q4K), parts(WeightFormat::Q5K));
    assert_eq!(first[1..], second[1..], "levels and scales are the same");
    assert_ne!(first[0], second[0]);
}
