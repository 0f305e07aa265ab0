//! Tests of `cli/commands/selftest/log.rs`.

use super::*;

#[test]
fn a_run_that_was_cut_off_is_known_by_the_check_that_did_not_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("log");
    let log = Log::open(&path).expect("a new file");
    assert_eq!((log.begun().len(), log.cut_off().len()), (0, 0));
    for (number, name) in [(3, "a"), (5, "b")] {
        log.write(&Told::Begins { number, name });
    }
    let whole = std::fs::read_to_string(&path).expect("the file");
    std::fs::write(
        &path,
        format!("{whole}{{\"ends\": 3}}\n{{\"ends\": 5, \"che"),
    )
    .expect("the file");
    let log = Log::open(&path).expect("the file");
    assert_eq!(
        (log.begun(), log.cut_off()),
        ([3, 5].into(), &["b".to_owned()][..])
    );
}
