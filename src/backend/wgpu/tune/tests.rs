//! Tests of `backend/wgpu/tune.rs`.

use super::*;

/// The usual choice is the first candidate, and scratch memory is enough for all of them.
#[test]
fn candidates_are_between_the_usual_and_the_largest() {
    for parameter in &PARAMETERS {
        let (mut usual, mut largest) = (Tuning::USUAL, Tuning::LARGEST);
        assert_eq!(*(parameter.of)(&mut usual), parameter.candidates[0]);
        assert!(
            parameter
                .candidates
                .iter()
                .all(|candidate| candidate <= (parameter.of)(&mut largest))
        );
    }
}

#[test]
fn choices_are_kept_and_what_is_not_ours_is_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = path(folder.path(), "vulkan", "A GPU (rev. 2)", "driver/../1.0");
    assert_eq!(
        path.parent(),
        Some(folder.path()),
        "a driver's name does not lead elsewhere"
    );
    assert_eq!(read(&path), BTreeMap::new());
    let one = Choice {
        tuning: Tuning {
            product_workgroups: 8,
            ..Tuning::USUAL
        },
        measured: 1,
    };
    let two = Choice {
        tuning: Tuning::LARGEST,
        measured: PARAMETERS.len(),
    };
    keep(&path, "one".into(), one);
    keep(&path, "two".into(), two);
    let kept = BTreeMap::from([("one".to_owned(), one), ("two".to_owned(), two)]);
    assert_eq!(read(&path), kept);
    for odd in [
        Choice {
            tuning: Tuning {
                tile_rows: 1000,
                ..Tuning::USUAL
            },
            ..one
        },
        Choice {
            measured: PARAMETERS.len() + 1,
            ..one
        },
    ] {
        keep(&path, "odd".into(), odd);
        assert_eq!(read(&path), kept, "only candidates are taken");
    }
    let mut bytes = std::fs::read(&path).expect("the file was written");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).expect("the file can be written");
    assert_eq!(read(&path), BTreeMap::new(), "a damaged file");
    std::fs::write(&path, br#"{"one": 8}"#).expect("the file can be written");
    assert_eq!(
        read(&path),
        BTreeMap::new(),
        "a file that another program wrote"
    );
}
