//! The library and the web crate are type-checked for a browser, where this machine has that target.

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
    // Both at once: apart, they would have some crates with other features, which are then checked twice.
    let checked = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["check", "--locked", "--lib", "-p", "folio", "-p", "folio-web", "--target", TARGET])
        .args(["--no-default-features", "--features", "folio/api"])
        .output()
        .expect("cargo runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
