//! The house rules, executed: who may import whom, no circles, no copies, one stem a kernel, lengths, and the calls
//! that do not belong here.
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
    assert!(findings.is_empty(), "{rule}: {} findings\n  {}", findings.len(), findings.join("\n  "));
}
