//! Text of a model in a terminal: wrapped between words while it arrives, with the simple marks of markdown as colours.
//!
//! A model's text is not trusted: control characters, with which it could change the terminal, are left out.

use console::{Term, measure_text_width};
use std::io::{self, Write};

const NORMAL: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";
const BOLD: (&str, &str) = ("\x1b[1m", "\x1b[22m");
const CODE: (&str, &str) = ("\x1b[36m", "\x1b[39m");
/// Spaces before the mark of a list item; more are text.
const MARK_COLUMNS_MAX: usize = 12;
const FENCE: &str = "```";
const TAB: usize = 4;

/// Writes prose to a terminal. A word appears when it has ended; [`Write::flush`] does not end it.
pub(crate) struct Prose<W: Write> {
    output: W,
    columns: usize,
    /// Marks become colours; without colours they stay as they are.
    marks: bool,
    is_dim: bool,
    /// Columns of this line that are written.
    column: usize,
    /// Where the line continues if it is wrapped.
    indent: usize,
    /// Spaces before the next word.
    spaces: usize,
    /// The word that has not ended, with codes for colours, and its columns.
    word: String,
    width: usize,
    /// The beginning of the line, while it may still be a mark.
    mark: Option<String>,
    is_bold: bool,
    is_code: bool,
    /// Inside a block of code, whose lines are not wrapped.
    is_fenced: bool,
    /// The rest of the line names the language of a block of code.
    skips_line: bool,
    /// A `*` that may be the first of two.
    has_star: bool,
}

/// What the beginning of a line is.
#[derive(Debug, PartialEq, Eq)]
enum Mark {
    /// It may become one.
    Open,
    Fence,
    Heading,
    /// An item of a list, with the columns before its text.
    Item(usize),
    Number(usize),
    None,
}

impl<W: Write> Prose<W> {
    fn new(output: W, columns: usize, marks: bool, is_dim: bool) -> Self {
        Self {
            output,
            columns,
            marks,
            is_dim,
            column: 0,
            indent: 0,
            spaces: 0,
            word: String::new(),
            width: 0,
            mark: marks.then(String::new),
            is_bold: false,
            is_code: false,
            is_fenced: false,
            skips_line: false,
            has_star: false,
        }
    }

    fn take(&mut self, c: char) -> io::Result<()> {
        if c == '\n' {
            return self.end_line();
        }
        if c != '\t' && c.is_control() {
            return Ok(());
        }
        let Some(mut mark) = self.mark.take() else {
            return self.inline(c);
        };
        mark.push(c);
        match mark_of(&mark, self.is_fenced) {
            Mark::Open => self.mark = Some(mark),
            Mark::Fence => (self.is_fenced, self.skips_line) = (!self.is_fenced, true),
            Mark::Heading => self.set_bold(true),
            Mark::Item(columns) => self.item(&format!("{:>columns$}", "• "), columns)?,
            Mark::Number(columns) => self.item(&mark, columns)?,
            Mark::None => mark.chars().try_for_each(|c| self.inline(c))?,
        }
        Ok(())
    }

    fn item(&mut self, mark: &str, columns: usize) -> io::Result<()> {
        (self.column, self.indent) = (columns, columns);
        self.output.write_all(mark.as_bytes())
    }

    /// A character after the beginning of a line.
    fn inline(&mut self, c: char) -> io::Result<()> {
        if self.skips_line {
            return Ok(());
        }
        if self.is_fenced {
            if self.column == 0 {
                self.output.write_all(CODE.0.as_bytes())?;
            }
            self.column += 1;
            return self.output.write_all(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        let is_star = c == '*' && self.marks && !self.is_code;
        if !is_star && std::mem::take(&mut self.has_star) {
            self.push('*');
        }
        match c {
            ' ' | '\t' => {
                self.end_word()?;
                self.spaces += if c == ' ' { 1 } else { TAB };
            }
            '*' if is_star => {
                let is_second = std::mem::take(&mut self.has_star);
                self.has_star = !is_second;
                if is_second {
                    self.set_bold(!self.is_bold);
                }
            }
            '`' if self.marks => {
                self.is_code = !self.is_code;
                self.word
                    .push_str(if self.is_code { CODE.0 } else { CODE.1 });
            }
            _ => {
                // Writing without spaces may be wrapped after any of its wide characters.
                let is_wide = measure_text_width(c.encode_utf8(&mut [0; 4])) > 1;
                if is_wide {
                    self.end_word()?;
                }
                self.push(c);
                if is_wide {
                    self.end_word()?;
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, c: char) {
        self.word.push(c);
        self.width += measure_text_width(c.encode_utf8(&mut [0; 4]));
    }

    fn set_bold(&mut self, is_bold: bool) {
        self.is_bold = is_bold;
        self.word.push_str(if is_bold { BOLD.0 } else { BOLD.1 });
    }

    fn end_word(&mut self) -> io::Result<()> {
        if self.width > 0 {
            if self.column > self.indent && self.column + self.spaces + self.width > self.columns {
                write!(self.output, "\n{:1$}", "", self.indent)?;
                self.column = self.indent;
            } else {
                write!(self.output, "{:1$}", "", self.spaces)?;
                self.column += self.spaces;
            }
            self.column += self.width;
            self.spaces = 0;
        }
        if self.is_dim && !self.word.is_empty() {
            write!(self.output, "{DIM}{}{NORMAL}", self.word)?;
        } else {
            self.output.write_all(self.word.as_bytes())?;
        }
        self.word.clear();
        self.width = 0;
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        if let Some(mark) = self.mark.take() {
            mark.chars().try_for_each(|c| self.inline(c))?;
        }
        if std::mem::take(&mut self.has_star) {
            self.push('*');
        }
        self.end_word()?;
        if self.is_bold || self.is_code || (self.is_fenced && self.column > 0) {
            self.output.write_all(NORMAL.as_bytes())?;
        }
        (self.is_bold, self.is_code, self.skips_line) = (false, false, false);
        (self.column, self.indent, self.spaces) = (0, 0, 0);
        self.mark = self.marks.then(String::new);
        self.output.write_all(b"\n")
    }
}

/// What an answer's text on stdout looks like.
pub(crate) fn answer() -> Prose<io::Stdout> {
    Prose::new(
        io::stdout(),
        columns(&Term::stdout()),
        console::colors_enabled(),
        false,
    )
}

/// What a model's thoughts on stderr look like.
pub(crate) fn thoughts() -> Prose<io::Stderr> {
    Prose::new(
        io::stderr(),
        columns(&Term::stderr()),
        false,
        console::colors_enabled_stderr(),
    )
}

fn columns(terminal: &Term) -> usize {
    usize::from(terminal.size().1)
}

impl<W: Write> Write for Prose<W> {
    /// Takes whole characters.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        String::from_utf8_lossy(text)
            .chars()
            .try_for_each(|c| self.take(c))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// What the beginning of a line is, so far. Inside a block of code only its end counts.
fn mark_of(line: &str, is_fenced: bool) -> Mark {
    let text = line.trim_start_matches(' ');
    let before = line.len() - text.len();
    if text == FENCE {
        return Mark::Fence;
    }
    if before > MARK_COLUMNS_MAX {
        return Mark::None;
    }
    if FENCE.starts_with(text) {
        return Mark::Open;
    }
    if is_fenced {
        return Mark::None;
    }
    match text.strip_suffix(' ') {
        Some("-" | "*" | "+") => Mark::Item(before + 2),
        Some(mark) if is_heading(mark) => Mark::Heading,
        Some(mark) if mark.strip_suffix('.').is_some_and(is_number) => Mark::Number(line.len()),
        Some(_) => Mark::None,
        None => {
            let may_be = ["-", "*", "+"].contains(&text) || is_heading(text);
            let may_be = may_be || is_number(text.strip_suffix('.').unwrap_or(text));
            if may_be { Mark::Open } else { Mark::None }
        }
    }
}

fn is_number(text: &str) -> bool {
    (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_heading(mark: &str) -> bool {
    (1..=6).contains(&mark.len()) && mark.bytes().all(|byte| byte == b'#')
}

#[cfg(test)]
mod tests;
