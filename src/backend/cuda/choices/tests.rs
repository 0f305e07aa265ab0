//! Tests of `backend/cuda/choices.rs`.

use super::*;

fn shape(rows: u32) -> ProductShape {
    ProductShape {
        rows,
        outputs: 4096,
        columns: 1024,
        stride: 6144,
        wide: rows % 2 == 1,
        accumulate: rows > 8,
    }
}

#[test]
fn choices_are_kept_for_one_gpu_driver_and_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = |versions| Choices::open(Some(folder.path()), versions);
    let mut choices = open("a GPU, driver 13.0");
    assert_eq!(choices.get(shape(7)), None);
    choices.insert(shape(7), 3);
    choices.insert(shape(16), 0);
    choices.save();
    let again = open("a GPU, driver 13.0");
    assert_eq!(
        [7, 16, 8].map(|rows| again.get(shape(rows))),
        [Some(3), Some(0), None]
    );
    assert_eq!(open("a GPU, driver 13.1").get(shape(7)), None);
}

#[test]
fn a_damaged_file_has_no_choices() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut choices = Choices::open(Some(folder.path()), "a GPU");
    choices.insert(shape(7), 3);
    choices.save();
    let file = choices.file.expect("there is a folder");
    let mut bytes = std::fs::read(&file).expect("it was written");
    *bytes.last_mut().expect("it has bytes") ^= 1;
    std::fs::write(&file, bytes).expect("it is writable");
    assert_eq!(
        Choices::open(Some(folder.path()), "a GPU").get(shape(7)),
        None
    );
    assert!(parse("1 2 3").is_none() && parse("1 2 3 4 1 0 -1").is_none());
}
