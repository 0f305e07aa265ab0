//! The tools of a request, and whether the model may, must or must not call them.

use crate::server::parameters::kind::{Bounds, Kind, wrong};
use crate::server::wire::error::{ApiError, shorten};
use crate::text::answer::{self, ToolSet};
use crate::text::integers;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;

pub(crate) const TOOLS_MAX: usize = 128;
/// As in Anthropic's API; OpenAI's allows 64. Clients build long names from those of a server and its tool.
const TOOL_NAME_BYTES_MAX: usize = 128;
pub(crate) const TOOL_NAME_PATTERN: &str = "^[A-Za-z0-9_-]{1,128}$";

/// The tools of a request.
#[derive(Default)]
pub(crate) struct ToolList {
    /// In the form of a chat request.
    pub(crate) functions: Vec<Value>,
    /// Names of tools that have no form here.
    pub(crate) left_out: Vec<String>,
}

/// A list of tools.
pub(crate) fn list(at: &str, value: Value) -> Result<Vec<Value>, ApiError> {
    match value {
        Value::Array(tools) if tools.len() <= TOOLS_MAX => Ok(tools),
        value => Err(wrong(
            at,
            &format!("a list of at most {TOOLS_MAX} tools"),
            &value,
        )),
    }
}

/// Combines a request's `tools` and `tool_choice`; `single`: at most one call.
pub(crate) fn resolve(
    tools: Option<Vec<Value>>,
    mut choice: Option<Value>,
    single: bool,
) -> Result<answer::ToolChoice, ApiError> {
    let mut tools = tools.filter(|tools| !tools.is_empty());
    if let Some(allowed) = choice
        .as_ref()
        .filter(|choice| choice["type"] == "allowed_tools")
    {
        let (mode, names) = allowed_tools(allowed)?;
        let known: HashSet<_> = tools.iter().flatten().map(name_of).collect();
        if !names.is_subset(&known) {
            return Err(ApiError::invalid(
                "tool_choice",
                "`tool_choice` allows a tool that is not in `tools`",
            ));
        }
        // Tools that may not be called are left out of the prompt, because models call the tools they see.
        tools = tools.map(|tools| {
            tools
                .into_iter()
                .filter(|tool| names.contains(&name_of(tool)))
                .collect()
        });
        choice = Some(mode);
    }
    tools.iter_mut().flatten().for_each(drop_nulls);
    let callable = ToolSet::new(
        tools
            .iter()
            .flatten()
            .map(|tool| tool["function"].clone())
            .collect(),
    );
    let functions = &callable.functions;
    let none = answer::ToolChoice {
        single,
        ..answer::ToolChoice::default()
    };
    let forced = match choice.as_ref().map(|choice| (choice.as_str(), choice)) {
        None | Some((Some("auto"), _)) if functions.is_empty() => return Ok(none),
        Some((Some("none"), _)) => return Ok(none),
        Some((_, choice)) if choice["type"] == "custom" => {
            return Err(ApiError::unsupported(
                "tool_choice",
                "tools of type custom are not supported",
            ));
        }
        Some(_) if functions.is_empty() => {
            return Err(ApiError::invalid(
                "tool_choice",
                "`tool_choice` needs `tools`",
            ));
        }
        None | Some((Some("auto"), _)) => None,
        Some((Some("required"), _)) => Some(functions.clone()),
        Some((_, choice)) => Some(vec![named(choice, functions)?]),
    };
    Ok(answer::ToolChoice {
        shown: tools.map(Value::Array),
        callable: Arc::new(callable),
        forced,
        single,
    })
}

fn name_of(tool: &Value) -> Option<String> {
    tool["function"]["name"].as_str().map(str::to_owned)
}

/// Leaves out what a function does not say, because templates would show it.
fn drop_nulls(tool: &mut Value) {
    if let Value::Object(function) = &mut tool["function"] {
        function.retain(|_, value| !value.is_null());
    }
}

/// The tools with all that a template may take for granted: each function has a description and parameters, and the
/// defaults of choices are texts.
pub(crate) fn completed(tools: &Value) -> Value {
    let mut tools = tools.clone();
    for tool in tools.as_array_mut().into_iter().flatten() {
        let function = &mut tool["function"];
        if !function["description"].is_string() {
            function["description"] = "".into();
        }
        let parameters = &mut function["parameters"];
        if !parameters.is_object() {
            *parameters = json!({"type": "object"});
        }
        if !parameters["properties"].is_object() {
            parameters["properties"] = json!({});
        }
        for property in parameters["properties"]
            .as_object_mut()
            .into_iter()
            .flat_map(|all| all.values_mut())
        {
            let is_choice = property.get("enum").is_some() || property.get("oneOf").is_some();
            if let Some(default) = property
                .get_mut("default")
                .filter(|default| is_choice && !default.is_string())
            {
                *default = integers::to_json(default).into();
            }
        }
    }
    tools
}

/// Mode and names of a `tool_choice` of type `allowed_tools`; `None` is a tool without a name.
fn allowed_tools(choice: &Value) -> Result<(Value, HashSet<Option<String>>), ApiError> {
    // Some clients leave out the inner object.
    let allowed = if choice["allowed_tools"].is_object() {
        &choice["allowed_tools"]
    } else {
        choice
    };
    let mode = allowed["mode"].clone();
    if mode != "auto" && mode != "required" {
        return Err(wrong(
            "tool_choice.allowed_tools.mode",
            "\"auto\" or \"required\"",
            &mode,
        ));
    }
    let tools = allowed["tools"]
        .as_array()
        .filter(|tools| !tools.is_empty());
    let tools = tools.ok_or_else(|| {
        wrong(
            "tool_choice.allowed_tools.tools",
            "a list of tools",
            &allowed["tools"],
        )
    })?;
    // There may be many, and they are looked up rather than compared with each tool.
    Ok((
        mode,
        tools
            .iter()
            .map(|tool| {
                tool["name"]
                    .as_str()
                    .or(tool["function"]["name"].as_str())
                    .map(str::to_owned)
            })
            .collect(),
    ))
}

/// The function that a `tool_choice` names.
fn named(choice: &Value, functions: &[Value]) -> Result<Value, ApiError> {
    let named = choice["function"]["name"]
        .as_str()
        .or(choice["name"].as_str());
    // vLLM's clients may leave out the type.
    let is_untyped = choice["type"].is_null() && choice["function"].is_object();
    let name = if choice["type"] == "function" || is_untyped {
        named
    } else {
        None
    };
    let rule =
        "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    let name = name.ok_or_else(|| wrong("tool_choice", rule, choice))?;
    let function = functions.iter().find(|function| function["name"] == name);
    function.cloned().ok_or_else(|| {
        ApiError::invalid(
            "tool_choice",
            format!(
                "`tool_choice` names {}, which is not in `tools`",
                shorten(name)
            ),
        )
    })
}

/// A list of tools. Only functions are kept; clients also send types that other servers support.
pub(crate) struct Tools;

impl Kind for Tools {
    type Value = Vec<Value>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<Value>, ApiError> {
        let mut tools = list(at, value)?;
        for (index, tool) in tools.iter().enumerate() {
            match tool["type"].as_str() {
                Some("function") => {
                    check_function(&format!("{at}[{index}].function"), &tool["function"])?;
                }
                Some(kind) => tracing::debug!(kind, "ignored a tool of an unsupported type"),
                None => {
                    return Err(wrong(
                        &format!("{at}[{index}].type"),
                        "a string",
                        &tool["type"],
                    ));
                }
            }
        }
        tools.retain(|tool| tool["type"] == "function");
        Ok(tools)
    }

    fn schema(&self, _: &Bounds) -> Value {
        let name = json!({"type": "string", "pattern": TOOL_NAME_PATTERN});
        let tool = json!({
            "title": "FunctionTool",
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": name,
                        "description": {"type": ["string", "null"]},
                        "parameters": {"type": ["object", "null"], "description": "The arguments, as a JSON schema."},
                        "strict": {"description": "True: calls keep to the schema."},
                    },
                },
            },
        });
        let other = json!({
            "title": "OtherTool",
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"type": "string", "not": {"const": "function"}}},
        });
        json!({"type": "array", "maxItems": TOOLS_MAX, "items": {"anyOf": [tool, other]}})
    }
}

/// "none", "auto", "required", a named function, or a set of allowed tools. [`resolve`] reads it, because it knows the
/// tools.
pub(crate) struct ToolChoice;

impl Kind for ToolChoice {
    type Value = Value;

    fn read(&self, _: &str, value: Value, _: &Bounds) -> Result<Value, ApiError> {
        Ok(value)
    }

    fn schema(&self, _: &Bounds) -> Value {
        let named = json!({
            "type": "object",
            "anyOf": [{"required": ["function"]}, {"required": ["type", "name"]}],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
                "name": {"type": "string"},
            },
        });
        let allowed = json!({
            "type": "object",
            "required": ["type", "allowed_tools"],
            "properties": {
                "type": {"const": "allowed_tools"},
                "allowed_tools": {
                    "type": "object",
                    "required": ["mode", "tools"],
                    "properties": {
                        "mode": {"enum": ["auto", "required"]},
                        "tools": {"type": "array", "minItems": 1, "items": {"type": "object"}},
                    },
                },
            },
        });
        json!({"title": "ToolChoice", "anyOf": [{"enum": ["none", "auto", "required"]}, named, allowed]})
    }
}

/// Checks a function; `name` is where it is in the request.
pub(crate) fn check_function(name: &str, function: &Value) -> Result<(), ApiError> {
    let at = |field: &str| format!("{name}.{field}");
    if !function["name"].as_str().is_some_and(|name| {
        (1..=TOOL_NAME_BYTES_MAX).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    }) {
        return Err(wrong(
            &at("name"),
            &format!("1 to {TOOL_NAME_BYTES_MAX} of [A-Za-z0-9_-]"),
            &function["name"],
        ));
    }
    if !matches!(function["description"], Value::Null | Value::String(_)) {
        return Err(wrong(
            &at("description"),
            "a string",
            &function["description"],
        ));
    }
    if !matches!(function["parameters"], Value::Null | Value::Object(_)) {
        return Err(wrong(
            &at("parameters"),
            "an object",
            &function["parameters"],
        ));
    }
    let kind = &function["parameters"]["type"];
    if !matches!(kind, Value::Null | Value::String(_) | Value::Array(_)) {
        return Err(wrong(&at("parameters.type"), "a string", kind));
    }
    Ok(())
}
