//! Grammars that force an answer to be a tool call, in the format that the model was trained on.

use super::{ToolChoice, ToolParser};
use crate::text::{GrammarError, GrammarSpec, Tokenizer, schema_in_lark};
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
}

/// The grammar of a call that a request forces; any function may be called if it names none. Also returns the parser
/// for it: plain JSON is used if the model's own format is not JSON.
pub(crate) fn forced_calls(
    parser: ToolParser,
    tools: &ToolChoice,
    tokenizer: &Tokenizer,
) -> Result<(GrammarSpec, ToolParser), GrammarError> {
    let functions = tools.forced.as_ref().unwrap_or(&tools.callable.functions);
    let parser = match parser {
        ToolParser::Gemma | ToolParser::Gemma4 | ToolParser::Glm | ToolParser::SeedOss | ToolParser::Lfm2 => {
            ToolParser::Json
        }
        other => other,
    };
    let grammar = format!("start: calls\n{}", calls(&form(parser, tokenizer), functions, tools.single)?);
    Ok((GrammarSpec::Lark(grammar), parser))
}

/// The grammar of an answer that is either a call or JSON with this schema. `None` if the two cannot be distinguished,
/// or if calls are not JSON: then only the schema applies.
pub(crate) fn calls_or_json(
    parser: ToolParser,
    tools: &ToolChoice,
    tokenizer: &Tokenizer,
    spec: &GrammarSpec,
) -> Result<Option<GrammarSpec>, GrammarError> {
    let GrammarSpec::Schema { schema, strict } = spec else { return Ok(None) };
    if tools.shown.is_none() || !matches!(parser, ToolParser::Hermes | ToolParser::Mistral) {
        return Ok(None);
    }
    let answer = schema_in_lark(schema, *strict)?;
    let calls = calls(&form(parser, tokenizer), &tools.callable.functions, tools.single)?;
    Ok(Some(GrammarSpec::Lark(format!("start: calls | answer\nanswer: {answer}\n{calls}"))))
}

fn calls(form: &Form, functions: &[Value], single: bool) -> Result<String, GrammarError> {
    let [first, between, last] = &form.around;
    let [open, middle, close] = &form.call;
    let more = if single || !form.several { String::new() } else { format!(" ({between} call)*") };
    let mut grammar = format!("calls: {first} call{more} {last}\ncall: ");
    for index in 0..functions.len() {
        let or = if index == 0 { "" } else { " | " };
        write!(grammar, "{or}call{index}").expect("a string takes text");
    }
    for (index, function) in functions.iter().enumerate() {
        let name = function["name"].as_str().unwrap_or_default();
        let strict = function["strict"] == true;
        let mut schema = function["parameters"].clone();
        match &mut schema {
            Value::Object(map) => drop(map.entry("type").or_insert("object".into())),
            other => *other = json!({"type": "object"}),
        }
        let arguments = schema_in_lark(&schema, strict)?;
        let rule = format!("\ncall{index}: {open} {} {middle} arguments{index} {close}", quoted(name));
        grammar.push_str(&rule);
        write!(grammar, "\narguments{index}: {arguments}").expect("a string takes text");
    }
    Ok(grammar)
}

/// A string literal in Lark notation.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn form(parser: ToolParser, tokenizer: &Tokenizer) -> Form {
    // Special tokens are not text, so a grammar refers to them by id.
    let mark = |text: &str| match tokenizer.id_of(text).filter(|&id| tokenizer.is_special(id)) {
        Some(id) => format!("<[{id}]>"),
        None => quoted(text),
    };
    let none = String::new;
    let json = |arguments: &str| [quoted("{\"name\": \""), quoted(&format!("\", \"{arguments}\": ")), quoted("}")];
    match parser {
        ToolParser::Hermes => {
            let [open, middle, close] = json("arguments");
            let open = format!("{} {} {open}", mark("<tool_call>"), quoted("\n"));
            let close = format!("{close} {} {}", quoted("\n"), mark("</tool_call>"));
            Form { around: [none(), quoted("\n"), none()], call: [open, middle, close], several: true }
        }
        ToolParser::Llama3Json => {
            Form { around: [none(), quoted("; "), none()], call: json("parameters"), several: true }
        }
        ToolParser::Mistral if tokenizer.id_of("[ARGS]").is_some() => Form {
            around: [none(), none(), none()],
            call: [mark("[TOOL_CALLS]"), mark("[ARGS]"), none()],
            several: true,
        },
        ToolParser::Mistral => {
            let first = format!("{} {}", mark("[TOOL_CALLS]"), quoted("["));
            Form { around: [first, quoted(", "), quoted("]")], call: json("arguments"), several: true }
        }
        ToolParser::Harmony => {
            let reasoning = format!(
                "({} \"analysis\" {} /(.|\\n)*/ {} {} \"assistant\")?",
                mark("<|channel|>"),
                mark("<|message|>"),
                mark("<|end|>"),
                mark("<|start|>")
            );
            let open = format!("{} {}", mark("<|channel|>"), quoted("commentary to=functions."));
            let middle =
                format!("{} {} {} {}", quoted(" "), mark("<|constrain|>"), quoted("json"), mark("<|message|>"));
            Form { around: [reasoning, none(), none()], call: [open, middle, mark("<|call|>")], several: false }
        }
        ToolParser::Json
        | ToolParser::Gemma
        | ToolParser::Gemma4
        | ToolParser::Glm
        | ToolParser::SeedOss
        | ToolParser::Lfm2 => {
            Form { around: [quoted("["), quoted(", "), quoted("]")], call: json("arguments"), several: true }
        }
    }
}
