//! Tests of `engine/draft_plan.rs`.

use super::*;
use crate::plan::KvGroup;

fn last(tokens: u32) -> Option<Window> {
    Some(Window::Last(tokens))
}

fn plan(windows: &[Option<Window>], vocab: u32) -> Plan {
    let kv_groups = windows.iter().map(|&window| KvGroup { window }).collect();
    Plan {
        kv_groups,
        vocab,
        positions_max: 100,
        ..Plan::default()
    }
}

#[test]
fn a_draft_model_uses_the_blocks_that_are_kept_long_enough() {
    let shared = |model: &[Option<Window>], draft: &[Option<Window>]| {
        shared_groups(&plan(model, 8), &plan(draft, 8)).map_err(|error| error.to_string())
    };
    assert_eq!(shared(&[None], &[None]), Ok(vec![0]));
    assert_eq!(
        shared(&[None, last(8)], &[last(8), None]),
        Ok(vec![1, 0]),
        "in any order"
    );
    assert_eq!(
        shared(&[None, last(8)], &[last(9)]),
        Ok(vec![0]),
        "a longer window needs the whole"
    );
    assert_eq!(
        shared(&[None, last(16), last(12)], &[last(9), last(4)]),
        Ok(vec![2, 2]),
        "the shortest that suffices"
    );
    let chunk = |tokens| Some(Window::Chunk(tokens));
    assert_eq!(
        shared(
            &[None, chunk(16), last(16)],
            &[last(8), chunk(16), chunk(8)]
        ),
        Ok(vec![2, 1, 2]),
        "the first row of a chunk sees no others"
    );
    let error = shared(&[last(8)], &[None]).expect_err("nothing keeps all tokens");
    assert!(error.contains("100 tokens"), "{error}");
    let error = shared_groups(&plan(&[None], 8), &plan(&[None], 9))
        .expect_err("another vocabulary")
        .to_string();
    assert!(error.contains("9 tokens") && error.contains('8'), "{error}");
}
