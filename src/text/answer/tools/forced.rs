//! Grammars that force an answer to be a tool call, in the format that the model was trained on.

use super::form::{Form, Marks};
use super::formats::json;
use super::{ToolChoice, ToolParser, notation, types};
use crate::text::{GrammarError, GrammarSpec, Tokenizer, schema_as_json, schema_in_lark};
use serde_json::Value;

/// The grammar of a call that a request forces; any function may be called if it names none. Also returns the parser
/// for it: plain JSON is used if the model's own notation cannot enforce the functions' schemas.
pub(crate) fn forced_calls(
    parser: ToolParser,
    tools: &ToolChoice,
    tokenizer: &Tokenizer,
) -> Result<(GrammarSpec, ToolParser), GrammarError> {
    let functions = tools.forced.as_ref().unwrap_or(&tools.callable.functions);
    let own = form(parser, tokenizer);
    let arguments = own.as_ref().map(|form| form.arguments(functions));
    let (form, parser, arguments) = match (own, arguments.transpose()?.flatten()) {
        (Some(own), Some(arguments)) => (own, parser, arguments),
        _ => {
            let form = json::form(&Marks(tokenizer));
            (form, ToolParser::Json, notation::in_json(functions)?)
        }
    };
    let grammar = format!(
        "start: calls\n{}",
        form.calls(functions, &arguments, tools.single)
    );
    Ok((GrammarSpec::Lark(grammar), parser))
}

/// How a parser's format writes calls, if a grammar can say that.
fn form(parser: ToolParser, tokenizer: &Tokenizer) -> Option<Form> {
    parser.format().form.map(|form| form(&Marks(tokenizer)))
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
    let Some(form) = form(parser, tokenizer) else {
        return Ok(None);
    };
    let functions = &tools.callable.functions;
    let (answer, calls) = match &form.unmarked {
        Some(_) if resembles_call(schema) => return Ok(None),
        Some(unmarked) => (
            schema_as_json(schema, *strict)?,
            unmarked.calls(functions, tools.single)?,
        ),
        None => {
            let Some(arguments) = form.arguments(functions)? else {
                return Ok(None);
            };
            (
                schema_in_lark(schema, *strict)?,
                form.calls(functions, &arguments, tools.single),
            )
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

#[cfg(test)]
mod tests;
