//! Files that are not what their names say.

/// Bytes at the start of a file that [`stand_in`] needs.
pub(super) const START_BYTES: u64 = 64;

/// What a file is instead of a model's, from its first bytes: the rest of a sentence that starts with its name. `None`
/// if it may be what its name says.
pub fn stand_in(start: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(&start[..start.len().min(START_BYTES as usize)])
        .to_ascii_lowercase();
    if start.is_empty() {
        Some("is empty")
    } else if text.starts_with("version https://git-lfs") {
        Some(
            "is a pointer of Git LFS, not the file itself: download it with `git lfs pull`, or anew",
        )
    } else if ["<!doctype", "<html"]
        .iter()
        .any(|tag| text.trim_start().starts_with(tag))
    {
        Some("is an HTML page, not the file itself: download it anew")
    } else {
        None
    }
}
