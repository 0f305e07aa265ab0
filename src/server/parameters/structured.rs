//! What an answer has to look like: the fields that say so, and the bridge between grammars, which know text, and the
//! engine, which knows tokens.

use crate::engine::request::{Constraint, ConstraintState, SharedConstraint, Unsatisfiable};
use crate::server::parameters::fields::{Fields, wrong};
use crate::server::parameters::sampling::Sampling;
use crate::server::state::ServerState;
use crate::server::wire::error::ApiError;
use crate::text::answer::Dialect;
use crate::text::answer::reasoning::{Gate, ReasoningParser, Start};
use crate::text::{Grammar, GrammarError, GrammarSpec, GrammarState, Grammars, Tokenizer};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Bytes of compiled grammars that a server keeps.
const CACHE_BYTES: usize = 64 << 20;

/// What an answer has to look like, and the field that says so.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) spec: GrammarSpec,
    pub(crate) field: String,
}

/// Reads OpenAI's `response_format`, vLLM's `structured_outputs` and its older names, llama.cpp's `json_schema`; at
/// most one may ask for anything.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    let mut found: Vec<Structure> = Vec::new();
    found.extend(response_format(fields)?);
    if let Some(map) = fields.object("structured_outputs")? {
        found.extend(structured_outputs(&map)?);
    }
    for kind in ["json", "regex", "choice", "grammar"] {
        let field = format!("guided_{kind}");
        if let Some(value) = fields.take(&field) {
            found.push(structure(kind, field, &value)?);
        }
    }
    if let Some(schema) = fields.take("json_schema") {
        found.push(structure("json", "json_schema".into(), &schema)?);
    }
    match found.get(1) {
        Some(second) => {
            let message =
                format!("`{}` and `{}` both say what the answer must look like", found[0].field, second.field);
            Err(ApiError::invalid(&second.field, message))
        }
        None => Ok(found.pop()),
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    let (schema, strict) = json_schema(&format)?;
    let spec = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => match schema {
            Some(schema) => GrammarSpec::Schema { schema, strict: false },
            None => GrammarSpec::json_object(),
        },
        Some("json_schema") => {
            let schema = schema.ok_or_else(|| ApiError::missing("response_format.json_schema.schema"))?;
            GrammarSpec::Schema { schema, strict }
        }
        Some(kind @ ("grammar" | "structural_tag" | "regex")) => {
            let message = format!("`response_format` of type {kind} is not supported; `structured_outputs` may say it");
            return Err(ApiError::unsupported("response_format", message));
        }
        _ => {
            let rule = "`response_format.type` must be \"text\", \"json_object\" or \"json_schema\"";
            return Err(ApiError::invalid("response_format", rule));
        }
    };
    Ok(Some(Structure { spec, field: "response_format".into() }))
}

/// The schema of a `response_format` and whether it is strict, in `json_schema` or, as with llama.cpp, beside the type.
fn json_schema(format: &Map<String, Value>) -> Result<(Option<Value>, bool), ApiError> {
    let (inner, place) = match format.get("json_schema") {
        Some(Value::Object(inner)) => (inner, "response_format.json_schema"),
        None | Some(Value::Null) => (format, "response_format"),
        Some(value) => return Err(wrong("response_format.json_schema", "an object", value)),
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

fn structured_outputs(map: &Map<String, Value>) -> Result<Vec<Structure>, ApiError> {
    let mut found = Vec::new();
    for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let field = format!("structured_outputs.{key}");
        match key.as_str() {
            "json" | "regex" | "choice" | "grammar" => found.push(structure(key, field, value)?),
            "json_object" if *value == true => found.push(Structure { spec: GrammarSpec::json_object(), field }),
            // About white space and fallbacks; here there is one way.
            "json_object" | "disable_any_whitespace" | "disable_additional_properties" | "disable_fallback" => {}
            _ => return Err(ApiError::unsupported(&field, format!("`{field}` is not supported"))),
        }
    }
    Ok(found)
}

fn structure(kind: &str, field: String, value: &Value) -> Result<Structure, ApiError> {
    let text = |rule: &str| value.as_str().map(str::to_owned).ok_or_else(|| wrong(&field, rule, value));
    let spec = match kind {
        "json" => {
            let schema = match value {
                Value::String(text) => serde_json::from_str(text).map_err(|_| wrong(&field, "a JSON schema", value))?,
                other => other.clone(),
            };
            GrammarSpec::Schema { schema, strict: true }
        }
        "regex" => GrammarSpec::Regex(text("a regular expression")?),
        "choice" => {
            let items = value.as_array().ok_or_else(|| wrong(&field, "a list of strings", value))?;
            let strings = items.iter().map(|item| item.as_str().map(str::to_owned));
            GrammarSpec::Choice(
                strings.collect::<Option<_>>().ok_or_else(|| wrong(&field, "a list of strings", value))?,
            )
        }
        _ => GrammarSpec::Lark(text("a grammar in Lark's notation")?),
    };
    Ok(Structure { spec, field })
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

/// The constraint of one request: a grammar that holds once the thoughts have ended.
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

/// For answers that begin at `start`. A grammar of whole answers that describes thoughts itself holds from the start.
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
