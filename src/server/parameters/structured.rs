//! The form that an answer must have: the fields that set it, and the bridge between grammars, which know text, and the
//! engine, which knows tokens.

use crate::engine::request::{Constraint, ConstraintState, SharedConstraint, Unsatisfiable};
use crate::server::parameters::fields::wrong;
use crate::server::parameters::kinds::{Bounds, Kind, object};
use crate::server::parameters::sampling::Sampling;
use crate::server::parameters::table::{StructuredFields, StructuredOutputs};
use crate::server::state::ServerState;
use crate::server::wire::error::ApiError;
use crate::text::answer::Dialect;
use crate::text::answer::reasoning::{Gate, ReasoningParser, Start};
use crate::text::{Grammar, GrammarError, GrammarSpec, GrammarState, Grammars, Tokenizer};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Bytes of compiled grammars that a server keeps.
const CACHE_BYTES: usize = 64 << 20;

/// What an answer has to look like, and the field that says so.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) spec: GrammarSpec,
    pub(crate) field: &'static str,
}

impl StructuredFields {
    /// What the answer has to look like; at most one field may ask for anything.
    pub(crate) fn structure(self) -> Result<Option<Structure>, ApiError> {
        let outputs = self.structured_outputs.map(StructuredOutputs::structures).into_iter().flatten();
        let others = [
            ("guided_json", self.guided_json),
            ("guided_regex", self.guided_regex),
            ("guided_choice", self.guided_choice),
            ("guided_grammar", self.guided_grammar),
            ("json_schema", self.json_schema),
        ];
        let found = std::iter::once(("response_format", self.response_format.flatten())).chain(outputs).chain(others);
        let mut found = found.filter_map(|(field, spec)| Some(Structure { spec: spec?, field }));
        let first = found.next();
        match first.as_ref().zip(found.next()) {
            None => Ok(first),
            Some((first, second)) => {
                let message = format!("`{}` and `{}` both set the form of the answer", first.field, second.field);
                Err(ApiError::invalid(second.field, message))
            }
        }
    }
}

impl StructuredOutputs {
    fn structures(self) -> [(&'static str, Option<GrammarSpec>); 5] {
        [
            ("structured_outputs.json", self.json),
            ("structured_outputs.json_object", self.json_object.then(GrammarSpec::json_object)),
            ("structured_outputs.regex", self.regex),
            ("structured_outputs.choice", self.choice),
            ("structured_outputs.grammar", self.grammar),
        ]
    }
}

/// OpenAI's form; free text is no structure.
pub(crate) struct ResponseFormat;

impl Kind for ResponseFormat {
    type Value = Option<GrammarSpec>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Option<GrammarSpec>, ApiError> {
        let format = object(at, value)?;
        let (schema, strict) = json_schema(at, &format)?;
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(None),
            Some("json_object") => match schema {
                Some(schema) => Ok(Some(GrammarSpec::Schema { schema, strict: false })),
                None => Ok(Some(GrammarSpec::json_object())),
            },
            Some("json_schema") => {
                let schema = schema.ok_or_else(|| ApiError::missing(format!("{at}.json_schema.schema")))?;
                Ok(Some(GrammarSpec::Schema { schema, strict }))
            }
            Some(kind @ ("grammar" | "structural_tag" | "regex")) => {
                let message = format!("`{at}` of type {kind} is not supported: use `structured_outputs`");
                Err(ApiError::unsupported(at, message))
            }
            _ => {
                let message = format!("`{at}.type` must be \"text\", \"json_object\" or \"json_schema\"");
                Err(ApiError::invalid(at, message))
            }
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        let inner = json!({
            "name": {"type": ["string", "null"]},
            "schema": {"type": ["object", "boolean", "null"]},
            "strict": {"type": ["boolean", "null"]},
        });
        json!({
            "title": "ResponseFormat",
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {"enum": ["text", "json_object", "json_schema"]},
                "json_schema": {"type": ["object", "null"], "properties": inner},
            },
        })
    }
}

/// The schema of a `response_format` and whether it is strict, in `json_schema` or, as with llama.cpp, beside the type.
fn json_schema(at: &str, format: &Map<String, Value>) -> Result<(Option<Value>, bool), ApiError> {
    let (inner, place) = match format.get("json_schema") {
        Some(Value::Object(inner)) => (inner, format!("{at}.json_schema")),
        None | Some(Value::Null) => (format, at.to_owned()),
        Some(value) => return Err(wrong(&format!("{at}.json_schema"), "an object", value)),
    };
    let given = |name: &str| inner.get(name).filter(|value| !value.is_null());
    let at = |name: &str| format!("{place}.{name}");
    if let Some(name) = given("name").filter(|name| !name.is_string()) {
        return Err(wrong(&at("name"), "a string", name));
    }
    let strict = match given("strict") {
        None => false,
        Some(strict) => strict.as_bool().ok_or_else(|| wrong(&at("strict"), "true or false", strict))?,
    };
    match given("schema") {
        None => Ok((None, strict)),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok((Some(schema.clone()), strict)),
        Some(schema) => Err(wrong(&at("schema"), "an object", schema)),
    }
}

/// The ways to write down a grammar.
#[derive(Clone, Copy)]
pub(crate) enum Notation {
    JsonSchema,
    Regex,
    Choice,
    Lark,
}

impl Kind for Notation {
    type Value = GrammarSpec;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<GrammarSpec, ApiError> {
        let string = |value: &Value| value.as_str().map(str::to_owned);
        match self {
            Self::JsonSchema => {
                let parsed = value.as_str().map(|text| serde_json::from_str(text).map_err(|_| &value));
                let schema = parsed.unwrap_or_else(|| Ok(value.clone()));
                let schema = schema.map_err(|value| wrong(at, "a JSON schema", value))?;
                Ok(GrammarSpec::Schema { schema, strict: true })
            }
            Self::Regex => {
                string(&value).map(GrammarSpec::Regex).ok_or_else(|| wrong(at, "a regular expression", &value))
            }
            Self::Choice => {
                let strings = value.as_array().and_then(|items| items.iter().map(string).collect());
                strings.map(GrammarSpec::Choice).ok_or_else(|| wrong(at, "a list of strings", &value))
            }
            Self::Lark => {
                string(&value).map(GrammarSpec::Lark).ok_or_else(|| wrong(at, "a grammar in Lark's notation", &value))
            }
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        match self {
            // As itself, or as text.
            Self::JsonSchema => json!({"type": ["object", "boolean", "string"]}),
            Self::Regex | Self::Lark => json!({"type": "string"}),
            Self::Choice => json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
        }
    }
}

impl Sampling {
    /// Compiles what an answer that is text alone has to look like.
    pub(crate) async fn constrain(&mut self, state: &ServerState) -> Result<(), ApiError> {
        if let Some(structure) = self.structure.take() {
            let constraint = Structured { grammar: state.grammar(structure).await?, gate: Gate::Open };
            self.params.constraint = Some(SharedConstraint(Arc::new(constraint)));
        }
        Ok(())
    }
}

impl ServerState {
    /// Compiles a structure, on a thread of its own: a short grammar may be hard.
    pub(crate) async fn grammar(&self, structure: Structure) -> Result<Grammar, ApiError> {
        let Structure { spec, field } = structure;
        let Some(tokenizer) = self.text.tokenizer.clone() else {
            return Err(ApiError::unsupported(field, "this model has no tokenizer, so there is no text to constrain"));
        };
        let info = self.ready()?;
        let (vocab, end_ids) = (info.vocab, info.eos_token_ids.clone());
        let cell = self.grammars.clone();
        let compile = move || {
            let grammars = cell.get_or_init(|| Grammars::new(tokenizer, vocab, &end_ids, CACHE_BYTES));
            grammars.as_ref().map_err(GrammarError::clone)?.compile(&spec)
        };
        self.offload(usize::MAX, compile).await?.map_err(|error| ApiError::grammar(field, &error))
    }
}

/// The constraint of one request: a grammar that holds once the reasoning has ended.
#[derive(Debug)]
struct Structured {
    grammar: Grammar,
    gate: Gate,
}

#[derive(Debug)]
struct State {
    grammar: GrammarState,
    gate: Gate,
}

/// For answers that begin at `start`. A grammar of whole answers that describes the reasoning too holds from the
/// start.
pub(crate) fn constraint(
    grammar: Grammar,
    dialect: Dialect,
    tokenizer: &Arc<Tokenizer>,
    start: Start,
    whole_answer: bool,
) -> SharedConstraint {
    let gate = if whole_answer && dialect.reasoning == ReasoningParser::Harmony {
        Gate::Open
    } else {
        Gate::new(dialect.reasoning, tokenizer, start)
    };
    SharedConstraint(Arc::new(Structured { grammar, gate }))
}

impl Constraint for Structured {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(State { grammar: self.grammar.start(), gate: self.gate.clone() })
    }
}

impl ConstraintState for State {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(Self { grammar: self.grammar.clone(), gate: self.gate.clone() })
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        let (holds, also) = self.gate.state();
        if !holds {
            return Ok(false);
        }
        self.grammar.fill_mask(mask).map_err(|_| Unsatisfiable)?;
        if let Some(word) = also.and_then(|id| mask.get_mut(id as usize / 32)) {
            *word |= 1 << (also.unwrap_or(0) % 32);
        }
        Ok(true)
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        if !self.gate.accept(token_id) {
            return Ok(false);
        }
        self.grammar.accept(token_id).map_err(|_| Unsatisfiable)
    }

    fn forced(&mut self) -> Vec<u32> {
        if matches!(self.gate, Gate::Open) { self.grammar.forced() } else { Vec::new() }
    }
}
