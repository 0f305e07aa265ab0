//! Tests of `plan/work.rs`.

use super::*;
use crate::model::{Model, ModelSpec};
use crate::plan::inputs::SequenceRows;
use crate::plan::{KvGroup, Storage};

#[test]
fn a_chunk_sees_what_its_rows_see() {
    let plan = Plan {
        kv_groups: vec![
            KvGroup { window: None },
            KvGroup {
                window: Some(Window::Last(4)),
            },
        ],
        ..Plan::default()
    };
    let rows = |row_count, context_len| SequenceRows {
        row_start: 0,
        row_count,
        context_len,
    };
    let inputs = BatchInputs {
        sequences: vec![rows(3, 10), rows(1, 7)],
        ..BatchInputs::default()
    };
    let [all, window] = Reach::of(&plan, &inputs)[..] else {
        panic!("there are two groups")
    };
    assert_eq!(
        all,
        Reach {
            pairs: 8.0 + 9.0 + 10.0 + 7.0,
            keys: 10.0 + 7.0
        }
    );
    assert_eq!(
        window,
        Reach {
            pairs: 3.0 * 4.0 + 4.0,
            keys: 6.0 + 4.0
        }
    );
}

/// The usual estimates: two operations per weight and token, every weight read once, and attention by its context.
#[test]
fn a_models_work_is_as_usual() {
    let spec = ModelSpec::named("llama-3-8b").expect("a known shape");
    let plan = Model::random(spec, 0).record(Storage::F32);
    let work = |tokens, context: f64| -> Work {
        let reach = [Reach {
            pairs: context * f64::from(tokens),
            keys: context,
        }];
        plan.steps()
            .map(|step| StepWork::of(&plan, step, tokens, 1, KvFormat::F16).at(&reach))
            .sum()
    };
    let one = work(1, 0.0);
    assert!((1.45e10..1.6e10).contains(&one.operations), "{one:?}");
    let weights = plan.token_weight_bytes() as f64;
    assert!(
        one.bytes > weights && one.bytes < 1.01 * weights,
        "{one:?} for {weights} bytes"
    );
    let attention = work(1, 8192.0).operations - one.operations;
    assert_eq!(attention, 32.0 * 4.0 * 32.0 * 128.0 * 8192.0);
    assert_eq!(
        work(1, 8192.0).bytes - one.bytes,
        plan.token_kv_bytes(8192, KvFormat::F16) as f64
    );
}
