//! Grammars that force an answer to be a tool call, in the format that the model was trained on.

use super::notation::{self, Arguments, Mark, Notation, quoted};
use super::{ToolChoice, ToolParser, gemma, marked, python, types, xml};
use crate::text::{GrammarError, GrammarSpec, Tokenizer, schema_as_json, schema_in_lark};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The text around calls and around the parts of a call, in Lark notation.
struct Form {
    /// Text before the first call, between two calls, and after the last.
    around: [String; 3],
    /// Text before the name, between name and arguments, and after the arguments.
    call: [String; 3],
    /// Whether one answer can contain several calls.
    several: bool,
    /// How arguments are written, if not in JSON.
    notation: Option<Notation>,
}

/// The grammar of a call that a request forces; any function may be called if it names none. Also returns the parser
/// for it: plain JSON is used if the model's own notation cannot enforce the functions' schemas.
pub(crate) fn forced_calls(
    parser: ToolParser,
    tools: &ToolChoice,
    tokenizer: &Tokenizer,
) -> Result<(GrammarSpec, ToolParser), GrammarError> {
    let functions = tools.forced.as_ref().unwrap_or(&tools.callable.functions);
    let form = |parser| form(parser, tokenizer);
    let own = form(parser);
    let (form, parser, arguments) = match own.arguments(functions)? {
        Some(arguments) => (own, parser, arguments),
        None => (
            form(ToolParser::Json),
            ToolParser::Json,
            notation::in_json(functions)?,
        ),
    };
    let grammar = format!(
        "start: calls\n{}",
        form.calls(functions, &arguments, tools.single)
    );
    Ok((GrammarSpec::Lark(grammar), parser))
}

/// The grammar of an answer that is either a call or JSON with this schema. `None` if the two cannot be distinguished,
/// or if the model's notation cannot enforce the functions' schemas: then only the schema applies.
pub(crate) fn calls_or_json(
    parser: ToolParser,
    tools: &ToolChoice,
    tokenizer: &Tokenizer,
    spec: &GrammarSpec,
) -> Result<Option<GrammarSpec>, GrammarError> {
    let GrammarSpec::Schema { schema, strict } = spec else {
        return Ok(None);
    };
    if tools.shown.is_none() || parser == ToolParser::Harmony {
        return Ok(None);
    }
    let answer = match parser {
        ToolParser::Llama3Json | ToolParser::Json => schema_as_json(schema, *strict)?,
        _ => schema_in_lark(schema, *strict)?,
    };
    let functions = &tools.callable.functions;
    let calls = match parser {
        ToolParser::Llama3Json | ToolParser::Json if resembles_call(schema) => return Ok(None),
        ToolParser::Llama3Json => objects(
            functions,
            "parameters",
            (!tools.single).then_some("call (\"; \" call)*"),
        )?,
        ToolParser::Json => objects(
            functions,
            "arguments",
            (!tools.single).then_some("call | \"[\" call (\", \" call)* \"]\""),
        )?,
        _ => {
            let form = form(parser, tokenizer);
            let Some(arguments) = form.arguments(functions)? else {
                return Ok(None);
            };
            form.calls(functions, &arguments, tools.single)
        }
    };
    Ok(Some(GrammarSpec::Lark(format!(
        "start: calls | answer\nanswer: {answer}\n{calls}"
    ))))
}

/// Whether an answer of this schema may be read as a call.
fn resembles_call(schema: &Value) -> bool {
    let has = |key: &str| {
        types::properties(schema).is_some_and(|properties| properties.contains_key(key))
    };
    has("name") && ["arguments", "parameters"].into_iter().any(has)
}

/// The rules of calls that are JSON without a marker. Each is described by a schema, because a grammar can tell two
/// objects apart that begin alike only if both are.
fn objects(
    functions: &[Value],
    arguments: &str,
    several: Option<&str>,
) -> Result<String, GrammarError> {
    let names: Vec<_> = (0..functions.len())
        .map(|index| format!("call{index}"))
        .collect();
    let mut grammar = format!(
        "calls: {}\ncall: {}",
        several.unwrap_or("call"),
        names.join(" | ")
    );
    for (function, name) in functions.iter().zip(names) {
        let mut parameters = notation::object_schema(function);
        move_references(&mut parameters, &format!("#/properties/{arguments}"));
        let properties = json!({"name": {"const": function["name"]}, arguments: parameters});
        let schema =
            json!({"type": "object", "properties": properties, "required": ["name", arguments]});
        let schema = schema_as_json(&schema, function["strict"] == true)?;
        write!(grammar, "\n{name}: {schema}").expect("a string takes text");
    }
    Ok(grammar)
}

/// Lets the references within a schema point to its new place.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(rest) = reference.strip_prefix('#')
            {
                *reference = format!("{place}{rest}");
            }
            map.values_mut()
                .for_each(|value| move_references(value, place));
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| move_references(item, place)),
        _ => {}
    }
}

impl Form {
    /// One or several calls with arguments in JSON.
    fn in_json(around: [String; 3], call: [String; 3]) -> Self {
        Self {
            around,
            call,
            several: true,
            notation: None,
        }
    }

    /// The arguments of these functions, if their notation can enforce their schemas.
    fn arguments(&self, functions: &[Value]) -> Result<Option<Arguments>, GrammarError> {
        match &self.notation {
            Some(notation) => notation::arguments(notation, functions),
            None => notation::in_json(functions).map(Some),
        }
    }

    /// The rules of calls to these functions.
    fn calls(&self, functions: &[Value], arguments: &Arguments, single: bool) -> String {
        let [first, between, last] = &self.around;
        let [open, middle, close] = &self.call;
        let more = if single || !self.several {
            String::new()
        } else {
            format!(" ({between} call)*")
        };
        let names: Vec<_> = (0..functions.len())
            .map(|index| format!("call{index}"))
            .collect();
        let mut grammar = format!(
            "calls: {first} call{more} {last}\ncall: {}",
            names.join(" | ")
        );
        for ((function, name), arguments) in functions.iter().zip(names).zip(&arguments.each) {
            let own = quoted(function["name"].as_str().unwrap_or_default());
            write!(
                grammar,
                "\n{name}: {open} {own} {middle} {arguments} {close}"
            )
            .expect("a string takes text");
        }
        grammar + &arguments.rules
    }
}

/// Markers as a grammar writes them: special tokens are not text, so it refers to them by id.
struct Marks<'a>(&'a Tokenizer);

impl Marks<'_> {
    fn token(&self, text: &str) -> Option<u32> {
        self.0.id_of(text).filter(|&id| self.0.is_special(id))
    }

    fn lark(&self, text: &str) -> String {
        self.token(text)
            .map_or_else(|| quoted(text), |id| format!("<[{id}]>"))
    }

    /// A marker that ends a text.
    fn end(&self, text: &'static str) -> Mark {
        Mark {
            text,
            lark: self.lark(text),
            is_token: self.token(text).is_some(),
        }
    }
}

/// How calls are written in the format that a parser reads.
fn form(parser: ToolParser, tokenizer: &Tokenizer) -> Form {
    let marks = Marks(tokenizer);
    match parser {
        ToolParser::Hermes => hermes(&marks),
        ToolParser::Llama3Json => {
            let around = [String::new(), quoted("; "), String::new()];
            Form::in_json(around, json_call("parameters"))
        }
        ToolParser::Json => {
            let around = [quoted("["), quoted(", "), quoted("]")];
            Form::in_json(around, json_call("arguments"))
        }
        ToolParser::Mistral if tokenizer.id_of("[ARGS]").is_some() => mistral(&marks),
        ToolParser::Mistral => mistral_list(&marks),
        ToolParser::Harmony => harmony(&marks),
        ToolParser::Gemma => gemma(&marks, gemma::MARKERS),
        ToolParser::Gemma4 => gemma(&marks, gemma::MARKERS_4),
        ToolParser::Glm => glm(&marks),
        ToolParser::SeedOss => seed_oss(&marks),
        ToolParser::Lfm2 => lfm2(&marks),
    }
}

/// A call that is a JSON object, whose arguments have this key.
fn json_call(arguments: &str) -> [String; 3] {
    [
        quoted("{\"name\": \""),
        quoted(&format!("\", \"{arguments}\": ")),
        quoted("}"),
    ]
}

fn hermes(marks: &Marks<'_>) -> Form {
    let [open, middle, close] = json_call("arguments");
    let open = format!("{} {} {open}", marks.lark("<tool_call>"), quoted("\n"));
    let close = format!("{close} {} {}", quoted("\n"), marks.lark("</tool_call>"));
    Form::in_json(
        [String::new(), quoted("\n"), String::new()],
        [open, middle, close],
    )
}

/// A name and its arguments after a marker each.
fn mistral(marks: &Marks<'_>) -> Form {
    let call = [
        marks.lark("[TOOL_CALLS]"),
        marks.lark("[ARGS]"),
        String::new(),
    ];
    Form::in_json(Default::default(), call)
}

/// One list of JSON objects after a marker.
fn mistral_list(marks: &Marks<'_>) -> Form {
    let first = format!("{} {}", marks.lark("[TOOL_CALLS]"), quoted("["));
    let around = [first, quoted(", "), quoted("]")];
    Form::in_json(around, json_call("arguments"))
}

fn gemma(marks: &Marks<'_>, [open, close, quote]: [&'static str; 3]) -> Form {
    let call = [
        format!("{} {}", marks.lark(open), quoted("call:")),
        quoted("{"),
        format!("{} {}", quoted("}"), marks.lark(close)),
    ];
    Form {
        around: Default::default(),
        call,
        several: true,
        notation: Some(Notation::Gemma(marks.end(quote))),
    }
}

fn lfm2(marks: &Marks<'_>) -> Form {
    let [open, close] = python::MARKERS.map(|marker| marks.lark(marker));
    let around = [
        format!("{open} {}", quoted("[")),
        quoted(", "),
        format!("{} {close}", quoted("]")),
    ];
    Form {
        around,
        call: [String::new(), quoted("("), quoted(")")],
        several: true,
        notation: Some(Notation::Python),
    }
}

fn harmony(marks: &Marks<'_>) -> Form {
    let reasoning = format!(
        "({} \"analysis\" {} /(.|\\n)*/ {} {} \"assistant\")?",
        marks.lark("<|channel|>"),
        marks.lark("<|message|>"),
        marks.lark("<|end|>"),
        marks.lark("<|start|>")
    );
    let open = format!(
        "{} {}",
        marks.lark("<|channel|>"),
        quoted("commentary to=functions.")
    );
    let middle = format!(
        "{} {} {} {}",
        quoted(" "),
        marks.lark("<|constrain|>"),
        quoted("json"),
        marks.lark("<|message|>")
    );
    let (around, call) = (
        [reasoning, String::new(), String::new()],
        [open, middle, marks.lark("<|call|>")],
    );
    Form {
        around,
        call,
        several: false,
        notation: None,
    }
}

fn glm(marks: &Marks<'_>) -> Form {
    let [open, close, key_open, key_close, value_open, value_close] = xml::GLM_MARKERS;
    // GLM 4.5 writes line breaks, later ones do not.
    let space = format!("{}?", quoted("\n"));
    let notation = Notation::Tags {
        key: [
            marks.lark(key_open),
            format!("{} {space}", marks.lark(key_close)),
        ],
        open: marks.lark(value_open),
        close: marks.end(value_close),
        after: space.clone(),
    };
    let (around, call) = (
        [String::new(), space.clone(), String::new()],
        [marks.lark(open), space, marks.lark(close)],
    );
    Form {
        around,
        call,
        several: true,
        notation: Some(notation),
    }
}

fn seed_oss(marks: &Marks<'_>) -> Form {
    let [open, close] = marked::SEED_TOOL_CALL.map(|marker| marks.lark(marker));
    let notation = Notation::Tags {
        key: [quoted("<parameter="), quoted(">")],
        open: String::new(),
        close: marks.end("</parameter>"),
        after: quoted("\n"),
    };
    let open = format!("{open} {}", quoted("\n<function="));
    let call = [
        open,
        quoted(">\n"),
        format!("{} {close}", quoted("</function>\n")),
    ];
    Form {
        around: [String::new(), quoted("\n"), String::new()],
        call,
        several: true,
        notation: Some(notation),
    }
}

#[cfg(test)]
mod tests;
