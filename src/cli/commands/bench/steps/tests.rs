//! Tests of `cli/commands/bench/steps.rs`.

use super::*;

/// Files with 4-bit weights may have v in a longer format than q and k, in one matrix with them.
#[test]
fn a_matrix_with_several_formats_is_filled() {
    let section = |rows, format| Section { rows, format };
    let sections = vec![section(6, WeightFormat::Q5), section(2, WeightFormat::Q8)];
    let matrix = Matrix {
        name: "qkv".into(),
        columns: 64,
        sections,
        uses: 1,
    };
    let case = product(&Config::default(), &matrix, 1, Storage::F32);
    let (plan, mut backend) = (Arc::new(case.plan), ReferenceBackend::new());
    backend
        .load(plan.clone(), &case.capacity)
        .expect("the plan is right");
    fill(&mut backend, &plan).expect("each chunk is whole rows of one format");
}
