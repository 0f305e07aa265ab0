//! [`GrammarSpec`]: the kinds of constraints on an answer, checked before they are compiled.

use super::subschemas::subschemas;
use super::{constants, gbnf, references};
use crate::text::integers;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::TokTrie;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Maximum bytes of a grammar's text.
const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Maximum nesting of a schema. Brackets in a grammar may nest twice as deep.
const GRAMMAR_DEPTH_MAX: usize = 32;
/// Maximum number of strings to choose from.
const GRAMMAR_CHOICES_MAX: usize = 1024;
/// Maximum properties of all objects of a schema. The time of compilation grows with their square: 1,000 properties of
/// one object take a quarter of a second.
const GRAMMAR_PROPERTIES_MAX: usize = 1000;
/// Maximum alternatives (`anyOf`, `oneOf`) that are schemas. Constants are not counted: together they are one pattern.
const GRAMMAR_ALTERNATIVES_MAX: usize = 512;
/// Maximum characters of a compiler message.
const TOLD_CHARACTERS: usize = 400;
/// White space between two JSON tokens: a space, or a line break with indentation. It is bounded, because otherwise a
/// model may write white space until it reaches its token limit.
const JSON_SPACE: &str = r" |\n {0,24}|\n\t{0,8}";

/// A key of a schema: true restores the standard's meaning of a missing `additionalProperties`.
const ALLOW_EXTRA: &str = "x-allow-extra";

/// A constraint on an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSpec {
    /// A JSON value that matches a schema.
    Schema {
        /// JSON Schema, as a request has it.
        schema: Value,
        /// Whether to refuse schema features that cannot be enforced instead of ignoring them.
        strict: bool,
    },
    /// Text that a regular expression matches completely.
    Regex(String),
    /// One of these strings.
    Choice(Vec<String>),
    /// A grammar in Lark notation, as llguidance reads it.
    Lark(String),
    /// A grammar in llama.cpp's notation, whose first rule is `root`.
    Gbnf(String),
}

/// Why a grammar is refused; shown to the client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(String);

impl GrammarError {
    pub(super) fn new(error: &dyn std::fmt::Display) -> Self {
        Self::told(&error.to_string())
    }

    pub(crate) fn too_long() -> Self {
        Self::told("it takes too long to compile")
    }

    /// An error from the compiler's message: its first line, shortened. The parser of patterns shows the pattern below
    /// that line, and names the reason in the last one.
    pub(super) fn told(message: &str) -> Self {
        let mut lines = message
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let mut told: String = lines.next().unwrap_or("it cannot be compiled").into();
        if let Some(reason) = lines
            .filter_map(|line| line.strip_prefix("error:"))
            .next_back()
        {
            told = format!("{}: {}", told.trim_end_matches(':'), reason.trim());
        }
        Self(told.chars().take(TOLD_CHARACTERS).collect())
    }
}

impl GrammarSpec {
    /// A grammar in the notation that its text is in: [`Self::Gbnf`] if it has rules `name ::=`, else [`Self::Lark`].
    pub fn grammar(text: String) -> Self {
        if gbnf::is_gbnf(&text) {
            Self::Gbnf(text)
        } else {
            Self::Lark(text)
        }
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::Schema {
            schema: json!({"type": "object"}),
            strict: true,
        }
    }

    /// The cache key; an error if the grammar is too large.
    pub(super) fn key(&self) -> Result<String, GrammarError> {
        let key = match self {
            Self::Schema { schema, strict } => {
                check_schema(schema)?;
                format!("schema {strict} {schema}")
            }
            Self::Regex(regex) => format!("regex {regex}"),
            Self::Choice(choices) if choices.is_empty() || choices.len() > GRAMMAR_CHOICES_MAX => {
                return Err(GrammarError(format!(
                    "1 to {GRAMMAR_CHOICES_MAX} choices are needed"
                )));
            }
            Self::Choice(choices) if choices.iter().any(String::is_empty) => {
                return Err(GrammarError("a choice must not be empty".into()));
            }
            Self::Choice(choices) => format!("choice {}", json!(choices)),
            Self::Lark(grammar) => {
                check_brackets(grammar)?;
                format!("lark {grammar}")
            }
            Self::Gbnf(grammar) => {
                check_brackets(grammar)?;
                format!("gbnf {grammar}")
            }
        };
        if key.len() > GRAMMAR_BYTES_MAX {
            return Err(GrammarError(format!(
                "it has {} bytes; at most {GRAMMAR_BYTES_MAX} are allowed",
                key.len()
            )));
        }
        Ok(key)
    }

    /// The grammar for a model with these tokens.
    pub(super) fn top_level(&self, tokens: &TokTrie) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match self {
            Self::Schema { schema, strict } => {
                let schema = closed(schema, *strict)?;
                match constants::in_lark(&schema, &options(*strict), JSON_SPACE) {
                    Some(lark) => TopLevelGrammar::from_lark(format!("start: {lark}")),
                    None => TopLevelGrammar::from_json_schema(with_options(schema, *strict)?),
                }
            }
            // Digits and letters are those of ASCII, as in a schema's pattern.
            Self::Regex(regex) => {
                TopLevelGrammar::from_regex(&llguidance::regex_to_lark(regex, "dw"))
            }
            Self::Choice(choices) => TopLevelGrammar::from_lark(choice_grammar(choices)),
            // Parsed as Lark only. The list form of llguidance could contain an unchecked schema.
            Self::Lark(grammar) => {
                TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(grammar.clone()))
            }
            Self::Gbnf(grammar) => TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(
                gbnf::to_lark(grammar, tokens).map_err(|error| GrammarError::told(&error))?,
            )),
        })
    }
}

/// The schema as an expression of a Lark grammar.
///
/// # Errors
///
/// If the schema is wrong, too large, or demands what cannot be enforced and is strict.
pub fn schema_in_lark(schema: &Value, strict: bool) -> Result<String, GrammarError> {
    check_schema(schema)?;
    let schema = closed(schema, strict)?;
    match constants::in_lark(&schema, &options(strict), JSON_SPACE) {
        Some(lark) => Ok(lark),
        None => Ok(format!("%json {}", with_options(schema, strict)?)),
    }
}

/// As [`schema_in_lark`], and always as `%json`: a grammar can tell two objects apart that begin alike only if both
/// are. Fewer constants can be enforced so.
///
/// # Errors
///
/// As those of [`schema_in_lark`].
pub fn schema_as_json(schema: &Value, strict: bool) -> Result<String, GrammarError> {
    check_schema(schema)?;
    let schema = with_options(closed(schema, strict)?, strict)?;
    Ok(format!("%json {schema}"))
}

/// The compiler's options.
fn options(strict: bool) -> Value {
    json!({"whitespace_pattern": JSON_SPACE, "lenient": !strict, "coerce_one_of": !strict})
}

/// A closed schema as the compiler reads it: with its options, and without integers that it cannot read.
fn with_options(mut schema: Value, strict: bool) -> Result<Value, GrammarError> {
    constants::keep_or_drop(&mut schema, strict).map_err(|error| GrammarError::told(&error))?;
    integers::round(&mut schema);
    schema["x-guidance"] = options(strict);
    Ok(schema)
}

/// The schema with plain references, whose objects are closed.
fn closed(schema: &Value, strict: bool) -> Result<Value, GrammarError> {
    let schema = match schema {
        Value::Object(map) if integers::digits(schema).is_none() => map.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError("the schema allows no value".into())),
        _ => {
            return Err(GrammarError(
                "a schema must be an object, true or false".into(),
            ));
        }
    };
    let mut schema = references::unescaped(Value::Object(schema));
    if strict {
        check_bounds(&schema)?;
    }
    let allows_extra = schema
        .as_object_mut()
        .and_then(|map| map.remove(ALLOW_EXTRA))
        .is_some_and(|value| value == true);
    if !allows_extra && !composes(&schema) {
        close(&mut schema);
    }
    Ok(schema)
}

/// Refuses bounds that the compiler cannot tell from their neighbors, because it computes with floats.
fn check_bounds(schema: &Value) -> Result<(), GrammarError> {
    let Value::Object(map) = schema else {
        return Ok(());
    };
    for key in [
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    ] {
        if let Some(bound) = map.get(key).and_then(inexact) {
            return Err(GrammarError(format!(
                "`{key}`: {bound} is too large to be enforced exactly"
            )));
        }
    }
    map.iter()
        .try_for_each(|(key, value)| subschemas(key, value).try_for_each(check_bounds))
}

/// The digits of an integer that is no float.
fn inexact(value: &Value) -> Option<String> {
    if !integers::is_integer(value) {
        return None;
    }
    let digits = integers::to_json(value);
    (format!("{:.0}", integers::nearest(value)?) != digits).then_some(digits)
}

/// Whether objects are described in several places at once, so that none of them knows all properties.
fn composes(schema: &Value) -> bool {
    const KEYS: [&str; 6] = [
        "allOf",
        "if",
        "not",
        "dependentSchemas",
        "unevaluatedProperties",
        "patternProperties",
    ];
    let Value::Object(map) = schema else {
        return false;
    };
    let has = |key: &&str| map.contains_key(*key);
    let beside = map.contains_key("properties") && ["anyOf", "oneOf", "$ref"].iter().any(has);
    beside
        || KEYS.iter().any(has)
        || map
            .iter()
            .any(|(key, value)| subschemas(key, value).any(composes))
}

/// Lets objects have only the properties that they declare, if the schema does not say whether they may have others.
/// The standard allows any, and a model that may write any property seldom stops.
fn close(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    if map.get("properties").is_some_and(Value::is_object) {
        map.entry("additionalProperties")
            .or_insert(Value::Bool(false));
    }
    for (key, value) in map.iter_mut() {
        match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(schemas)) => {
                schemas.values_mut().for_each(close);
            }
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(close);
            }
            ("items" | "additionalProperties", schema) => close(schema),
            _ => {}
        }
    }
}

fn choice_grammar(choices: &[String]) -> String {
    let mut grammar = "start: CHOICE\nCHOICE: ".to_owned();
    for (index, choice) in choices.iter().enumerate() {
        let or = if index == 0 { "" } else { " | " };
        write!(grammar, "{or}{}", Value::from(choice.as_str())).expect("a string takes text");
    }
    grammar
}

/// Checks depth and width of a schema.
fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    check_depth(schema, 0)?;
    let (properties, alternatives) = widths(schema);
    let counts = [
        (properties, "properties", GRAMMAR_PROPERTIES_MAX),
        (alternatives, "alternatives", GRAMMAR_ALTERNATIVES_MAX),
    ];
    match counts.into_iter().find(|(count, _, most)| count > most) {
        None => Ok(()),
        Some((count, what, most)) => Err(GrammarError(format!(
            "it has {count} {what}; at most {most} are allowed"
        ))),
    }
}

/// Number of properties in a schema, and of alternatives that are not constants. The recursion is bounded, because the
/// depth was checked.
fn widths(schema: &Value) -> (usize, usize) {
    match schema {
        Value::Array(items) => items.iter().map(widths).fold((0, 0), added),
        Value::Object(map) => {
            let properties = properties(map);
            let lists = ["anyOf", "oneOf"]
                .iter()
                .filter_map(|key| map.get(*key)?.as_array());
            let alternatives = lists
                .flatten()
                .filter(|item| item.get("const").or_else(|| item.get("enum")).is_none())
                .count();
            map.values()
                .map(widths)
                .fold((properties, alternatives), added)
        }
        _ => (0, 0),
    }
}

fn added(one: (usize, usize), other: (usize, usize)) -> (usize, usize) {
    (one.0 + other.0, one.1 + other.1)
}

/// Number of properties that a schema names: those it describes, and those it only requires.
fn properties(schema: &Map<String, Value>) -> usize {
    let described = schema.get("properties").and_then(Value::as_object);
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let only_required =
        required.filter(|name| !described.is_some_and(|described| described.contains_key(*name)));
    described.map_or(0, Map::len) + only_required.count()
}

fn check_depth(schema: &Value, depth: usize) -> Result<(), GrammarError> {
    if depth > GRAMMAR_DEPTH_MAX {
        return Err(GrammarError(format!(
            "it is nested deeper than {GRAMMAR_DEPTH_MAX} levels"
        )));
    }
    match schema {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check_depth(item, depth + 1)),
        Value::Object(map) => map
            .values()
            .try_for_each(|item| check_depth(item, depth + 1)),
        _ => Ok(()),
    }
}

/// The compiler's parser is recursive, so the depth of brackets is checked first. Brackets in strings and patterns
/// count too, which is harmless.
fn check_brackets(grammar: &str) -> Result<(), GrammarError> {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in grammar.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > 2 * GRAMMAR_DEPTH_MAX {
        return Err(GrammarError(format!(
            "its brackets are nested deeper than {} levels",
            2 * GRAMMAR_DEPTH_MAX
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
