//! Tests of `cli/drivers.rs`.

use super::*;

#[cfg(unix)]
#[test]
fn a_process_that_crashes_or_hangs_is_noticed() {
    let shell = |script: &str, time_max| succeeds(Path::new("/bin/sh"), &["-c", script], time_max);
    let long = Duration::from_secs(60);
    assert_eq!(shell("exit 0", long), Ok(()));
    let crash = shell("kill -SEGV $$", long).expect_err("it crashes");
    assert!(crash.contains("SIGSEGV"), "{crash}");
    assert!(shell("exit 3", long).is_err_and(|what| what.contains('3')));
    let begin = Instant::now();
    let hang = shell("sleep 60", Duration::from_millis(50)).expect_err("it hangs");
    assert!(hang.starts_with("no answer"), "{hang}");
    assert!(begin.elapsed() < Duration::from_secs(30), "it was ended");
}

#[test]
fn a_program_that_cannot_start_is_an_error() {
    assert!(succeeds(Path::new("/nowhere/folio"), &[], TIME_MAX).is_err());
}
