//! The type of a route, and the OpenAPI 3.1 document of all routes.
//!
//! Paths come from the routes. Request schemas come from the table of fields, with the limits of this server and its
//! model. Response schemas are in `replies.json`.

use crate::server::parameters::kind::{Bounds, Group, object_schema};
use crate::server::parameters::kinds::with_foreign;
use crate::server::state::{ModelState, ServerState};
use crate::server::wire::error::Dialect;
use axum::routing::MethodRouter;
use serde_json::{Map, Value, json};

/// Paths with the same handlers and documentation.
pub(crate) struct Route {
    pub(crate) paths: &'static [&'static str],
    pub(crate) handlers: Handlers,
    pub(crate) operation: Operation,
}

/// What answers the requests of a path.
pub(crate) enum Handlers {
    /// The server, whatever its models.
    Server(MethodRouter<ServerState>),
    /// The model that a request asks for.
    Model(MethodRouter<ModelState>),
}

/// Documentation of the methods of a path.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) methods: &'static [&'static str],
    pub(crate) summary: &'static str,
    pub(crate) body: Option<Body>,
    pub(crate) answer: Answer,
    /// The route needs no API key.
    pub(crate) is_open: bool,
}

/// Documentation of a request body.
#[derive(Clone, Copy)]
pub(crate) struct Body {
    /// Name of its schema.
    pub(crate) name: &'static str,
    pub(crate) schema: fn(&Self, &Bounds) -> Value,
    /// A valid example.
    pub(crate) example: fn() -> Value,
}

/// The form of a response: a text media type, any object, or a schema of `replies.json`.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Text(&'static str),
    Object,
    /// A list of objects.
    Objects,
    One(&'static str),
    List(&'static str),
    OneOrStream(&'static str),
    /// An object, or lines of them.
    Lines,
}

impl Route {
    /// Paths that the server answers, whatever its models. What they tell of one of several does not need it loaded.
    pub(crate) fn server(
        paths: &'static [&'static str],
        handlers: MethodRouter<ServerState>,
        operation: Operation,
    ) -> Self {
        Self {
            paths,
            handlers: Handlers::Server(handlers),
            operation,
        }
    }

    /// Paths that the model answers for which a request asks.
    pub(crate) fn model(
        paths: &'static [&'static str],
        handlers: MethodRouter<ModelState>,
        operation: Operation,
    ) -> Self {
        Self {
            paths,
            handlers: Handlers::Model(handlers),
            operation,
        }
    }
}

impl Body {
    /// A request that is one group of fields.
    pub(crate) fn of<G: Group>(example: fn() -> Value) -> Self {
        Self {
            name: G::NAME,
            schema: group::<G>,
            example,
        }
    }
}

impl Answer {
    /// Whether a request can have its answer as a stream of events.
    pub(crate) fn may_stream(&self) -> bool {
        matches!(self, Self::OneOrStream(_))
    }
}

impl Operation {
    pub(crate) const fn get(summary: &'static str, answer: Answer) -> Self {
        Self {
            methods: &["get"],
            summary,
            body: None,
            answer,
            is_open: false,
        }
    }

    pub(crate) const fn post(summary: &'static str, body: Body, answer: Answer) -> Self {
        Self {
            methods: &["post"],
            summary,
            body: Some(body),
            answer,
            is_open: false,
        }
    }

    /// The same without an API key.
    pub(crate) const fn open(self) -> Self {
        Self {
            is_open: true,
            ..self
        }
    }

    /// The same under other methods.
    pub(crate) const fn under(self, methods: &'static [&'static str]) -> Self {
        Self { methods, ..self }
    }
}

/// The OpenAPI document of these routes.
pub(crate) fn document(routes: &[Route], bounds: &Bounds) -> Value {
    let mut components: Map<String, Value> =
        serde_json::from_str(include_str!("replies.json")).unwrap_or_default();
    let mut paths = Map::new();
    for Route {
        paths: names,
        operation,
        ..
    } in routes
    {
        for path in *names {
            let methods = methods(path, operation, bounds, &mut components);
            paths.insert(path.replace("{*", "{"), methods);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "folio",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models on any GPU behind OpenAI's API. Unknown fields of a request are ignored.",
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": components,
        },
    })
}

/// The methods of one path.
fn methods(
    path: &str,
    operation: &Operation,
    bounds: &Bounds,
    components: &mut Map<String, Value>,
) -> Value {
    let document = document_of(path, operation, bounds, components);
    operation
        .methods
        .iter()
        .map(|method| ((*method).to_owned(), document.clone()))
        .collect::<Map<_, _>>()
        .into()
}

/// The names in braces within a path.
fn parameters(path: &str) -> Vec<Value> {
    path.split(['{', '}'])
        .skip(1)
        .step_by(2)
        .map(|name| name.trim_start_matches('*'))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect()
}

fn document_of(
    path: &str,
    operation: &Operation,
    bounds: &Bounds,
    components: &mut Map<String, Value>,
) -> Value {
    let content = match operation.answer {
        Answer::Text(kind) => json!({kind: {"schema": {"type": "string"}}}),
        Answer::Object => json!({"application/json": {"schema": {"type": "object"}}}),
        Answer::Objects => {
            json!({"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}})
        }
        Answer::One(name) => json!({"application/json": {"schema": reference(name)}}),
        Answer::List(name) => {
            json!({"application/json": {"schema": {"type": "array", "items": reference(name)}}})
        }
        Answer::Lines => {
            json!({"application/json": {"schema": {"type": "object"}}, "application/x-ndjson": {}})
        }
        Answer::OneOrStream(name) => {
            json!({"application/json": {"schema": reference(name)}, "text/event-stream": {}})
        }
    };
    let error = match Dialect::of(path) {
        Dialect::OpenAi => "Error",
        Dialect::Anthropic => "MessagesError",
        Dialect::Ollama => "OllamaError",
    };
    let error = json!({"application/json": {"schema": reference(error)}});
    let mut document = json!({
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error.", "content": error},
        },
    });
    let parameters = parameters(path);
    if !parameters.is_empty() {
        document["parameters"] = parameters.into();
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

/// Moves every schema with a title to the components, and puts a reference in its place.
fn add_component(schema: &mut Value, components: &mut Map<String, Value>) {
    match schema {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| add_component(item, components)),
        Value::Object(map) => {
            let title = map.get("title").and_then(Value::as_str).map(str::to_owned);
            if title.is_some() {
                map.remove("title");
            }
            map.values_mut()
                .for_each(|value| add_component(value, components));
            if let Some(title) = title {
                let component = std::mem::replace(schema, reference(&title));
                components.insert(title, component);
            }
        }
        _ => {}
    }
}

/// Schema of a request that is one group of fields. Fields that other requests have too name the group that they share,
/// and fields of other servers are listed with what to use instead or why nothing is lost.
fn group<G: Group>(body: &Body, bounds: &Bounds) -> Value {
    let rows = G::rows(bounds);
    let mut schema = object_schema(&rows);
    for row in rows.iter().filter(|row| row.group != body.name) {
        schema["properties"][row.name]["x-group"] = row.group.into();
    }
    schema = with_foreign::<G>(schema);
    schema["title"] = body.name.into();
    schema["examples"] = json!([(body.example)()]);
    schema
}

/// Schema of a request that has one of several forms.
pub(crate) fn one_of(name: &str, forms: &[Body], bounds: &Bounds) -> Value {
    let forms: Vec<_> = forms
        .iter()
        .map(|form| (form.schema)(form, bounds))
        .collect();
    json!({"title": name, "anyOf": forms})
}
