//! Tests of `cli/mod.rs`.

use super::*;

#[test]
fn arguments_are_well_formed() {
    command_line().debug_assert();
}

#[test]
fn messages_fit_one_line() {
    assert_eq!(
        one_line("error in kernel\n  at line 3\n"),
        "error in kernel at line 3"
    );
}
