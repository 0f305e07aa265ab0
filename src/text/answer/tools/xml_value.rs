//! [`XmlValue`]: the value of an argument in tags, and where it ends.
//!
//! Values are not escaped, so a file that is written may contain any of the tags. The text after a closing tag decides
//! whether it ends the value; arguments and calls within a value are counted, so that their tags are not taken for its
//! own. Text is passed on as soon as it is certain to belong to the value and to be a text.

use super::super::json_text::{escaped, quoted};
use super::super::marker::begins;
use super::tags::{Due, FUNCTION, Notation, is_in_name};
use super::types::Allowed;

/// A value that is being read.
#[derive(Clone, Debug)]
pub(crate) struct XmlValue {
    key: String,
    allowed: Allowed,
    /// The text that was not passed on, and how much of it was looked at.
    text: String,
    searched: usize,
    /// Whether the value is a text of which some was passed on.
    is_begun: bool,
    /// JSON that was not taken yet, and whether any was.
    json: String,
    is_taken: bool,
    /// Values, functions and calls that were opened within this value.
    values: usize,
    functions: usize,
    calls: usize,
    /// Where the value ends if nothing proves that it goes on.
    doubt: Option<Doubt>,
}

/// A place at which a value, and perhaps its call, may end.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// The end of the value, and where to read on.
    end: usize,
    rest: usize,
    /// It is within what looks like a call.
    is_nested: bool,
    /// It is at the beginning of a line.
    is_line: bool,
}

/// Where a value ends.
pub(super) enum End {
    Open,
    /// Before this text.
    At(String),
}

/// What a tag within a value is.
enum Verdict {
    /// The value ends before it. This many bytes of the tag are the value's own.
    Ends(usize),
    /// The same, unless something later ends the value.
    May(usize),
    /// The value has ended where that was in doubt.
    HasEnded,
    Text,
}

#[derive(Clone, Copy)]
enum Tag {
    ValueEnd,
    Key,
    ValueStart,
    Function,
    FunctionEnd,
    Call,
    CallEnd,
}

/// What is known beside the value's own text.
pub(super) struct Context<'a> {
    pub(super) notation: &'a Notation,
    pub(super) due: Due<'a>,
    /// The text has ended.
    pub(super) is_over: bool,
}

impl Context<'_> {
    /// Whether a text begins with `start`; `None` if that is open.
    fn begins(&self, text: &str, start: &str) -> Option<bool> {
        begins(text, start).or(self.is_over.then_some(false))
    }

    fn begins_call(&self, text: &str) -> Option<bool> {
        self.notation
            .begins_call(text)
            .or(self.is_over.then_some(false))
    }

    /// Whether the text after the tag of a function is a name.
    fn begins_name(&self, text: &str) -> Option<bool> {
        match text.find(|c: char| !is_in_name(c)) {
            Some(end) => Some(text[end..].starts_with(['>', '\n'])),
            None => self.is_over.then_some(false),
        }
    }

    /// The tag with which a text begins.
    fn tag(&self, text: &str) -> Option<Option<(Tag, usize)>> {
        let (tags, [call, call_end]) = (self.notation.tags, *self.notation.markers);
        let function = tags.last.map(|_| FUNCTION);
        let all = [
            (tags.value[1], Tag::ValueEnd),
            (tags.key[0], Tag::Key),
            (tags.value[0], Tag::ValueStart),
            (function.unwrap_or_default(), Tag::Function),
            (tags.last.unwrap_or_default(), Tag::FunctionEnd),
            (call, Tag::Call),
            (call_end, Tag::CallEnd),
        ];
        for (tag, kind) in all {
            if !tag.is_empty() && self.begins(text, tag)? {
                return Some(Some((kind, tag.len())));
            }
        }
        Some(None)
    }

    /// Whether a call ends with the text after its last value: certainly, or perhaps.
    fn ends_call(&self, next: &str) -> Option<Option<IsCertain>> {
        let [_, close] = *self.notation.markers;
        if let Some(last) = self.notation.tags.last {
            if self.begins(next, last)? {
                return self.ends_after(&next[last.len()..]).map(Some);
            }
            if self.begins(next, close)? {
                let next = next[close.len()..].trim_start();
                let is_last = if next.is_empty() {
                    self.is_over.then_some(true)?
                } else {
                    self.begins_call(next)?
                };
                return Some(Some(IsCertain(is_last)));
            }
            return Some(self.begins_call(next)?.then_some(IsCertain(false)));
        }
        let is_end = self.begins(next, close)? || self.begins_call(next)?;
        Some(is_end.then_some(IsCertain(true)))
    }

    /// Whether the text after the last tag of a call proves that it was the last.
    fn ends_after(&self, text: &str) -> Option<IsCertain> {
        let next = text.trim_start();
        if next.is_empty() {
            return self.is_over.then_some(IsCertain(true));
        }
        let is_end = self.begins(next, self.notation.markers[1])? || self.begins_call(next)?;
        Some(IsCertain(is_end))
    }
}

/// Whether an end is certain.
struct IsCertain(bool);

impl XmlValue {
    pub(super) fn new(key: String, allowed: Allowed) -> Self {
        Self {
            key,
            allowed,
            text: String::new(),
            searched: 0,
            is_begun: false,
            json: String::new(),
            is_taken: false,
            values: 0,
            functions: 0,
            calls: 0,
            doubt: None,
        }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The new JSON of this value, with its key if it begins; `before` is what separates it from others.
    pub(super) fn take(&mut self, before: char) -> String {
        let json = std::mem::take(&mut self.json);
        if json.is_empty() || std::mem::replace(&mut self.is_taken, true) {
            return json;
        }
        format!("{before}{}:{json}", quoted(&self.key))
    }

    /// Takes more text.
    pub(super) fn read(&mut self, text: &str, context: &Context<'_>) -> End {
        self.text.push_str(text);
        while let Some(at) = self.text[self.searched..].find('<') {
            self.searched += at;
            let at = self.searched;
            let Some(verdict) = self.verdict(at, context) else {
                self.pass_on(at);
                return End::Open;
            };
            match verdict {
                Verdict::Ends(own) => return self.end(at, at + own),
                Verdict::May(own) => {
                    self.doubt.get_or_insert(Doubt {
                        end: at,
                        rest: at + own,
                        is_nested: self.is_nested(),
                        is_line: self.is_line(at),
                    });
                }
                Verdict::HasEnded => break,
                Verdict::Text => {}
            }
            self.searched = at + 1;
        }
        let has_ended = self.text[self.searched..].starts_with('<');
        if !has_ended && !context.is_over {
            self.searched = self.text.len();
            self.pass_on(self.searched);
            return End::Open;
        }
        let all = self.text.len();
        let (end, rest) = self
            .doubt
            .map_or((all, all), |doubt| (doubt.end, doubt.rest));
        self.end(end, rest)
    }

    fn is_nested(&self) -> bool {
        self.functions + self.calls > 0
    }

    fn is_line(&self, at: usize) -> bool {
        self.text[..at].ends_with('\n') || at == 0 && !self.is_begun
    }

    /// What the tag at a place is; `None` if that is open.
    fn verdict(&mut self, at: usize, context: &Context<'_>) -> Option<Verdict> {
        let text = &self.text[at..];
        let Some((tag, length)) = context.tag(text)? else {
            return Some(Verdict::Text);
        };
        let after = &text[length..];
        Some(match tag {
            Tag::ValueEnd => return self.value_end(at, length, context),
            Tag::Key if !self.is_nested() && self.begins_argument(at, context)? => Verdict::Ends(0),
            Tag::Key if context.notation.tags.value[0].is_empty() => {
                self.opened(|value| &mut value.values)
            }
            Tag::Key => Verdict::Text,
            Tag::ValueStart => self.opened(|value| &mut value.values),
            Tag::Function if context.begins_name(after)? => {
                self.opened(|value| &mut value.functions)
            }
            Tag::Call if context.begins_call(text)? => {
                if !self.is_nested() && self.doubt.is_some_and(|doubt| doubt.is_line) {
                    return Some(Verdict::HasEnded);
                }
                self.opened(|value| &mut value.calls)
            }
            Tag::Function | Tag::Call => Verdict::Text,
            Tag::FunctionEnd if self.functions > 0 => self.closed(|value| &mut value.functions),
            Tag::CallEnd if self.calls > 0 => self.closed(|value| &mut value.calls),
            Tag::FunctionEnd | Tag::CallEnd => match context.ends_after(after)? {
                IsCertain(true) => Verdict::Ends(0),
                IsCertain(false) => Verdict::May(0),
            },
        })
    }

    /// Something was opened within the value.
    fn opened(&mut self, count: impl Fn(&mut Self) -> &mut usize) -> Verdict {
        *count(self) += 1;
        Verdict::Text
    }

    /// A function or a call within the value has ended, so that there was no end of this value in it.
    fn closed(&mut self, count: impl Fn(&mut Self) -> &mut usize) -> Verdict {
        *count(self) -= 1;
        if !self.is_nested() {
            self.doubt = self.doubt.filter(|doubt| !doubt.is_nested);
        }
        Verdict::Text
    }

    /// Whether an argument begins although the value was not closed.
    fn begins_argument(&self, at: usize, context: &Context<'_>) -> Option<bool> {
        let opening = context.notation.tags.value[0];
        if opening.is_empty() && !self.is_line(at) {
            return Some(false);
        }
        let Some((key, rest)) = context.notation.key(&self.text[at..]) else {
            return context.is_over.then_some(false);
        };
        Some(context.due.has(key) && context.begins(rest.trim_start(), opening)?)
    }

    /// A closing tag ends the value before another argument or the end, unless it closes one within the value.
    fn value_end(&mut self, at: usize, length: usize, context: &Context<'_>) -> Option<Verdict> {
        let next = self.text[at + length..].trim_start();
        if next.is_empty() {
            return context.is_over.then_some(Verdict::Ends(length));
        }
        let (is_nested, is_matched) = (self.is_nested(), self.values > 0);
        let mut is_end = false;
        if context.begins(next, context.notation.tags.key[0])? {
            let Some((key, _)) = context.notation.key(next) else {
                return context.is_over.then_some(Verdict::Text);
            };
            is_end = match (is_nested, is_matched) {
                (false, false) => true,
                (true, true) => false,
                _ => context.due.has(key),
            };
        } else if let Some(IsCertain(is_certain)) = context.ends_call(next)? {
            is_end = is_certain && !(is_nested && is_matched);
            if !is_end {
                self.values = self.values.saturating_sub(1);
                return Some(Verdict::May(length));
            }
        }
        if is_end {
            return Some(Verdict::Ends(length));
        }
        self.values = self.values.saturating_sub(1);
        Some(Verdict::Text)
    }

    /// The value ends before `end`.
    fn end(&mut self, end: usize, rest: usize) -> End {
        let rest = self.text[rest..].to_owned();
        let value = &self.text[..end];
        if self.is_begun {
            let value = value.strip_suffix('\n').unwrap_or(value);
            self.json.push_str(&escaped(value));
            self.json.push('"');
        } else {
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            self.json = self.allowed.read(value);
        }
        End::At(rest)
    }

    /// Passes on what is certainly in the value, up to `end`, if it is a text. A line break at the end may belong to
    /// the closing tag.
    fn pass_on(&mut self, end: usize) {
        let end = self.doubt.map_or(end, |doubt| doubt.end.min(end));
        let certain = &self.text[..end];
        let certain = certain.strip_suffix('\n').unwrap_or(certain);
        let end = certain.len();
        if !self.is_begun {
            let text = certain.strip_prefix('\n').unwrap_or(certain);
            if text.is_empty() || !self.allowed.is_text(text) {
                return;
            }
            self.is_begun = true;
            self.json = format!("\"{}", escaped(text));
        } else {
            self.json.push_str(&escaped(certain));
        }
        self.text.drain(..end);
        self.searched -= end;
        if let Some(doubt) = &mut self.doubt {
            doubt.end -= end;
            doubt.rest -= end;
        }
    }
}
