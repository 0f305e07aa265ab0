//! What a grammar costs before it is compiled: repetitions that an answer must have, and divisors.
//!
//! llguidance compiles lazily, so upper bounds are free. A lower bound is not: the text that it forces is computed at
//! once, in time and memory that grow with its length, and a divisor is an automaton with as many states.

use super::spec::{GrammarError, GrammarSpec};
use super::subschemas::subschemas;
use crate::text::integers;
use regex_syntax::ParserBuilder;
use serde_json::{Map, Value};

/// Characters that all patterns, lengths and repetitions of a grammar may demand of an answer together. Twenty thousand
/// take half a second and 20 MB.
const DEMANDED_MAX: u64 = 20_000;
/// The sum of all `multipleOf`, as integers without trailing zeros. It takes half a second.
const DIVISORS_MAX: u64 = 70_000;
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
        GrammarSpec::Lark(text) | GrammarSpec::Gbnf(text) => budget.text(text),
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
            let left = self.divisors.checked_sub(states_of(&divisor));
            self.divisors = left.ok_or_else(|| {
                GrammarError::told(&format!(
                    "`multipleOf` {divisor} is too large: without trailing zeros, all of them may add up to \
                     {DIVISORS_MAX}"
                ))
            })?;
        }
        Ok(())
    }

    /// A grammar's text: each `{n}`, `{n,m}` and `~ n..m`, wherever it stands. Those in others multiply, as in patterns
    /// that are used in others; compiling has its own limits for these.
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
