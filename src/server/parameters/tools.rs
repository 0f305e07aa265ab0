//! What a request says about tools: which there are, and whether they may, must or must not be called.

use crate::server::parameters::fields::{Fields, wrong};
use crate::server::wire::error::{ApiError, shorten};
use crate::text::answer::tools::{Known, ToolUse};
use serde_json::Value;
use std::sync::Arc;

const TOOLS_MAX: usize = 128;
const TOOL_NAME_BYTES_MAX: usize = 64;

pub(crate) fn read(fields: &mut Fields) -> Result<ToolUse, ApiError> {
    let mut tools = tools(fields)?;
    let single = fields.boolean("parallel_tool_calls")? == Some(false);
    let mut choice = fields.take("tool_choice");
    if let Some(allowed) = choice.as_ref().filter(|choice| choice["type"] == "allowed_tools") {
        let (mode, names) = allowed_tools(allowed)?;
        let is = |tool: &Value, name: &Value| tool["function"]["name"] == *name;
        if !names.iter().all(|name| tools.iter().flatten().any(|tool| is(tool, name))) {
            return Err(ApiError::invalid("tool_choice", "`tool_choice` allows a tool that is none of `tools`"));
        }
        // What may not be called is not shown either: a model calls what it sees.
        tools = tools.map(|tools| tools.into_iter().filter(|tool| names.iter().any(|name| is(tool, name))).collect());
        choice = Some(mode);
    }
    let functions: Vec<Value> = tools.iter().flatten().map(|tool| tool["function"].clone()).collect();
    let none = ToolUse { single, ..ToolUse::default() };
    let forced = match choice.as_ref().map(|choice| (choice.as_str(), choice)) {
        None | Some((Some("auto"), _)) if functions.is_empty() => return Ok(none),
        Some((Some("none"), _)) => return Ok(none),
        Some((_, choice)) if choice["type"] == "custom" => {
            return Err(ApiError::unsupported("tool_choice", "tools of type custom are not supported"));
        }
        Some(_) if functions.is_empty() => {
            return Err(ApiError::invalid("tool_choice", "`tool_choice` needs `tools`"));
        }
        None | Some((Some("auto"), _)) => None,
        Some((Some("required"), _)) => Some(functions.clone()),
        Some((_, choice)) => Some(vec![named(choice, &functions)?]),
    };
    Ok(ToolUse { shown: tools.map(Value::Array), known: Arc::new(Known { functions }), forced, single })
}

/// Mode and names of a `tool_choice` that leaves some of the tools.
fn allowed_tools(choice: &Value) -> Result<(Value, Vec<Value>), ApiError> {
    // Some clients leave out the inner object.
    let allowed = if choice["allowed_tools"].is_object() { &choice["allowed_tools"] } else { choice };
    let mode = allowed["mode"].clone();
    if mode != "auto" && mode != "required" {
        return Err(wrong("tool_choice.allowed_tools.mode", "\"auto\" or \"required\"", &mode));
    }
    let tools = allowed["tools"].as_array().filter(|tools| !tools.is_empty());
    let tools = tools.ok_or_else(|| wrong("tool_choice.allowed_tools.tools", "a list of tools", &allowed["tools"]))?;
    let name =
        |tool: &Value| if tool["name"].is_string() { tool["name"].clone() } else { tool["function"]["name"].clone() };
    Ok((mode, tools.iter().map(name).collect()))
}

/// The function that a `tool_choice` names.
fn named(choice: &Value, functions: &[Value]) -> Result<Value, ApiError> {
    let name = choice["function"]["name"].as_str().or(choice["name"].as_str());
    let name = name.filter(|_| choice["type"] == "function");
    let rule = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    let name = name.ok_or_else(|| wrong("tool_choice", rule, choice))?;
    let function = functions.iter().find(|function| function["name"] == name);
    function.cloned().ok_or_else(|| {
        ApiError::invalid("tool_choice", format!("`tool_choice` names {}, which is none of `tools`", shorten(name)))
    })
}

/// The tools that are functions. Clients send other kinds too, for servers that have such; they are left out.
fn tools(fields: &mut Fields) -> Result<Option<Vec<Value>>, ApiError> {
    let mut tools = match fields.take("tools") {
        None => return Ok(None),
        Some(Value::Array(tools)) if tools.len() <= TOOLS_MAX => tools,
        Some(value) => return Err(wrong("tools", &format!("a list of at most {TOOLS_MAX} tools"), &value)),
    };
    for (index, tool) in tools.iter().enumerate() {
        match tool["type"].as_str() {
            Some("function") => check_function(index, &tool["function"])?,
            Some(kind) => tracing::debug!(kind, "a tool of a kind that is not known was left out"),
            None => return Err(wrong(&format!("tools[{index}].type"), "a string", &tool["type"])),
        }
    }
    tools.retain(|tool| tool["type"] == "function");
    Ok((!tools.is_empty()).then_some(tools))
}

fn check_function(index: usize, function: &Value) -> Result<(), ApiError> {
    let at = |field: &str| format!("tools[{index}].function.{field}");
    let fits = |name: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=TOOL_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
    };
    if !function["name"].as_str().is_some_and(fits) {
        return Err(wrong(&at("name"), "1 to 64 of [A-Za-z0-9_-]", &function["name"]));
    }
    if !matches!(function["description"], Value::Null | Value::String(_)) {
        return Err(wrong(&at("description"), "a string", &function["description"]));
    }
    if !matches!(function["parameters"], Value::Null | Value::Object(_)) {
        return Err(wrong(&at("parameters"), "an object", &function["parameters"]));
    }
    let kind = &function["parameters"]["type"];
    if !matches!(kind, Value::Null | Value::String(_) | Value::Array(_)) {
        return Err(wrong(&at("parameters.type"), "a string", kind));
    }
    Ok(())
}
