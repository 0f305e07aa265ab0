//! Source rules as tests: allowed imports, no import cycles, no copied functions, one file name per kernel, length
//! limits, and forbidden calls.
//!
//! Rules read the source text with strings and comments blanked out ([`reader`]), so a word in prose never counts.

mod circles;
mod copies;
mod imports;
mod kernels;
mod pages;
mod reader;
mod style;

/// Fails with all findings.
fn judge(rule: &str, findings: &[String]) {
    assert!(
        findings.is_empty(),
        "{rule}: {} findings\n  {}",
        findings.len(),
        findings.join("\n  ")
    );
}
