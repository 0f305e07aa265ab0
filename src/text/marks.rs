//! Characters that keep special-token strings of a conversation apart from those that a template writes.

/// Stands before a special-token string, or breaks the beginning of one; the first noncharacter of the block
/// U+FDD0..=U+FDEF.
pub(super) const MARK: char = '\u{FDD0}';
/// Stands behind a special-token string.
pub(super) const MARK_END: char = '\u{FDD2}';

/// A text as the template would have it without marks.
pub(super) fn without_marks(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains([MARK, MARK_END]) {
        text.replace([MARK, MARK_END], "").into()
    } else {
        text.into()
    }
}

/// Whether a character is one of those that stand for marks and aliases.
pub(super) fn is_noncharacter(character: char) -> bool {
    ('\u{FDD0}'..='\u{FDEF}').contains(&character)
}
