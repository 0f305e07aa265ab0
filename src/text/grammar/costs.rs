//! What a grammar costs before it is compiled: repetitions that an answer must have, divisors, and schemas that must
//! all hold.
//!
//! llguidance compiles lazily, so upper bounds are free. A lower bound is not: the text that it forces is computed at
//! once, in time and memory that grow with its length. A divisor is an automaton with as many states, and the automata
//! of patterns that must all match are multiplied, as are the alternatives of schemas in `allOf`.

use super::spec::{GrammarError, GrammarSpec};
use super::subschemas::subschemas;
use crate::text::integers;
use regex_syntax::ParserBuilder;
use serde_json::{Deserializer, Map, Value};

/// Characters that all patterns, lengths and repetitions of a grammar may demand of an answer together. Twenty thousand
/// take half a second and 20 MB.
const DEMANDED_MAX: u64 = 20_000;
/// The sum of all `multipleOf`, as integers without trailing zeros. It takes half a second.
const DIVISORS_MAX: u64 = 70_000;
/// Counted with the states of each divisor, for the pattern that it is compiled with.
const DIVISOR_STATES: u64 = 64;
/// Ways in which all schemas of an `allOf` can hold: the product of their alternatives.
const WAYS_MAX: u64 = 64;
/// Patterns that one string may have to match.
const PATTERNS_MAX: u64 = 4;
/// What begins a schema in a grammar's text.
const SCHEMA: &str = "%json";
/// Nesting of a pattern, as regex-syntax counts it.
const PATTERN_DEPTH_MAX: u32 = 100;

/// Refuses a grammar that is too expensive to compile, and names the part.
pub(super) fn check(spec: &GrammarSpec) -> Result<(), GrammarError> {
    let mut budget = Budget {
        demanded: DEMANDED_MAX,
        divisors: DIVISORS_MAX,
    };
    match spec {
        GrammarSpec::Schema { schema, .. } => budget.schema(schema),
        GrammarSpec::Regex(regex) => budget.demand("the expression", demanded_by(regex)),
        GrammarSpec::Choice(_) => Ok(()),
        GrammarSpec::Lark(text) | GrammarSpec::Gbnf(text) => budget.grammar(text),
    }
}

/// What is left.
struct Budget {
    demanded: u64,
    divisors: u64,
}

impl Budget {
    fn demand(&mut self, part: &str, characters: u64) -> Result<(), GrammarError> {
        let left = self.demanded.checked_sub(characters);
        self.demanded = left.ok_or_else(|| {
            GrammarError::told(&format!(
                "{part} demands {characters} characters of an answer; a grammar may demand {DEMANDED_MAX}"
            ))
        })?;
        Ok(())
    }

    /// The recursion is bounded, because the depth of schemas was checked.
    fn schema(&mut self, schema: &Value) -> Result<(), GrammarError> {
        let Value::Object(map) = schema else {
            return Ok(());
        };
        self.keywords(map)?;
        map.iter()
            .flat_map(|(key, value)| subschemas(key, value))
            .try_for_each(|schema| self.schema(schema))
    }

    fn keywords(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError> {
        check_conjunction(schema)?;
        for key in ["minLength", "minItems", "minProperties"] {
            if let Some(least) = schema.get(key).and_then(integers::nearest) {
                self.demand(&format!("`{key}`"), least as u64)?;
            }
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            self.demand("`pattern`", demanded_by(pattern))?;
        }
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        for pattern in patterns.into_iter().flat_map(Map::keys) {
            self.demand("`patternProperties`", demanded_by(pattern))?;
        }
        let divisor = schema.get("multipleOf").map(integers::to_json);
        if let Some(divisor) = divisor {
            let left = self
                .divisors
                .checked_sub(states_of(&divisor).saturating_add(DIVISOR_STATES));
            self.divisors = left.ok_or_else(|| {
                GrammarError::told(&format!(
                    "`multipleOf` {divisor} is too large: without trailing zeros, all of them may add up to \
                     {DIVISORS_MAX}"
                ))
            })?;
        }
        Ok(())
    }

    /// A grammar's text, with the schemas in it.
    fn grammar(&mut self, text: &str) -> Result<(), GrammarError> {
        self.text(text)?;
        for (at, _) in text.match_indices(SCHEMA) {
            // What is no JSON is part of a literal or a comment, or the compiler refuses it.
            let mut values = Deserializer::from_str(&text[at + SCHEMA.len()..]).into_iter();
            if let Some(Ok(schema)) = values.next() {
                self.schema(&schema)?;
            }
        }
        Ok(())
    }

    /// The repetitions of a grammar's text: each `{n}`, `{n,m}` and `~ n..m`, wherever it stands. Those in others
    /// multiply, as in patterns that are used in others; compiling has its own limits for these.
    fn text(&mut self, text: &str) -> Result<(), GrammarError> {
        for (at, _) in text.match_indices(['{', '~']) {
            let digits = text[at + 1..].trim_start();
            let end = digits
                .find(|character: char| !character.is_ascii_digit())
                .unwrap_or(digits.len());
            if end > 0 {
                let least = digits[..end].parse().unwrap_or(u64::MAX);
                self.demand(
                    &format!("`{}{}`", &text[at..=at], &digits[..end.min(20)]),
                    least,
                )?;
            }
        }
        Ok(())
    }
}

/// Refuses an `allOf` whose schemas take too long to combine.
fn check_conjunction(schema: &Map<String, Value>) -> Result<(), GrammarError> {
    if !schema.contains_key("allOf") {
        return Ok(());
    }
    let counts = [
        (ways(schema), "alternatives to each other", WAYS_MAX),
        (patterns(schema), "patterns of one string", PATTERNS_MAX),
    ];
    match counts.into_iter().find(|(count, _, most)| count > most) {
        None => Ok(()),
        Some((count, what, most)) => Err(GrammarError::told(&format!(
            "`allOf` combines {count} {what}; at most {most} are allowed"
        ))),
    }
}

/// The ways in which a schema can hold: each of its alternatives with each of those that must hold beside them. The
/// recursion is bounded, because the depth of schemas was checked.
fn ways(schema: &Map<String, Value>) -> u64 {
    let of = |value: &Value| value.as_object().map_or(1, ways);
    let list = |key| schema.get(key).and_then(Value::as_array);
    let alternatives = ["anyOf", "oneOf"].into_iter().filter_map(list);
    let sums = alternatives.map(|list| list.iter().map(of).fold(0, u64::saturating_add));
    let all = list("allOf").into_iter().flatten().map(of);
    sums.chain(all)
        .fold(1, |product, count| product.saturating_mul(count.max(1)))
}

/// Patterns that a string has to match so that a schema and all of its `allOf` hold.
fn patterns(schema: &Map<String, Value>) -> u64 {
    let own = u64::from(schema.contains_key("pattern")) + u64::from(schema.contains_key("format"));
    let all = schema.get("allOf").and_then(Value::as_array);
    let all = all.into_iter().flatten().filter_map(Value::as_object);
    own + all.map(patterns).sum::<u64>()
}

/// The least number of bytes that a regular expression matches. One that does not parse is left to the compiler.
fn demanded_by(pattern: &str) -> u64 {
    let mut parser = ParserBuilder::new()
        .nest_limit(PATTERN_DEPTH_MAX)
        .utf8(false)
        .build();
    let least = parser
        .parse(pattern)
        .ok()
        .and_then(|regex| regex.properties().minimum_len());
    least.map_or(0, |least| least as u64)
}

/// States of the automaton for multiples of a decimal number: its digits as an integer, without trailing zeros.
fn states_of(divisor: &str) -> u64 {
    let mantissa = divisor.split(['e', 'E']).next().unwrap_or(divisor);
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        0
    } else {
        digits.parse().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
