//! Source rules as tests: allowed imports, no import cycles, no copied functions, one file name per kernel, limits of
//! length and density, and forbidden calls.
//!
//! Rules read the source text with strings and comments blanked out ([`reader`]), so a word in prose never counts.

mod circles;
mod copies;
mod imports;
mod kernels;
mod pages;
mod reader;
mod style;
mod tables;
mod tokens;

/// Fails with all findings.
fn judge(rule: &str, findings: &[String]) {
    assert!(
        findings.is_empty(),
        "{rule}: {} findings\n  {}",
        findings.len(),
        findings.join("\n  ")
    );
}
