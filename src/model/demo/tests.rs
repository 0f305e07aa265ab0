//! Tests of `model/demo.rs`.

use crate::model::Model;
use crate::plan::{Storage, WeightFormat};
use crate::platform::block_on;
use folio_demo::WEIGHTS;
use std::convert::Infallible;

#[test]
fn matrices_are_slices_of_the_file_and_not_copies() {
    let file = WEIGHTS.as_ptr_range();
    let model = Model::demo();
    let plan = model.record(Storage::F32);
    let mut bytes_shared = 0;
    let uploaded = block_on(
        model.upload(&plan, |id, _, bytes| -> Result<(), Infallible> {
            let is_shared = file.contains(&bytes.as_ptr());
            let is_stored = plan.weight_spec(id).format_of(0) == WeightFormat::Bf16;
            assert_eq!(
                is_shared,
                is_stored,
                "{} is copied only if it is widened",
                plan.weight_spec(id).name
            );
            bytes_shared += if is_shared { bytes.len() } else { 0 };
            Ok(())
        }),
    );
    uploaded.expect("the demo model uploads");
    assert!(
        bytes_shared * 100 > WEIGHTS.len() * 99,
        "nearly all of the file: {bytes_shared} bytes"
    );
}

#[test]
fn a_model_may_move_to_the_thread_that_runs_it() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&Model::demo());
}
