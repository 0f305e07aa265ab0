//! Grammars of arguments in notations that are not JSON: values in tags, Gemma's, and Python's.
//!
//! They enforce types, constants, and which arguments there are, in the order of the schema. A schema that demands more
//! of a value than its notation's grammar can say has none: then the call is JSON instead.

use super::types::Allowed;
use crate::text::{GrammarError, integers, schema_in_lark};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// A notation of arguments. Markers are in Lark notation.
pub(super) enum Notation {
    /// Each argument in tags: text as it is, everything else as JSON.
    Tags {
        /// Before and after a key.
        key: [String; 2],
        /// Before a value.
        open: String,
        /// After a value.
        close: Mark,
        /// After an argument.
        after: String,
    },
    /// Keys without quotes, and strings between two of these markers.
    Gemma(Mark),
    /// Keyword arguments of a call in Python.
    Python,
}

/// A marker that ends a text.
pub(super) struct Mark {
    /// The text of the marker.
    pub(super) text: &'static str,
    /// The marker in Lark notation.
    pub(super) lark: String,
    /// Whether it is a special token, which is never a part of text.
    pub(super) is_token: bool,
}

/// The grammar of the arguments of several functions.
pub(super) struct Arguments {
    /// For each function, the rule or expression of its arguments.
    pub(super) each: Vec<String>,
    /// Rules that these refer to.
    pub(super) rules: String,
}

/// The arguments of these functions in a notation, if it can enforce their schemas.
pub(super) fn arguments(
    notation: &Notation,
    functions: &[Value],
) -> Result<Option<Arguments>, GrammarError> {
    let mut writer = Writer {
        notation,
        rules: String::new(),
        count: 0,
        text: None,
        any: None,
    };
    let mut each = Vec::new();
    for function in functions {
        let (parameters, strict) = (&function["parameters"], function["strict"] == true);
        let Some(own) = writer.all(parameters, strict)? else {
            return Ok(None);
        };
        each.push(own);
    }
    Ok(Some(Arguments {
        each,
        rules: writer.rules,
    }))
}

/// The arguments of these functions in JSON.
pub(super) fn in_json(functions: &[Value]) -> Result<Arguments, GrammarError> {
    let (mut each, mut rules) = (Vec::new(), String::new());
    for (index, function) in functions.iter().enumerate() {
        let schema = schema_in_lark(&object_schema(function), function["strict"] == true)?;
        write!(rules, "\narguments{index}: {schema}").expect("a string takes text");
        each.push(format!("arguments{index}"));
    }
    Ok(Arguments { each, rules })
}

/// The schema of a function's arguments, which are an object whether it says so or not.
pub(super) fn object_schema(function: &Value) -> Value {
    let mut schema = function["parameters"].clone();
    if let Value::Object(map) = &mut schema {
        map.entry("type").or_insert("object".into());
    }
    schema
}

/// A string literal in Lark notation.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Maximum number of alternatives within each other.
const ALTERNATIVES_DEPTH_MAX: usize = 32;
/// Keywords that say nothing about a value's form.
const NOTES: [&str; 5] = ["title", "description", "default", "examples", "deprecated"];

/// Whether a schema has no keywords but its type, those of `known`, and notes.
fn has_only(schema: &Map<String, Value>, known: &[&str]) -> bool {
    schema
        .keys()
        .map(String::as_str)
        .all(|key| key == "type" || known.contains(&key) || NOTES.contains(&key))
}

/// The only values that a schema allows, if it lists them.
fn constants(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(constant), _) => Some(vec![constant]),
        (None, Some(Value::Array(constants))) => Some(constants.iter().collect()),
        _ => None,
    }
}

struct Writer<'a> {
    notation: &'a Notation,
    rules: String,
    /// Rules so far.
    count: usize,
    /// The rule of a text, once there is one.
    text: Option<String>,
    /// The rule of any value, once there is one.
    any: Option<String>,
}

impl Writer<'_> {
    /// Adds a rule, and returns its name.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("value{}", self.count);
        self.count += 1;
        write!(self.rules, "\n{name}: {body}").expect("a string takes text");
        name
    }

    /// All arguments of a function. One that declares none has none.
    fn all(&mut self, schema: &Value, strict: bool) -> Result<Option<String>, GrammarError> {
        let nothing = Map::new();
        let schema = schema.as_object().unwrap_or(&nothing);
        let Some(properties) = properties(schema) else {
            return Ok(None);
        };
        let mut parts = Vec::new();
        for (key, value, is_required) in properties {
            let part = match self.notation {
                Notation::Tags { .. } => self.tagged(key, value, strict)?,
                Notation::Gemma(_) => self
                    .value(value)?
                    .map(|value| format!("{} {value}", quoted(&format!("{key}:")))),
                Notation::Python => self
                    .value(value)?
                    .map(|value| format!("{} {value}", quoted(&format!("{key}=")))),
            };
            let Some(part) = part else { return Ok(None) };
            parts.push((part, is_required));
        }
        Ok(Some(self.sequence(parts)))
    }

    /// Members in their order, of which some may be missing, with separators between those that are there.
    fn sequence(&mut self, parts: Vec<(String, bool)>) -> String {
        let separator = match self.notation {
            Notation::Tags { .. } => "\"\"".to_owned(),
            Notation::Gemma(_) => quoted(","),
            Notation::Python => quoted(", "),
        };
        // What may follow if nothing was written so far, and if something was.
        let (mut first, mut rest) = ("\"\"".to_owned(), "\"\"".to_owned());
        for (part, is_required) in parts.into_iter().rev() {
            let part = self.rule(&part);
            if is_required {
                first = self.rule(&format!("{part} {rest}"));
                rest = self.rule(&format!("{separator} {part} {rest}"));
            } else {
                first = self.rule(&format!("{part} {rest} | {first}"));
                rest = self.rule(&format!("({separator} {part})? {rest}"));
            }
        }
        first
    }

    /// An argument in tags: a text as it is, everything else as JSON. Those who read it know only the whole schema of
    /// the arguments, so one that refers to other places of it has no grammar here.
    fn tagged(
        &mut self,
        key: &str,
        schema: &Value,
        strict: bool,
    ) -> Result<Option<String>, GrammarError> {
        let Notation::Tags {
            key: [before, between],
            open,
            close,
            after,
        } = self.notation
        else {
            return Ok(None);
        };
        if refers(schema) {
            return Ok(None);
        }
        let allowed = Allowed::by(schema, schema);
        let value = if allowed.texts_are_bare() {
            self.bare(schema, &allowed)
        } else {
            let value = self.rule(&schema_in_lark(schema, strict)?);
            Some(format!("{value} {}", close.lark))
        };
        Ok(value.map(|value| format!("{before} {} {between} {open} {value} {after}", quoted(key))))
    }

    /// A value that may be a text without quotes, and the marker after it. It is read as one of the allowed
    /// types, so it may be any text, unless the schema demands more than a type.
    fn bare(&mut self, schema: &Value, allowed: &Allowed) -> Option<String> {
        let mut leaves = Vec::new();
        alternatives(schema, 0, &mut leaves).then_some(())?;
        if leaves
            .iter()
            .any(|leaf| matches!(leaf, Leaf::Type("string")))
        {
            return Some(self.text());
        }
        let each = leaves.iter().map(|leaf| self.bare_leaf(leaf, allowed));
        let each: Vec<String> = each.collect::<Option<_>>()?;
        Some(self.rule(&each.join(" | ")))
    }

    fn bare_leaf(&self, leaf: &Leaf<'_>, allowed: &Allowed) -> Option<String> {
        let Notation::Tags { close, .. } = self.notation else {
            return None;
        };
        let written = match leaf {
            Leaf::Constant(constant) => vec![bare_constant(constant, allowed, close)?],
            Leaf::Type("null") => vec![quoted("null")],
            Leaf::Type("boolean") => vec![quoted("true"), quoted("false")],
            Leaf::Type(_) => return None,
        };
        let ended: Vec<_> = written
            .into_iter()
            .map(|text| format!("{text} {}", close.lark))
            .collect();
        Some(ended.join(" | "))
    }

    /// A value of this schema, in a notation that quotes texts.
    fn value(&mut self, schema: &Value) -> Result<Option<String>, GrammarError> {
        let nothing = Map::new();
        let schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(true) => &nothing,
            _ => return Ok(None),
        };
        if let Some(constants) = constants(schema) {
            return Ok(self.one_of(&constants, schema));
        }
        match schema.get("type") {
            Some(Value::String(kind)) => self.of_type(kind, schema),
            None if has_only(schema, &[]) => Ok(Some(self.any())),
            _ => Ok(None),
        }
    }

    fn one_of(&mut self, constants: &[&Value], schema: &Map<String, Value>) -> Option<String> {
        let all = constants.iter().map(|constant| self.constant(constant));
        let all: Vec<String> = all.collect::<Option<_>>()?;
        if all.is_empty() || !has_only(schema, &["const", "enum"]) {
            return None;
        }
        Some(self.rule(&all.join(" | ")))
    }

    /// A value of one type, if its grammar can enforce everything that the schema says.
    fn of_type(
        &mut self,
        kind: &str,
        schema: &Map<String, Value>,
    ) -> Result<Option<String>, GrammarError> {
        let enforced: &[&str] = match kind {
            "integer" | "number" => &BOUNDS,
            "array" => &["items"],
            "object" => &["properties", "required", "additionalProperties"],
            _ => &[],
        };
        if !has_only(schema, enforced) {
            return Ok(None);
        }
        Ok(match kind {
            "string" => Some(self.text()),
            "boolean" => Some(format!("({})", self.booleans())),
            "null" => Some(quoted(self.null())),
            "integer" | "number" => Some(self.number(kind, schema)?),
            "array" => {
                let item = self.value(schema.get("items").unwrap_or(&Value::Bool(true)))?;
                item.map(|item| self.list(&item))
            }
            "object" => self.object(schema)?,
            _ => None,
        })
    }

    fn number(&mut self, kind: &str, schema: &Map<String, Value>) -> Result<String, GrammarError> {
        let has_bounds = !has_only(schema, &[]);
        Ok(match kind {
            _ if has_bounds => self.rule(&schema_in_lark(&schema.clone().into(), true)?),
            "integer" => self.rule("/-?(0|[1-9][0-9]*)/"),
            _ => self.rule(NUMBER),
        })
    }

    /// An object within an argument.
    fn object(&mut self, schema: &Map<String, Value>) -> Result<Option<String>, GrammarError> {
        if !schema.contains_key("properties") {
            let is_free = schema
                .get("additionalProperties")
                .is_none_or(|more| *more == true);
            return Ok(is_free.then(|| self.any_object()));
        }
        let Some(properties) = properties(schema) else {
            return Ok(None);
        };
        let mut parts = Vec::new();
        for (key, value, is_required) in properties {
            let Some(value) = self.value(value)? else {
                return Ok(None);
            };
            let key = if matches!(self.notation, Notation::Python) {
                format!("\"{key}\": ")
            } else {
                format!("{key}:")
            };
            parts.push((format!("{} {value}", quoted(&key)), is_required));
        }
        let members = self.sequence(parts);
        Ok(Some(self.rule(&format!("\"{{\" {members} \"}}\""))))
    }

    fn list(&mut self, item: &str) -> String {
        let separator = quoted(if matches!(self.notation, Notation::Python) {
            ", "
        } else {
            ","
        });
        self.rule(&format!("\"[\" ({item} ({separator} {item})*)? \"]\""))
    }

    /// A string.
    fn text(&mut self) -> String {
        if let Some(text) = &self.text {
            return text.clone();
        }
        let name = match self.notation {
            Notation::Tags { close, .. } => self.text_until(close),
            Notation::Gemma(quote) => {
                let text = self.text_until(quote);
                self.rule(&format!("{} {text}", quote.lark))
            }
            Notation::Python => self.rule(r#"/"([^"\\\x00-\x1F]|\\["\\nrt])*"/"#),
        };
        self.text = Some(name.clone());
        name
    }

    /// Any text, and the marker that ends it.
    fn text_until(&mut self, mark: &Mark) -> String {
        if mark.is_token {
            let escaped: String = mark
                .text
                .chars()
                .map(|c| format!("\\x{:02X}", u32::from(c)))
                .collect();
            let text = self.rule(&format!(
                "TEXT?\nTEXT: /(.|\\n)+/ & ~/(.|\\n)*{escaped}(.|\\n)*/"
            ));
            return self.rule(&format!("{text} {}", mark.lark));
        }
        // Attributes come before the colon of a rule.
        let name = format!("value{}", self.count);
        self.count += 1;
        write!(self.rules, "\n{name}[suffix={}]: /(.|\\n)*/", mark.lark)
            .expect("a string takes text");
        name
    }

    fn booleans(&self) -> &'static str {
        if matches!(self.notation, Notation::Python) {
            r#""True" | "False""#
        } else {
            r#""true" | "false""#
        }
    }

    fn null(&self) -> &'static str {
        if matches!(self.notation, Notation::Python) {
            "None"
        } else {
            "null"
        }
    }

    /// A number, text, boolean or null as it is written.
    fn constant(&self, value: &Value) -> Option<String> {
        let is_python = matches!(self.notation, Notation::Python);
        match (self.notation, value) {
            _ if integers::digits(value).is_some() => Some(quoted(&integers::to_json(value))),
            (_, Value::Array(_) | Value::Object(_)) => None,
            (Notation::Gemma(quote), Value::String(text)) => (!text.contains(quote.text))
                .then(|| format!("{} {} {}", quote.lark, quoted(text), quote.lark)),
            (Notation::Python, Value::String(text)) => {
                let is_plain = text
                    .chars()
                    .all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
                is_plain.then(|| quoted(&quoted(text)))
            }
            (_, Value::Bool(truth)) if is_python => {
                Some(quoted(if *truth { "True" } else { "False" }))
            }
            (_, Value::Null) => Some(quoted(self.null())),
            (_, other) => Some(quoted(&other.to_string())),
        }
    }

    /// Any value.
    fn any(&mut self) -> String {
        if let Some(any) = &self.any {
            return any.clone();
        }
        // Its name comes first, because lists and objects refer to it.
        let any = "any".to_owned();
        self.any = Some(any.clone());
        let (text, list) = (self.text(), self.list(&any));
        let (object, number) = (self.any_object(), self.rule(NUMBER));
        let (booleans, null) = (self.booleans(), quoted(self.null()));
        write!(
            self.rules,
            "\nany: {text} | {list} | {object} | {number} | {booleans} | {null}"
        )
        .expect("a string takes text");
        any
    }

    fn any_object(&mut self) -> String {
        let any = self.any();
        let [key, between, separator] = match self.notation {
            Notation::Python => [self.text(), quoted(": "), quoted(", ")],
            _ => [
                self.rule("/[A-Za-z_][A-Za-z0-9_.-]*/"),
                quoted(":"),
                quoted(","),
            ],
        };
        let pair = self.rule(&format!("{key} {between} {any}"));
        self.rule(&format!("\"{{\" ({pair} ({separator} {pair})*)? \"}}\""))
    }
}

/// What a value without quotes may be.
enum Leaf<'a> {
    /// Any value of a type.
    Type(&'a str),
    /// One value.
    Constant(&'a Value),
}

/// Adds all alternatives of a schema; false if it demands more than a type or a constant.
fn alternatives<'a>(schema: &'a Value, depth: usize, leaves: &mut Vec<Leaf<'a>>) -> bool {
    if depth == ALTERNATIVES_DEPTH_MAX {
        return false;
    }
    let Some(schema) = schema.as_object() else {
        return false;
    };
    let only = |known: &[&str]| {
        schema
            .keys()
            .all(|key| known.contains(&&**key) || NOTES.contains(&&**key))
    };
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(all)) = schema.get(key) {
            return only(&[key]) && all.iter().all(|one| alternatives(one, depth + 1, leaves));
        }
    }
    match (schema.get("const"), schema.get("enum"), schema.get("type")) {
        (Some(constant), ..) => leaves.push(Leaf::Constant(constant)),
        (None, Some(Value::Array(constants)), _) => {
            leaves.extend(constants.iter().map(Leaf::Constant));
        }
        (None, None, Some(Value::String(name))) => leaves.push(Leaf::Type(name)),
        (None, None, Some(Value::Array(names))) => {
            leaves.extend(names.iter().filter_map(Value::as_str).map(Leaf::Type));
        }
        _ => return false,
    }
    only(&["const", "enum", "type"])
}

/// Whether a schema refers to another place.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            map.get("$ref").is_some_and(Value::is_string) || map.values().any(refers)
        }
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

/// A text as it is, or another value as JSON, if it is read as the same value.
fn bare_constant(value: &Value, allowed: &Allowed, close: &Mark) -> Option<String> {
    let json = integers::to_json(value);
    let text = value.as_str().unwrap_or(&json).to_owned();
    let is_kept = !text.contains(close.text) && text.trim_matches('\n') == text;
    (is_kept && allowed.read(&text) == json).then(|| quoted(&text))
}

/// What a schema demands of a number.
const BOUNDS: [&str; 5] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
const NUMBER: &str = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/";

/// The properties of an object that has no others, and whether each is required. `None` if it may have others, or if
/// a key is not a plain name.
fn properties(schema: &Map<String, Value>) -> Option<Vec<(&str, &Value, bool)>> {
    let known = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "$schema",
    ];
    let says_more = schema
        .keys()
        .any(|key| !known.contains(&key.as_str()) && !NOTES.contains(&key.as_str()));
    let is_open = schema
        .get("additionalProperties")
        .is_some_and(|more| *more != false);
    let properties = match schema.get("properties") {
        Some(properties) => properties.as_object()?.iter().collect(),
        None => Vec::new(),
    };
    let required = match schema.get("required") {
        Some(required) => required
            .as_array()?
            .iter()
            .map(Value::as_str)
            .collect::<Option<Vec<_>>>()?,
        None => Vec::new(),
    };
    let are_known = required
        .iter()
        .all(|name| properties.iter().any(|(key, _)| key == name));
    let are_named = properties.iter().all(|(key, _)| is_name(key));
    (!says_more && !is_open && are_known && are_named).then(|| {
        properties
            .into_iter()
            .map(|(key, value)| (key.as_str(), value, required.contains(&key.as_str())))
            .collect()
    })
}

fn is_name(key: &str) -> bool {
    !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}
