//! Source rules as tests: allowed imports, no circles of imports or of a type's calls, no copied functions, one file
//! name per kernel, limits of length and density, and forbidden calls.
//!
//! Rules read the source text with strings and comments blanked out ([`reader`]), so a word in prose never counts.

mod calls;
mod circles;
mod copies;
mod imports;
mod kernels;
mod lists;
mod pages;
mod reader;
mod style;
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
