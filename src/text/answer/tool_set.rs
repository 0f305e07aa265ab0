//! [`ToolSet`]: the functions that a model may call.

use serde_json::{Value, json};

/// The functions that a request lets the model call.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolSet {
    /// As in the request: `{name, description, parameters, strict}`, with parameters.
    pub(crate) functions: Vec<Value>,
}

impl ToolSet {
    /// A function that declares no parameters has none. Some clients write an empty list or map as null.
    pub(crate) fn new(mut functions: Vec<Value>) -> Self {
        for function in &mut functions {
            let parameters = &mut function["parameters"];
            if parameters.is_null() {
                *parameters = json!({"type": "object", "properties": null});
            }
            let Value::Object(parameters) = parameters else {
                continue;
            };
            if let Some(properties @ Value::Null) = parameters.get_mut("properties") {
                *properties = json!({});
            }
            if parameters.get("required") == Some(&Value::Null) {
                parameters.remove("required");
            }
        }
        Self { functions }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&Value> {
        self.functions
            .iter()
            .find(|function| function["name"] == name)
    }

    /// The schema of a function's arguments; null if there is none.
    pub(super) fn parameters(&self, name: &str) -> &Value {
        self.find(name)
            .map_or(&Value::Null, |function| &function["parameters"])
    }
}
