//! `GET /openapi.json`: an OpenAPI 3.1 document of this server.
//!
//! Paths come from the table of routes; requests from the table of fields, with the limits of this server and its
//! model. The answers' schemas are in `replies.json`.

use crate::server::parameters::fields::{Group, object_schema};
use crate::server::parameters::kinds::Bounds;
use crate::server::parameters::table::{IGNORED, UNSUPPORTED};
use crate::server::routes::table::{Answer, Body, Operation, Route, routes};
use crate::server::state::ServerState;
use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

/// The document.
pub(crate) async fn document(State(state): State<ServerState>) -> Json<Value> {
    let bounds = Bounds::new(&state.options.limits, state.engine.info());
    let mut components: Map<String, Value> = serde_json::from_str(include_str!("replies.json")).unwrap_or_default();
    let paths: Map<String, Value> = routes()
        .into_iter()
        .map(|route| (route.path.replace("{*", "{"), methods(&route, &bounds, &mut components)))
        .collect();
    Json(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "folio",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models on any GPU behind OpenAI's API. Unknown fields of a request are ignored.",
        },
        "x-unsupported-fields": UNSUPPORTED,
        "x-ignored-fields": IGNORED,
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": components,
        },
    }))
}

/// The methods of one path.
fn methods(route: &Route, bounds: &Bounds, components: &mut Map<String, Value>) -> Value {
    let names: Vec<_> =
        route.path.split(['{', '}']).skip(1).step_by(2).map(|name| name.trim_start_matches('*')).collect();
    let operation = operation(&route.operation, &names, bounds, components);
    let methods = route.operation.methods.iter().map(|method| ((*method).to_owned(), operation.clone()));
    methods.collect::<Map<_, _>>().into()
}

fn operation(operation: &Operation, names: &[&str], bounds: &Bounds, components: &mut Map<String, Value>) -> Value {
    let content = match operation.answer {
        Answer::Text(kind) => json!({kind: {"schema": {"type": "string"}}}),
        Answer::Object => json!({"application/json": {"schema": {"type": "object"}}}),
        Answer::One(name) => json!({"application/json": {"schema": reference(name)}}),
        Answer::List(name) => json!({"application/json": {"schema": {"type": "array", "items": reference(name)}}}),
        Answer::OneOrStream(name) => {
            json!({"application/json": {"schema": reference(name)}, "text/event-stream": {}})
        }
    };
    let error = json!({"application/json": {"schema": reference("Error")}});
    let mut document = json!({
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error.", "content": error},
        },
    });
    if !names.is_empty() {
        let parameter = |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
        document["parameters"] = names.iter().map(parameter).collect();
    }
    if let Some(body) = &operation.body {
        add_component(&mut (body.schema)(body, bounds), components);
        let content = json!({"application/json": {"schema": reference(body.name)}});
        document["requestBody"] = json!({"required": true, "content": content});
    }
    if operation.is_open {
        document["security"] = json!([]);
    }
    document
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Puts every schema with a title among the components, and a reference in its place.
fn add_component(schema: &mut Value, components: &mut Map<String, Value>) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| add_component(item, components)),
        Value::Object(map) => {
            let title = map.get("title").and_then(Value::as_str).map(str::to_owned);
            if title.is_some() {
                map.remove("title");
            }
            map.values_mut().for_each(|value| add_component(value, components));
            if let Some(title) = title {
                let component = std::mem::replace(schema, reference(&title));
                components.insert(title, component);
            }
        }
        _ => {}
    }
}

/// The schema of a request that is one group of fields.
pub(crate) fn group<G: Group>(body: &Body, bounds: &Bounds) -> Value {
    let mut schema = object_schema(&G::rows(bounds));
    schema["title"] = body.name.into();
    schema["examples"] = json!([(body.example)()]);
    schema
}
