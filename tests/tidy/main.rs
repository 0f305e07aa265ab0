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

/// `(rule, beginning of a path)` pairs that break a rule and are about to be mended. One that is no longer needed
/// fails, so the list can only shrink; it goes when it is empty.
const EXEMPTIONS: &[(&str, &str)] = &[("copies", "src/backend/wgpu/encode/sample.rs")];

/// Fails with all findings that are not exempt; fails too for an exemption that nothing needs.
fn judge(rule: &str, findings: Vec<String>) {
    let exempt: Vec<&str> = EXEMPTIONS.iter().filter(|(name, _)| *name == rule).map(|(_, path)| *path).collect();
    for path in &exempt {
        let needed = findings.iter().any(|finding| finding.starts_with(path));
        assert!(needed, "{path} no longer breaks `{rule}`: take it off EXEMPTIONS");
    }
    let kept: Vec<String> =
        findings.into_iter().filter(|finding| !exempt.iter().any(|path| finding.starts_with(path))).collect();
    assert!(kept.is_empty(), "{rule}: {} findings\n  {}", kept.len(), kept.join("\n  "));
}
