//! GBNF, the notation of llama.cpp's and xgrammar's grammars (`root ::= "a" [0-9]+`), translated to Lark.
//!
//! Lark has a lexer and a parser, and the lexer always takes the longest match. GBNF has no lexer: every text that its
//! rules describe together is allowed. So everything that does not recur becomes one pattern, as large as possible, and
//! only rules that reach themselves, or name tokens, become rules of the parser.

use llguidance::toktrie::TokTrie;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

/// Maximum number of rules.
const RULES_MAX: usize = 1000;
/// Maximum of a repetition's numbers.
const REPEATS_MAX: u32 = 10_000;

/// The right side of a rule, or a part of it.
#[derive(Debug)]
enum Node {
    /// A regular expression.
    Pattern(String),
    /// A token, or any other one, in Lark's notation.
    Token(String),
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Whether a text is in this notation: a line begins with `name ::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        line.split_once("::=")
            .is_some_and(|(name, _)| is_name(name.trim()))
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_name_character)
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// The same grammar in Lark's notation, for these tokens; an error says what is wrong with it.
pub(super) fn to_lark(text: &str, tokens: &TokTrie) -> Result<String, String> {
    let rules = Parser {
        rest: text.chars().peekable(),
        tokens,
    }
    .rules()?;
    if !rules.contains_key("root") {
        return Err("it has no rule `root`".to_owned());
    }
    for node in rules.values() {
        if let Some(name) = node
            .names()
            .into_iter()
            .find(|name| !rules.contains_key(*name))
        {
            return Err(format!("its rule `{name}` is not defined"));
        }
    }
    let numbers = (0..)
        .zip(rules.keys())
        .map(|(number, name)| (name.as_str(), number))
        .collect();
    let mut writer = Writer {
        numbers,
        regular: regular(&rules),
        patterns: Vec::new(),
    };
    let mut lark = format!("start: {}\n", writer.reference("root"));
    for (name, node) in &rules {
        let right = if writer.regular.contains(name.as_str()) {
            writer.pattern(node)
        } else {
            writer.rule(node)
        };
        writeln!(lark, "{}: {right}", writer.reference(name)).expect("a string takes text");
    }
    for (number, pattern) in writer.patterns.iter().enumerate() {
        writeln!(lark, "X{number}: {pattern}").expect("a string takes text");
    }
    Ok(lark)
}

/// The rules that name no token and reach no rule that does, or that reaches itself.
fn regular(rules: &BTreeMap<String, Node>) -> BTreeSet<&str> {
    let mut regular = BTreeSet::new();
    loop {
        let new: Vec<_> = rules
            .iter()
            .filter(|(name, node)| !regular.contains(name.as_str()) && node.is_regular(&regular))
            .map(|(name, _)| name.as_str())
            .collect();
        if new.is_empty() {
            return regular;
        }
        regular.extend(new);
    }
}

impl Node {
    fn names(&self) -> Vec<&str> {
        match self {
            Self::Pattern(_) | Self::Token(_) => Vec::new(),
            Self::Rule(name) => vec![name],
            Self::Sequence(parts) | Self::Choice(parts) => {
                parts.iter().flat_map(Self::names).collect()
            }
            Self::Repeat(part, ..) => part.names(),
        }
    }

    fn is_regular(&self, regular: &BTreeSet<&str>) -> bool {
        match self {
            Self::Pattern(_) => true,
            Self::Token(_) => false,
            Self::Rule(name) => regular.contains(name.as_str()),
            Self::Sequence(parts) | Self::Choice(parts) => {
                parts.iter().all(|part| part.is_regular(regular))
            }
            Self::Repeat(part, ..) => part.is_regular(regular),
        }
    }
}

/// Writes right sides in Lark's notation.
struct Writer<'a> {
    numbers: BTreeMap<&'a str, usize>,
    regular: BTreeSet<&'a str>,
    /// Patterns of parts of rules.
    patterns: Vec<String>,
}

impl Writer<'_> {
    /// Lark tells patterns and rules apart by their case.
    fn reference(&self, name: &str) -> String {
        let letter = if self.regular.contains(name) {
            'T'
        } else {
            'r'
        };
        format!("{letter}{}", self.numbers[name])
    }

    fn pattern(&self, node: &Node) -> String {
        match node {
            Node::Pattern(pattern) if pattern.is_empty() => "\"\"".into(),
            Node::Pattern(pattern) => format!("/{pattern}/"),
            Node::Token(token) => token.clone(),
            Node::Rule(name) => self.reference(name),
            Node::Sequence(parts) if parts.is_empty() => "\"\"".into(),
            Node::Sequence(parts) => joined(parts.iter().map(|part| self.pattern(part)), " "),
            Node::Choice(parts) => joined(parts.iter().map(|part| self.pattern(part)), " | "),
            Node::Repeat(part, least, most) => repeated(&self.pattern(part), *least, *most),
        }
    }

    fn rule(&mut self, node: &Node) -> String {
        if node.is_regular(&self.regular) {
            return self.part(self.pattern(node));
        }
        match node {
            Node::Pattern(_) => self.part(self.pattern(node)),
            Node::Token(token) => token.clone(),
            Node::Rule(name) => self.reference(name),
            Node::Choice(parts) => joined(
                parts.iter().map(|part| self.rule(part)).collect::<Vec<_>>(),
                " | ",
            ),
            Node::Repeat(part, least, most) => repeated(&self.rule(part), *least, *most),
            Node::Sequence(parts) => {
                let runs = parts
                    .chunk_by(|a, b| a.is_regular(&self.regular) && b.is_regular(&self.regular));
                let runs: Vec<&[Node]> = runs.collect();
                let written = runs.into_iter().map(|run| match run {
                    [one] => self.rule(one),
                    run => self.part(joined(run.iter().map(|part| self.pattern(part)), " ")),
                });
                joined(written.collect::<Vec<_>>(), " ")
            }
        }
    }

    /// Names a pattern within a rule.
    fn part(&mut self, pattern: String) -> String {
        self.patterns.push(pattern);
        format!("X{}", self.patterns.len() - 1)
    }
}

fn joined(parts: impl IntoIterator<Item = String>, by: &str) -> String {
    format!("({})", parts.into_iter().collect::<Vec<_>>().join(by))
}

fn repeated(part: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => format!("({part})*"),
        (1, None) => format!("({part})+"),
        (0, Some(1)) => format!("({part})?"),
        (least, most) => format!(
            "({part}){{{least},{}}}",
            most.map_or(String::new(), |most| most.to_string())
        ),
    }
}

/// A character as a regular expression matches it.
fn escaped(c: char) -> String {
    if c.is_ascii_alphanumeric() {
        c.into()
    } else {
        format!("\\x{{{:x}}}", u32::from(c))
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    tokens: &'a TokTrie,
}

impl Parser<'_> {
    /// The rules by name. Of several with one name the last counts, as in llama.cpp.
    fn rules(mut self) -> Result<BTreeMap<String, Node>, String> {
        let mut rules = BTreeMap::new();
        self.skip_space();
        while self.rest.peek().is_some() {
            let name = self.name();
            if name.is_empty() || !self.begins_rule() {
                return Err(self.unexpected("`name ::=`"));
            }
            let node = self.choice()?;
            rules.insert(name, node);
            if rules.len() > RULES_MAX {
                return Err(format!("it has more than {RULES_MAX} rules"));
            }
        }
        Ok(rules)
    }

    /// Alternatives, up to a closing parenthesis or the next rule. Their nesting was checked before.
    fn choice(&mut self) -> Result<Node, String> {
        let mut options = vec![self.sequence()?];
        while self.rest.next_if_eq(&'|').is_some() {
            options.push(self.sequence()?);
        }
        Ok(if options.len() == 1 {
            options.remove(0)
        } else {
            Node::Choice(options)
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut parts = Vec::new();
        loop {
            self.skip_space();
            let part = match self.rest.peek() {
                None | Some('|' | ')') => break,
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('<' | '!') => self.token()?,
                Some('.') => {
                    self.rest.next();
                    Node::Pattern("(?s:.)".into())
                }
                Some('(') => {
                    self.rest.next();
                    let inner = self.choice()?;
                    if self.rest.next_if_eq(&')').is_none() {
                        return Err(self.unexpected("`)`"));
                    }
                    inner
                }
                Some(c) if is_name_character(*c) => {
                    let before = self.rest.clone();
                    let name = self.name();
                    if self.begins_rule() {
                        self.rest = before;
                        break;
                    }
                    Node::Rule(name)
                }
                Some(_) => {
                    return Err(self.unexpected("a string, a character class, a rule or a group"));
                }
            };
            parts.push(self.repeats(part)?);
        }
        Ok(if parts.len() == 1 {
            parts.remove(0)
        } else {
            Node::Sequence(parts)
        })
    }

    /// Adds the repetitions that follow a part.
    fn repeats(&mut self, mut part: Node) -> Result<Node, String> {
        loop {
            let (least, most) = match self.rest.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.rest.next();
                    let numbers: String = std::iter::from_fn(|| self.rest.next_if(|c| *c != '}'))
                        .take(24)
                        .collect();
                    let (least, most) = numbers.split_once(',').unwrap_or((&numbers, &numbers));
                    let number = |text: &str| {
                        text.trim()
                            .parse()
                            .ok()
                            .filter(|number| *number <= REPEATS_MAX)
                    };
                    let least = number(least)
                        .or((least.trim().is_empty() && numbers.contains(',')).then_some(0));
                    let most = if most.trim().is_empty() {
                        Some(None)
                    } else {
                        number(most).map(Some)
                    };
                    match (least, most) {
                        (Some(least), Some(most)) if most.is_none_or(|most| most >= least) => {
                            (least, most)
                        }
                        _ => return Err(self.unexpected("a repetition such as {1,3}")),
                    }
                }
                _ => return Ok(part),
            };
            self.rest.next();
            part = Node::Repeat(Box::new(part), least, most);
        }
    }

    /// A token by its number or by its text, `<[5]>` or `<think>`; after `!` any other one.
    fn token(&mut self) -> Result<Node, String> {
        let before = self.rest.clone();
        let negation = self.rest.next_if_eq(&'!').map_or("", |_| "^");
        let mut text: String =
            std::iter::from_fn(|| self.rest.next_if(|c| *c != '>' && !c.is_whitespace())).collect();
        let ends = self.rest.next_if_eq(&'>').is_some();
        text.push('>');
        let number = text
            .strip_prefix("<[")
            .and_then(|text| text.strip_suffix("]>"));
        let id = match number {
            Some(number) => number.parse().ok(),
            None => {
                let special = self.tokens.get_special_token(&text);
                special.or_else(|| self.tokens.token_id(text.as_bytes()))
            }
        };
        let known = id.filter(|id| (*id as usize) < self.tokens.vocab_size());
        match known {
            Some(id) if ends && text.starts_with('<') => {
                Ok(Node::Token(format!("<[{negation}{id}]>")))
            }
            _ => {
                self.rest = before;
                Err(self.unexpected("a token such as <[5]>, or the text of one"))
            }
        }
    }

    fn literal(&mut self) -> Result<Node, String> {
        self.rest.next();
        let mut pattern = String::new();
        while self.rest.next_if_eq(&'"').is_none() {
            pattern.push_str(&escaped(self.character()?));
        }
        Ok(Node::Pattern(pattern))
    }

    fn class(&mut self) -> Result<Node, String> {
        self.rest.next();
        let mut pattern = String::from(if self.rest.next_if_eq(&'^').is_some() {
            "[^"
        } else {
            "["
        });
        let start = pattern.len();
        while self.rest.next_if_eq(&']').is_none() {
            let first = self.character()?;
            pattern.push_str(&escaped(first));
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.peek() != Some(&']') {
                self.rest.next();
                let last = self.character()?;
                if last < first {
                    return Err("a range of characters is the wrong way round".to_owned());
                }
                write!(pattern, "-{}", escaped(last)).expect("a string takes text");
            }
        }
        if pattern.len() == start {
            return Err("a character class is empty".to_owned());
        }
        Ok(Node::Pattern(pattern + "]"))
    }

    /// One character of a string or a class.
    fn character(&mut self) -> Result<char, String> {
        let digits = match self.rest.next() {
            None => return Err("a string or a character class does not end".to_owned()),
            Some('\\') => match self.rest.next() {
                Some('n') => return Ok('\n'),
                Some('r') => return Ok('\r'),
                Some('t') => return Ok('\t'),
                Some('x') => 2,
                Some('u') => 4,
                Some('U') => 8,
                Some(c) if c.is_ascii_punctuation() => return Ok(c),
                _ => return Err("an escaped character is not known".to_owned()),
            },
            Some(c) => return Ok(c),
        };
        let hex: String = self.rest.by_ref().take(digits).collect();
        let number = u32::from_str_radix(&hex, 16).ok();
        match number.and_then(char::from_u32) {
            Some(c) if hex.len() == digits => Ok(c),
            _ => Err("an escaped character is no character".to_owned()),
        }
    }

    fn name(&mut self) -> String {
        std::iter::from_fn(|| self.rest.next_if(|c| is_name_character(*c))).collect()
    }

    /// Takes the `::=` after a name.
    fn begins_rule(&mut self) -> bool {
        let mut ahead = self.rest.clone();
        while ahead.next_if(|c| *c == ' ' || *c == '\t').is_some() {}
        let begins = "::=".chars().all(|c| ahead.next() == Some(c));
        if begins {
            self.rest = ahead;
        }
        begins
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) {
        loop {
            if self.rest.next_if_eq(&'#').is_some() {
                while self.rest.next_if(|c| *c != '\n').is_some() {}
            } else if self.rest.next_if(|c| c.is_whitespace()).is_none() {
                return;
            }
        }
    }

    fn unexpected(&mut self, expected: &str) -> String {
        let found: String = self
            .rest
            .clone()
            .take_while(|c| *c != '\n')
            .take(24)
            .collect();
        format!("expected {expected} at `{found}`")
    }
}

#[cfg(test)]
mod tests;
