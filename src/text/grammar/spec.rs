//! [`GrammarSpec`]: the ways to say what an answer has to look like, checked before they are compiled.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Bytes of a grammar as text.
const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Nesting of a schema, and of brackets in a grammar.
const GRAMMAR_DEPTH_MAX: usize = 32;
/// Strings to choose from.
const GRAMMAR_CHOICES_MAX: usize = 1024;
/// Characters of what the compiler has to say.
const TOLD_CHARACTERS: usize = 400;
/// Between two tokens of JSON: a space, or a line break with indentation. Without a bound a model may write white space
/// until its tokens are used up.
const JSON_SPACE: &str = r" |\n {0,24}|\n\t{0,8}";

/// What an answer has to look like.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSpec {
    /// A JSON value that a schema describes.
    Schema {
        /// The schema.
        schema: Value,
        /// Refuse what cannot be enforced, rather than ignore it.
        strict: bool,
    },
    /// Text that matches all of a regular expression.
    Regex(String),
    /// One of these.
    Choice(Vec<String>),
    /// A grammar in Lark's notation, as llguidance reads it.
    Lark(String),
}

/// A grammar that is refused, in words for whoever sent it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(String);

impl GrammarError {
    pub(super) fn new(error: &dyn std::fmt::Display) -> Self {
        Self::told(&error.to_string())
    }

    /// The compiler's words: the first line, shortened.
    pub(super) fn told(message: &str) -> Self {
        let line = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it cannot be compiled");
        Self(line.chars().take(TOLD_CHARACTERS).collect())
    }
}

impl GrammarSpec {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::Schema { schema: json!({"type": "object"}), strict: true }
    }

    /// What it is known by; an error if it is too large.
    pub(super) fn key(&self) -> Result<String, GrammarError> {
        let key = match self {
            Self::Schema { schema, strict } => {
                check_depth(schema, 0)?;
                format!("schema {strict} {schema}")
            }
            Self::Regex(regex) => format!("regex {regex}"),
            Self::Choice(choices) if choices.is_empty() || choices.len() > GRAMMAR_CHOICES_MAX => {
                return Err(GrammarError(format!("1 to {GRAMMAR_CHOICES_MAX} choices are needed")));
            }
            Self::Choice(choices) if choices.iter().any(String::is_empty) => {
                return Err(GrammarError("a choice must not be empty".into()));
            }
            Self::Choice(choices) => format!("choice {}", json!(choices)),
            Self::Lark(grammar) => {
                check_brackets(grammar)?;
                format!("lark {grammar}")
            }
        };
        if key.len() > GRAMMAR_BYTES_MAX {
            return Err(GrammarError(format!("it has {} bytes; at most {GRAMMAR_BYTES_MAX} are allowed", key.len())));
        }
        Ok(key)
    }

    pub(super) fn top_level(&self) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match self {
            Self::Schema { schema, strict } => TopLevelGrammar::from_json_schema(with_options(schema, *strict)?),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Choice(choices) => TopLevelGrammar::from_lark(choice_grammar(choices)),
            // Not its own list form, by which a schema could come in unchecked.
            Self::Lark(grammar) => TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(grammar.clone())),
        })
    }
}

/// The schema as it stands in a Lark grammar, after `%json`.
pub fn schema_in_lark(schema: &Value, strict: bool) -> Result<String, GrammarError> {
    check_depth(schema, 0)?;
    Ok(format!("%json {}", with_options(schema, strict)?))
}

/// The compiler reads its options from the schema itself.
fn with_options(schema: &Value, strict: bool) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError("the schema allows nothing".into())),
        _ => return Err(GrammarError("a schema is an object, true or false".into())),
    };
    let options = json!({"whitespace_pattern": JSON_SPACE, "lenient": !strict, "coerce_one_of": !strict});
    schema.insert("x-guidance".into(), options);
    Ok(Value::Object(schema))
}

fn choice_grammar(choices: &[String]) -> String {
    let mut grammar = "start: CHOICE\nCHOICE: ".to_owned();
    for (index, choice) in choices.iter().enumerate() {
        let or = if index == 0 { "" } else { " | " };
        write!(grammar, "{or}{}", Value::from(choice.as_str())).expect("a string takes text");
    }
    grammar
}

fn check_depth(schema: &Value, depth: usize) -> Result<(), GrammarError> {
    if depth > GRAMMAR_DEPTH_MAX {
        return Err(GrammarError(format!("it is nested deeper than {GRAMMAR_DEPTH_MAX} levels")));
    }
    match schema {
        Value::Array(items) => items.iter().try_for_each(|item| check_depth(item, depth + 1)),
        Value::Object(map) => map.values().try_for_each(|item| check_depth(item, depth + 1)),
        _ => Ok(()),
    }
}

/// The compiler's parser descends into brackets, so they are counted first; in strings and patterns too, which costs no
/// one anything.
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
        return Err(GrammarError(format!("its brackets are nested deeper than {} levels", 2 * GRAMMAR_DEPTH_MAX)));
    }
    Ok(())
}
