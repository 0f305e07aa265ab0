//! Writes JSON; parses JSON in UTF-8 and refuses input that two parsers would read differently.
//!
//! Duplicate keys are refused, because another reader of the body (a proxy, a log) might take the other value. The
//! number of values and their depth are bounded, so that a small body cannot become a large tree, and what they take is
//! charged while they are parsed.

use super::error::{ApiError, shorten};
use super::memory::Charge;
use crate::text::integers;
use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value, json};
use std::cell::{Cell, RefCell};
use std::fmt;

/// Maximum nesting of arrays and objects.
const DEPTH_MAX: u32 = 64;
/// Maximum weight of the values in one body: enough for millions of prompt tokens.
const WEIGHT_MAX: u32 = 4 << 20;
/// Weight of a text, a list, an object or a key of one, beside one for each value: at most 131,072 of them.
const LARGE: u32 = 31;
/// Bytes of a weight of one, as a number in a tree takes them. A small object takes up to 2 kB in the largest form that
/// a route makes of it, as an item of the Responses API.
const WEIGHT_BYTES: u64 = 32;
/// Fields with objects of a client's own that chat templates write or that answers must match.
const SHOWN: [&str; 10] = [
    "chat_template_kwargs",
    "format",
    "guided_json",
    "json_schema",
    "messages",
    "output_config",
    "response_format",
    "structured_outputs",
    "text",
    "tools",
];
/// The objects of a client's own in these fields; some fields are such objects.
const OWN: [&str; 10] = [
    "arguments",
    "chat_template_kwargs",
    "format",
    "guided_json",
    "input",
    "input_schema",
    "json",
    "json_schema",
    "parameters",
    "schema",
];
/// Characters of a field's name in an error.
const FIELD_CHARACTERS: usize = 64;
/// Weight after which it is charged.
const CHARGED_WEIGHT: u32 = 4096;

/// A reply as JSON, with all digits of integers that a client sent.
pub(crate) fn write(reply: &impl Serialize) -> String {
    let json = serde_json::to_string(reply).expect("strings and numbers always serialise");
    integers::unmarked(json)
}

/// The arguments of a call as an object, with all digits of their numbers. Those that are none, because the answer was
/// cut, are wrapped as Anthropic's documentation recommends.
pub(crate) fn object_of(arguments: &str) -> Box<RawValue> {
    let arguments = if arguments.trim().is_empty() {
        "{}"
    } else {
        arguments
    };
    let object = serde_json::from_str::<Box<RawValue>>(arguments)
        .ok()
        .filter(|value| value.get().starts_with('{'));
    object.unwrap_or_else(|| {
        RawValue::from_string(json!({"INVALID_JSON": arguments}).to_string())
            .expect("a JSON value is written as JSON")
    })
}

/// Parses one JSON value under the rules above. Integers beyond 64 bits are marked in objects of a client's own, and
/// rounded elsewhere (see [`integers`]). An escaped half of a character becomes U+FFFD.
/// What the values take is charged, also if they are refused.
pub(crate) fn parse(bytes: &[u8], charge: &Charge) -> Result<Value, ApiError> {
    let wrong =
        |error: &dyn fmt::Display| ApiError::body(format!("the body is not valid JSON: {error}"));
    std::str::from_utf8(bytes).map_err(|error| wrong(&error))?;
    let marked = integers::marked(bytes);
    charge.add((bytes.len() + marked.as_ref().map_or(0, Vec::len)) as u64)?;
    let weigher = Weigher::new(charge);
    let mut deserializer = serde_json::Deserializer::from_slice(marked.as_deref().unwrap_or(bytes));
    let strict = Strict {
        depth: 0,
        weigher: &weigher,
    };
    let result = strict.deserialize(&mut deserializer);
    if let Some(refusal) = weigher.refusal.take() {
        return Err(refusal);
    }
    let mut value = match result {
        // Clients cut texts between the two halves of a character.
        Err(error) if error.to_string().contains("hex escape") => {
            return parse_mended(bytes, charge).ok_or_else(|| wrong(&error))?;
        }
        value => value.map_err(|error| wrong(&error))?,
    };
    deserializer.end().map_err(|error| wrong(&error))?;
    if marked.is_some() {
        for (name, value) in value.as_object_mut().into_iter().flatten() {
            round(name, value, SHOWN.contains(&name.as_str()));
        }
    }
    Ok(value)
}

/// Rounds integers beyond 64 bits, except those within objects of a client's own.
fn round(name: &str, value: &mut Value, is_shown: bool) {
    match value {
        _ if !is_shown || integers::digits(value).is_some() => integers::round(value),
        Value::Object(_) if OWN.contains(&name) => {}
        Value::Object(entries) => entries
            .iter_mut()
            .for_each(|(name, value)| round(name, value, true)),
        Value::Array(items) => items.iter_mut().for_each(|item| round("", item, true)),
        _ => {}
    }
}

/// [`parse`] with U+FFFD for escaped halves of characters; `None` if there are none.
fn parse_mended(bytes: &[u8], charge: &Charge) -> Option<Result<Value, ApiError>> {
    let (mut mended, mut at) = (bytes.to_vec(), 0);
    while at < bytes.len() {
        at += match (
            bytes[at],
            escaped_unit(bytes, at),
            escaped_unit(bytes, at + 6),
        ) {
            (b'\\', Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => 12,
            (b'\\', Some(0xD800..0xE000), _) => {
                mended[at + 2..at + 6].copy_from_slice(b"fffd");
                6
            }
            (b'\\', Some(_), _) => 6,
            (b'\\', None, _) => 2,
            _ => 1,
        };
    }
    (mended != bytes).then(|| parse(&mended, charge))
}

/// The unit of UTF-16 that is escaped here.
fn escaped_unit(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes
        .get(at..at + 6)
        .filter(|escape| escape.starts_with(b"\\u"))?;
    u16::from_str_radix(std::str::from_utf8(&escape[2..]).ok()?, 16).ok()
}

/// Weighs the values of a body.
struct Weigher<'a> {
    charge: &'a Charge,
    left: Cell<u32>,
    uncharged: Cell<u32>,
    /// The field that is being read.
    field: RefCell<String>,
    /// Why the body is too heavy.
    refusal: Cell<Option<ApiError>>,
}

impl<'a> Weigher<'a> {
    fn new(charge: &'a Charge) -> Self {
        let (left, uncharged) = (Cell::new(WEIGHT_MAX), Cell::new(0));
        Self {
            charge,
            left,
            uncharged,
            field: RefCell::default(),
            refusal: Cell::new(None),
        }
    }

    fn add<E: Error>(&self, weight: u32) -> Result<(), E> {
        let Some(left) = self.left.get().checked_sub(weight) else {
            let field: String = self.field.borrow().chars().take(FIELD_CHARACTERS).collect();
            let message = format!("`{field}` has too many values");
            self.refusal.set(Some(ApiError::invalid(field, message)));
            return Err(E::custom("too many values"));
        };
        self.left.set(left);
        let uncharged = self.uncharged.get() + weight;
        if uncharged < CHARGED_WEIGHT {
            self.uncharged.set(uncharged);
            return Ok(());
        }
        self.uncharged.set(0);
        self.charge
            .add(u64::from(uncharged) * WEIGHT_BYTES)
            .map_err(|refusal| {
                self.refusal.set(Some(refusal));
                E::custom("too much memory")
            })
    }
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    depth: u32,
    weigher: &'a Weigher<'a>,
}

impl Strict<'_> {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.depth == DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {DEPTH_MAX}")));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.weigher.add(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.weigher.add(LARGE)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.weigher.add(LARGE)?;
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        self.weigher.add(LARGE)?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        self.weigher.add(LARGE)?;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if self.depth == 0 {
                self.weigher.field.borrow_mut().clone_from(&key);
            }
            self.weigher.add(LARGE)?;
            let value = access.next_value_seed(inner)?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "duplicate key {}",
                    shorten(&key)
                )));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
