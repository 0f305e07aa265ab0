//! Rewrites a template's source where Jinja2 reads something that minijinja does not, or reads otherwise.
//!
//! - Line ends of Windows and of old Macs are line feeds.
//! - `{% generation %}`, which marks the assistant's text for training, is a block that is always rendered.
//! - `+x` is `x`; `a % b` also formats a text; the operands of `~` become text as Python's `str` writes them.
//! - A loop's items come from [`ITEMS`], so that `loop.last` and `loop.length` are known for every value.
//! - `{{ a, b }}` is a tuple.
//! - String literals may have Python's other escapes.

use std::collections::BTreeSet;

/// Filter that makes a loop's items from a value.
pub(super) const ITEMS: &str = "__items";
/// Filter that is Python's `%`.
pub(super) const PERCENT: &str = "__percent";
/// Filter that is Python's `str`.
pub(super) const STR: &str = "__str";

/// Maximum depth of brackets, which bounds the time that operands take. minijinja's own limit is lower.
const DEPTH_MAX: usize = 200;

/// The source as minijinja reads it. A tag that never ends is left as it is, so that minijinja reports it.
pub(super) fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut text = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = next_tag(rest) {
        let (before, from_tag) = rest.split_at(at);
        text.push_str(before);
        let Some(read) =
            copied(from_tag).or_else(|| Tag::read(from_tag).map(|tag| tag.rewrite(&mut text)))
        else {
            rest = from_tag;
            break;
        };
        if read.is_copied {
            text.push_str(&from_tag[..read.len]);
        }
        rest = &from_tag[read.len..];
    }
    text.push_str(rest);
    text
}

/// What was read of the source, and whether it is to be copied.
struct Read {
    len: usize,
    is_copied: bool,
}

fn next_tag(text: &str) -> Option<usize> {
    text.match_indices('{')
        .map(|(at, _)| at)
        .find(|at| matches!(text.as_bytes().get(*at + 1), Some(b'{' | b'%' | b'#')))
}

/// A comment or a raw block, which is copied as it is.
fn copied(text: &str) -> Option<Read> {
    let end = if text.starts_with("{#") {
        text.find("#}")? + 2
    } else {
        let (_, open_len) = simple_tag(text).filter(|(name, _)| *name == "raw")?;
        let mut at = open_len;
        loop {
            at += text[at..].find("{%")?;
            match simple_tag(&text[at..]) {
                Some(("endraw", len)) => break at + len,
                _ => at += 2,
            }
        }
    };
    Some(Read {
        len: end,
        is_copied: true,
    })
}

/// The name and the length of a tag that consists of a name alone.
fn simple_tag(text: &str) -> Option<(&str, usize)> {
    let (inside, _) = text.strip_prefix("{%")?.split_once("%}")?;
    let name = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
    Some((name, inside.len() + 4))
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Word,
    Literal,
    Operator,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    start: usize,
    kind: Kind,
    /// Number of brackets around it; a bracket itself is outside of what it encloses.
    depth: usize,
}

/// The tokens of `{{ … }}` or `{% … %}`.
struct Tag<'a> {
    source: &'a str,
    tokens: Vec<Token<'a>>,
    is_statement: bool,
}

/// A text that replaces `removed` bytes of the source at `at`.
struct Edit {
    at: usize,
    removed: usize,
    text: String,
}

impl Edit {
    fn insertion(at: usize, text: impl Into<String>) -> Self {
        Self {
            at,
            removed: 0,
            text: text.into(),
        }
    }
}

impl<'a> Tag<'a> {
    /// Reads the tag at the start of `text`, up to its closing delimiter. `None` if it has none.
    fn read(text: &'a str) -> Option<Self> {
        let is_statement = text.starts_with("{%");
        let close = if is_statement { "%}" } else { "}}" };
        let mut tokens: Vec<Token<'a>> = Vec::new();
        let (mut depth, mut at) = (0_usize, 2);
        if text[at..].starts_with(['-', '+']) && is_statement || text[at..].starts_with('-') {
            at += 1;
        }
        loop {
            let rest = &text[at..];
            let first = rest.chars().next()?;
            let marked = rest
                .strip_prefix(['-', '+'])
                .is_some_and(|rest| rest.starts_with(close));
            if depth == 0 && (rest.starts_with(close) || marked) {
                let len = at + close.len() + usize::from(marked);
                return Some(Self {
                    source: &text[..len],
                    tokens,
                    is_statement,
                });
            }
            if first.is_whitespace() {
                at += first.len_utf8();
                continue;
            }
            let (kind, len) = token(rest, first)?;
            if matches!(first, ')' | ']' | '}') {
                depth = depth.saturating_sub(1);
            }
            tokens.push(Token {
                text: &rest[..len],
                start: at,
                kind,
                depth,
            });
            if matches!(first, '(' | '[' | '{') {
                depth += 1;
            }
            if depth > DEPTH_MAX {
                return None;
            }
            at += len;
        }
    }

    /// Writes the tag as minijinja reads it.
    fn rewrite(self, text: &mut String) -> Read {
        let mut edits = Vec::new();
        self.generation(&mut edits);
        self.escapes(&mut edits);
        self.signs(&mut edits);
        self.operators(&mut edits);
        self.loop_items(&mut edits);
        self.tuple(&mut edits);
        // What is inserted before a token comes before what replaces it.
        edits.sort_by_key(|edit| (edit.at, edit.removed));
        let mut at = 0;
        for edit in edits {
            text.push_str(&self.source[at..edit.at]);
            text.push_str(&edit.text);
            at = edit.at + edit.removed;
        }
        text.push_str(&self.source[at..]);
        Read {
            len: self.source.len(),
            is_copied: false,
        }
    }

    fn text(&self, index: usize) -> &'a str {
        self.tokens
            .get(index)
            .filter(|token| token.kind != Kind::Literal)
            .map_or("", |token| token.text)
    }

    fn end(&self, index: usize) -> usize {
        self.tokens[index].start + self.tokens[index].text.len()
    }

    fn replace(&self, index: usize, text: &str) -> Edit {
        let token = self.tokens[index];
        Edit {
            at: token.start,
            removed: token.text.len(),
            text: text.to_owned(),
        }
    }

    /// Encloses tokens in brackets and appends a filter.
    fn filtered(&self, first: usize, last: usize, filter: &str) -> [Edit; 2] {
        [
            Edit::insertion(self.tokens[first].start, "("),
            Edit::insertion(self.end(last), format!(")|{filter}")),
        ]
    }

    fn generation(&self, edits: &mut Vec<Edit>) {
        if self.is_statement && self.tokens.len() == 1 {
            match self.text(0) {
                "generation" => edits.push(self.replace(0, "if true")),
                "endgeneration" => edits.push(self.replace(0, "endif")),
                _ => {}
            }
        }
    }

    fn escapes(&self, edits: &mut Vec<Edit>) {
        for (index, token) in self.tokens.iter().enumerate() {
            if token.kind == Kind::Literal && token.text.contains('\\') {
                edits.push(self.replace(index, &with_known_escapes(token.text)));
            }
        }
    }

    fn signs(&self, edits: &mut Vec<Edit>) {
        let signs = (0..self.tokens.len())
            .filter(|index| self.text(*index) == "+" && !self.follows_operand(*index));
        edits.extend(signs.map(|index| self.replace(index, "")));
    }

    /// Whether an operand stands before this token, so that a sign here is an operator between two.
    fn follows_operand(&self, index: usize) -> bool {
        let Some(before) = index.checked_sub(1) else {
            return false;
        };
        if before == 0 && self.is_statement {
            return false;
        }
        let token = self.tokens[before];
        match token.kind {
            Kind::Literal => true,
            Kind::Word => !self.is_keyword(before),
            Kind::Operator => matches!(token.text, ")" | "]" | "}"),
        }
    }

    fn is_keyword(&self, index: usize) -> bool {
        let is_name = index > 0 && matches!(self.text(index - 1), "." | "|");
        !is_name
            && matches!(
                self.text(index),
                "and" | "or" | "not" | "in" | "is" | "if" | "else"
            )
    }

    /// Whether this token ends an operand of `~` (and itself belongs to none).
    fn is_boundary(&self, index: usize) -> bool {
        match self.text(index) {
            "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=" | "~" => true,
            "+" | "-" => self.follows_operand(index),
            "and" | "or" | "if" | "else" => self.is_keyword(index),
            // `x is in y` and `x is not y` are tests, which bind more tightly.
            "not" | "in" => {
                let before = index.checked_sub(1).map_or("", |before| self.text(before));
                self.is_keyword(index)
                    && before != "is"
                    && !(before == "not" && index > 1 && self.text(index - 2) == "is")
            }
            "recursive" => self.text(0) == "for" && index + 1 == self.tokens.len(),
            _ => index == 0 && self.is_statement,
        }
    }

    /// The first token of the operand before `index`, for operators that end at what `ends` names.
    fn operand_before(&self, index: usize, ends: impl Fn(usize) -> bool) -> Option<usize> {
        let depth = self.tokens[index].depth;
        (0..index)
            .rev()
            .take_while(|at| {
                self.tokens[*at].depth >= depth && !(self.tokens[*at].depth == depth && ends(*at))
            })
            .last()
    }

    /// The last token of the operand behind `index`.
    fn operand_behind(&self, index: usize, ends: impl Fn(usize) -> bool) -> Option<usize> {
        let depth = self.tokens[index].depth;
        (index + 1..self.tokens.len())
            .take_while(|at| {
                self.tokens[*at].depth >= depth && !(self.tokens[*at].depth == depth && ends(*at))
            })
            .last()
    }

    fn operators(&self, edits: &mut Vec<Edit>) {
        let mut texts = BTreeSet::new();
        for index in 0..self.tokens.len() {
            match self.text(index) {
                "~" => {
                    texts.extend(
                        self.operand_before(index, |at| self.is_boundary(at))
                            .map(|first| (first, index - 1)),
                    );
                    texts.extend(
                        self.operand_behind(index, |at| self.is_boundary(at))
                            .map(|last| (index + 1, last)),
                    );
                }
                "%" => self.percent(index, edits),
                _ => {}
            }
        }
        for (first, last) in texts {
            if first != last || self.tokens[first].kind != Kind::Literal {
                edits.extend(self.filtered(first, last, STR));
            }
        }
    }

    /// `a % b` as a call of a filter, unless `a` is a product itself, which is a number.
    fn percent(&self, index: usize, edits: &mut Vec<Edit>) {
        let ends = |at: usize| self.is_boundary(at) || self.is_product(at);
        let (Some(first), Some(last)) = (
            self.operand_before(index, ends),
            self.operand_behind(index, ends),
        ) else {
            return;
        };
        if first > 0 && self.is_product(first - 1) {
            return;
        }
        let [open, close] = self.filtered(first, index - 1, PERCENT);
        edits.extend([open, close, self.replace(index, "(")]);
        edits.push(Edit {
            at: self.end(last),
            removed: 0,
            text: ")".to_owned(),
        });
    }

    fn is_product(&self, at: usize) -> bool {
        matches!(self.text(at), "*" | "/" | "//" | "%")
    }

    /// `{{ a, b }}` is a tuple.
    fn tuple(&self, edits: &mut Vec<Edit>) {
        if !self.is_statement
            && (0..self.tokens.len())
                .any(|index| self.tokens[index].depth == 0 && self.text(index) == ",")
        {
            edits.extend([
                Edit::insertion(self.tokens[0].start, "("),
                Edit::insertion(self.end(self.tokens.len() - 1), ")"),
            ]);
        }
    }

    fn loop_items(&self, edits: &mut Vec<Edit>) {
        if !self.is_statement || self.text(0) != "for" {
            return;
        }
        let is =
            |index: usize, word: &str| self.tokens[index].depth == 0 && self.text(index) == word;
        let Some(start) = (1..self.tokens.len()).find(|index| is(*index, "in")) else {
            return;
        };
        let end = (start + 1..self.tokens.len())
            .find(|&index| is(index, "if") || self.is_boundary(index) && is(index, "recursive"))
            .unwrap_or(self.tokens.len());
        if start + 1 < end {
            edits.extend(self.filtered(start + 1, end - 1, ITEMS));
        }
    }
}

/// The kind and the length of the token at the start of `text`. `None` for a string that never ends.
fn token(text: &str, first: char) -> Option<(Kind, usize)> {
    if matches!(first, '"' | '\'') {
        let mut escaped = false;
        let end = text[1..].find(|c: char| {
            let ends = c == first && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        return Some((Kind::Literal, end + 2));
    }
    if first.is_ascii_digit() {
        return Some((Kind::Word, number(text)));
    }
    if is_word(first) {
        return Some((
            Kind::Word,
            text.find(|c: char| !is_word(c)).unwrap_or(text.len()),
        ));
    }
    let is_double = ["**", "//", "==", "!=", "<=", ">="]
        .iter()
        .any(|operator| text.starts_with(operator));
    Some((Kind::Operator, if is_double { 2 } else { first.len_utf8() }))
}

/// Whether a character may be part of a name.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a number, whose exponent may have a sign.
fn number(text: &str) -> usize {
    let mut before = ' ';
    let is_hex = text.starts_with("0x") || text.starts_with("0X");
    let mut characters = text.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        let next_is_digit = characters
            .peek()
            .is_some_and(|(_, next)| next.is_ascii_digit());
        let goes_on = c.is_ascii_alphanumeric()
            || c == '_'
            || c == '.' && next_is_digit
            || matches!(c, '+' | '-') && matches!(before, 'e' | 'E') && !is_hex && next_is_digit;
        if !goes_on {
            return at;
        }
        before = c;
    }
    text.len()
}

/// A string literal without the escapes that minijinja does not know: `\a`, `\v`, `\U` with eight digits, and an
/// escaped line end.
fn with_known_escapes(literal: &str) -> String {
    let mut text = String::with_capacity(literal.len());
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let (replacement, used) = match after.chars().next() {
            Some('\n') => (String::new(), 1),
            Some('a') => ("\u{7}".to_owned(), 1),
            Some('v') => ("\u{b}".to_owned(), 1),
            Some('U') => match after
                .get(1..9)
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            {
                Some(code) => (char::from_u32(code).map_or(String::new(), escaped), 9),
                None => ("\\U".to_owned(), 1),
            },
            Some(other) => (format!("\\{other}"), other.len_utf8()),
            None => ("\\".to_owned(), 0),
        };
        text.push_str(&replacement);
        rest = &after[used..];
    }
    text.push_str(rest);
    text
}

/// A character within a string literal.
fn escaped(character: char) -> String {
    if matches!(character, '\'' | '"' | '\\') {
        format!("\\{character}")
    } else {
        character.to_string()
    }
}
