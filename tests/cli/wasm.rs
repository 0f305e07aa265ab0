//! Type-checks the library and the web crate for browsers, if that target is installed.

use std::path::Path;
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";

fn is_installed() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let found = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    found.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

#[test]
fn the_browser_side_type_checks() {
    if !is_installed() {
        eprintln!("skipped: `rustup target add {TARGET}` would let this test run");
        return;
    }
    // Both in one command: separately, some crates would get different features and be checked twice.
    let checked = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["check", "--locked", "--lib", "-p", "folio", "-p", "folio-web", "--target", TARGET])
        .args(["--no-default-features", "--features", "folio/api"])
        .output()
        .expect("cargo runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
