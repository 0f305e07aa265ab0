//! Limits that are counted in tokens, because lines can hold anything: the length of functions, the density of lines,
//! and what makes a function read backwards.
//!
//! Tokens are the leaves of `proc-macro2`'s tree: identifiers, literals and punctuation, without brackets, comments,
//! attributes and tests. docs/dev/house.md has the figures beside those of other projects.

use super::judge;
use super::reader::{Source, root, sources};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The 95th percentile of all functions.
const FUNCTION_TOKENS_P95: usize = 300;
const FUNCTION_TOKENS_MAX: usize = 400;
const TOKENS_PER_LINE_MAX: f64 = 7.5;
/// Closures that get a name by `let`, per thousand lines. Most are used once, where they could stand.
const LET_CLOSURES_MAX: f64 = 5.0;
/// Functions that are longer, with their tokens. None may grow, and none is added.
const LONG: &str = "tests/tidy/long_functions.txt";

/// What is counted in one file or in all of them.
#[derive(Default)]
pub(crate) struct Count {
    tokens: usize,
    /// Lines with a token.
    lines: BTreeSet<usize>,
    functions: Vec<Function>,
    /// Lines of closures that get a name by `let`.
    let_closures: Vec<usize>,
    /// Lines of conditions in the filter of an option: `.filter(|_| …)`.
    blind_filters: Vec<usize>,
}

struct Function {
    name: String,
    line: usize,
    tokens: usize,
}

impl Count {
    fn of(source: &Source) -> Self {
        let mut count = Self::default();
        let tree = source.text.parse::<TokenStream>();
        count.add(tree.unwrap_or_else(|error| panic!("{}: {error}", source.path)));
        count
    }

    fn add(&mut self, stream: TokenStream) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while at < trees.len() {
            if let Some(end) = attribute_end(&trees[at..]) {
                let is_test = is_of_tests(&trees[at..at + end]);
                at += end;
                if is_test {
                    at += item_end(&trees[at..]);
                }
                continue;
            }
            self.note_patterns(&trees[at..]);
            self.add_tree(&trees[at]);
            at += 1;
        }
    }

    fn add_tree(&mut self, tree: &TokenTree) {
        if let TokenTree::Group(group) = tree {
            self.lines.insert(group.span_open().start().line);
            self.add(group.stream());
            self.lines.insert(group.span_close().end().line);
        } else {
            self.tokens += 1;
            self.lines
                .extend(tree.span().start().line..=tree.span().end().line);
        }
    }

    /// Takes note of what begins here.
    fn note_patterns(&mut self, trees: &[TokenTree]) {
        let line = trees[0].span().start().line;
        if is_word(trees.first(), "fn")
            && let Some(TokenTree::Ident(name)) = trees.get(1)
            && let Some(end) = trees
                .iter()
                .position(|tree| is_braces(tree) || is_sign(Some(tree), ';'))
            && is_braces(&trees[end])
        {
            let mut own = Self::default();
            own.add(trees[1..=end].iter().cloned().collect());
            self.functions.push(Function {
                name: name.to_string(),
                line,
                tokens: own.tokens + 1,
            });
        }
        if is_word(trees.first(), "let")
            && let Some(equals) = trees
                .iter()
                .position(|tree| is_sign(Some(tree), '=') || is_sign(Some(tree), ';'))
        {
            let value = equals + 1 + usize::from(is_word(trees.get(equals + 1), "move"));
            if is_sign(trees.get(value), '|') {
                self.let_closures.push(line);
            }
        }
        if is_sign(trees.first(), '.')
            && is_word(trees.get(1), "filter")
            && let Some(TokenTree::Group(arguments)) = trees.get(2)
            && begins_blindly(arguments)
        {
            self.blind_filters.push(line);
        }
    }
}

/// `|_|`.
fn begins_blindly(arguments: &Group) -> bool {
    let start: Vec<_> = arguments.stream().into_iter().take(3).collect();
    is_sign(start.first(), '|') && is_word(start.get(1), "_") && is_sign(start.get(2), '|')
}

pub(crate) fn is_word(tree: Option<&TokenTree>, word: &str) -> bool {
    matches!(tree, Some(TokenTree::Ident(ident)) if ident == word)
}

pub(crate) fn is_sign(tree: Option<&TokenTree>, sign: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn is_braces(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// Number of trees of the attribute that begins here, if one does.
pub(crate) fn attribute_end(trees: &[TokenTree]) -> Option<usize> {
    if !is_sign(trees.first(), '#') {
        return None;
    }
    let end = if is_sign(trees.get(1), '!') { 2 } else { 1 };
    match trees.get(end) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => Some(end + 1),
        _ => None,
    }
}

/// Whether an attribute says that its item is compiled for tests only.
pub(crate) fn is_of_tests(attribute: &[TokenTree]) -> bool {
    let text = attribute
        .last()
        .map(|tree| tree.to_string().replace(' ', ""))
        .unwrap_or_default();
    text == "[test]"
        || text.contains("::test")
        || text.contains("cfg(test)")
        || text.contains("cfg(all(test,")
}

/// Number of trees of the item that begins here.
pub(crate) fn item_end(trees: &[TokenTree]) -> usize {
    let last = trees
        .iter()
        .position(|tree| is_braces(tree) || is_sign(Some(tree), ';'));
    last.map_or(trees.len(), |last| last + 1)
}

/// The program's files, without those that hold only tests.
pub(crate) fn shipped() -> Vec<(Source, Count)> {
    let files = sources(&["src"], &["rs"]);
    let files = files
        .into_iter()
        .filter(|file| !file.path.ends_with("/tests.rs") && !file.path.contains("/tests/"));
    files
        .map(|file| (Count::of(&file), file))
        .map(|(count, file)| (file, count))
        .collect()
}

#[test]
fn functions_are_short_in_tokens() {
    let text = fs::read_to_string(root().join(LONG)).expect("the list of long functions is there");
    let allowed: BTreeMap<&str, usize> = text
        .lines()
        .map(|line| line.split_once(' ').expect("a name and a number"))
        .map(|(name, tokens)| (name, tokens.parse().expect("a number of tokens")))
        .collect();
    let (mut findings, mut lengths, mut long) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (file, count) in shipped() {
        for Function { name, line, tokens } in count.functions {
            lengths.push(tokens);
            if tokens <= FUNCTION_TOKENS_MAX {
                continue;
            }
            let place = format!("{}::{name}", file.path);
            match allowed.get(&*place) {
                None => findings.push(file.finding(
                    line,
                    &format!("{name} has {tokens} tokens of {FUNCTION_TOKENS_MAX}"),
                )),
                Some(&most) if tokens > most => {
                    findings.push(
                        file.finding(line, &format!("{name} grew from {most} to {tokens} tokens")),
                    );
                }
                Some(_) => {}
            }
            long.insert(place);
        }
    }
    let gone = allowed.keys().filter(|place| !long.contains(**place));
    findings
        .extend(gone.map(|place| format!("{LONG}: {place} is short now: take it off the list")));
    lengths.sort_unstable();
    let p95 = lengths[lengths.len() * 95 / 100];
    println!(
        "{} functions, {} above {FUNCTION_TOKENS_MAX} tokens; median {}, 95th percentile {p95}",
        lengths.len(),
        long.len(),
        lengths[lengths.len() / 2]
    );
    if p95 > FUNCTION_TOKENS_P95 {
        findings.push(format!(
            "of 100 functions, 5 have more than {p95} tokens; {FUNCTION_TOKENS_P95} are allowed"
        ));
    }
    judge("long functions", &findings);
}

#[test]
fn lines_are_light_and_closures_stand_where_they_are_used() {
    let (mut tokens, mut lines, mut closures, mut findings) = (0, 0, 0, Vec::new());
    for (file, count) in shipped() {
        tokens += count.tokens;
        lines += count.lines.len();
        closures += count.let_closures.len();
        let blind = count.blind_filters.iter();
        findings.extend(
            blind.map(|&line| {
                file.finding(line, "a condition in a filter that ignores its argument")
            }),
        );
    }
    let per_line = tokens as f64 / lines as f64;
    if per_line > TOKENS_PER_LINE_MAX {
        findings.push(format!(
            "a line has {per_line:.1} tokens of {TOKENS_PER_LINE_MAX}"
        ));
    }
    let per_thousand = closures as f64 / lines as f64 * 1000.0;
    if per_thousand > LET_CLOSURES_MAX {
        findings.push(format!(
            "{per_thousand:.1} closures of 1,000 lines get a name, of {LET_CLOSURES_MAX}"
        ));
    }
    println!("{per_line:.2} tokens a line, {per_thousand:.2} closures of 1,000 lines get a name");
    judge("density", &findings);
}

#[test]
fn tokens_are_counted_without_comments_attributes_and_tests() {
    let text = "/// A comment.
#[inline]
fn a(b: u8) -> u8 {
    let c = |d: u8| d + 1; // more
    Some(b).filter(|_| c(b) > 0)
}

#[cfg(test)]
mod tests {
    fn e() {}
}
";
    let count = Count::of(&Source {
        path: "planted.rs".into(),
        text: text.into(),
    });
    let functions: Vec<_> = count
        .functions
        .iter()
        .map(|one| (&*one.name, one.line, one.tokens))
        .collect();
    assert_eq!(functions, [("a", 3, 31)]);
    assert_eq!((count.tokens, count.lines.len()), (31, 4));
    assert_eq!(
        (&count.let_closures[..], &count.blind_filters[..]),
        (&[4][..], &[5][..])
    );
}
