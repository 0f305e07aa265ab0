//! `/openapi.json` is correct: it equals the golden document, and the server accepts and refuses values exactly by its
//! bounds. Files generated from it are up to date: the types of the npm package, and the table of routes in
//! docs/api.md. `FOLIO_REFRESH=1 cargo test --test http document` regenerates these files.

mod page;

use crate::harness::{CHAT, COMPLETIONS, QWEN, Server, config, hello, renamed, server_of, with};
use crate::packed;
use folio::config::Config;
use folio::engine::handle::{Stats, Value as StatValue};
use folio::model::demo;
use folio::server::ServerOptions;
use folio::text::TextModel;
use regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Fields that require another field, with that field as JSON; first those of one path.
const NEEDS: &[(&str, &str)] = &[
    (
        "/v1/chat/completions/batch continue_final_message",
        r#"{"messages": [[{"role": "assistant", "content": "Hi"}]]}"#,
    ),
    ("best_of", r#"{"max_tokens": 1}"#),
    (
        "continue_final_message",
        r#"{"messages": [{"role": "assistant", "content": "Hi"}]}"#,
    ),
    ("early_stopping", r#"{"use_beam_search": true}"#),
    ("length_penalty", r#"{"use_beam_search": true}"#),
    (
        "min_tokens",
        r#"{"max_tokens": 100000, "max_output_tokens": 100000}"#,
    ),
    ("stream_options", r#"{"stream": true}"#),
    (
        "tool_choice",
        r#"{"tools": [{"type": "function", "function": {"name": "f"}}]}"#,
    ),
    (
        "/v1/responses tool_choice",
        r#"{"tools": [{"type": "function", "name": "f"}]}"#,
    ),
    (
        "/responses tool_choice",
        r#"{"tools": [{"type": "function", "name": "f"}]}"#,
    ),
    (
        "/v1/responses/input_tokens tool_choice",
        r#"{"tools": [{"type": "function", "name": "f"}]}"#,
    ),
    (
        "/responses/input_tokens tool_choice",
        r#"{"tools": [{"type": "function", "name": "f"}]}"#,
    ),
    ("/api/pull model", r#"{"name": "demo"}"#),
    ("/api/chat tools", r#"{"messages": []}"#),
    ("/v1/messages tool_choice", r#"{"tools": [{"name": "f"}]}"#),
    ("/v1/messages tools", r#"{"tool_choice": {"type": "none"}}"#),
    ("tools", r#"{"tool_choice": "none"}"#),
    ("top_logprobs", r#"{"logprobs": true}"#),
];
/// Fields that an error calls by the engine's name, with that name.
const NAMES: &[(&str, &str)] = &[("repeat_penalty", "repetition_penalty")];

fn document() -> Value {
    Server::plain().get("/openapi.json").json()
}

/// Compares a file of the repository with its expected contents, or writes it with `FOLIO_REFRESH=1`.
pub(crate) fn golden(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var("FOLIO_REFRESH").is_ok_and(|value| value == "1") {
        std::fs::write(&file, text).expect("the file can be written");
    }
    let written = std::fs::read_to_string(&file)
        .unwrap_or_default()
        .replace("\r\n", "\n");
    assert!(
        written == text,
        "{path} is stale: FOLIO_REFRESH=1 cargo test --test http document"
    );
}

#[test]
fn the_document_is_the_golden_one() {
    let mut document = document();
    document["info"]["version"] = "0".into();
    let text = serde_json::to_string_pretty(&document).expect("JSON");
    golden("tests/data/http/openapi.json", &(text + "\n"));
}

#[test]
fn the_types_of_the_npm_package_are_fresh() {
    golden("web/ts/requests.ts", &typescript(&document()));
    golden("web/ts/stats.ts", &types_of_stats());
    golden("web/ts/limits.ts", &types_of_limits());
}

/// The largest whole number that JavaScript has.
const SAFE_MAX: u64 = (1 << 53) - 1;

/// The engine's numbers that a page may set, as TypeScript: their names, and their ranges.
fn types_of_limits() -> String {
    let mut fields = String::new();
    let mut ranges = String::new();
    for option in Config::OPTIONS {
        let name = camel_case(option.name);
        let (least, most) = option.range;
        let most = if most > SAFE_MAX {
            "Number.MAX_SAFE_INTEGER".to_owned()
        } else {
            most.to_string()
        };
        let is_bytes = option.unit == "BYTES";
        let bytes = if is_bytes { ", bytes: true" } else { "" };
        let unit = if is_bytes { " In bytes." } else { "" };
        fields += &format!("  /** {}{unit} */\n  {name}?: number;\n", option.help);
        ranges += &format!("  {name}: {{ least: {least}, most: {most}{bytes} }},\n");
    }
    format!(
        "// The engine's numbers, made from its table. Do not edit; to write it anew:\n\
         // FOLIO_REFRESH=1 cargo test --test http document\n\n\
         /** Limits of an engine that are the same on every device. */\n\
         export interface EngineLimits {{\n{fields}}}\n\n\
         /** The values of a limit, and whether it counts bytes, which are often computed as a share. */\n\
         export interface Range {{\n  least: number;\n  most: number;\n  bytes?: true;\n}}\n\n\
         export const ENGINE_LIMITS: Record<keyof EngineLimits, Range> = {{\n{ranges}}};\n"
    )
}

/// The counters and gauges that a page gets, as TypeScript.
fn types_of_stats() -> String {
    let mut text = String::from(
        "// Counters and gauges of the engine, made from its table. Do not edit; to write it anew:\n\
         // FOLIO_REFRESH=1 cargo test --test http document\n\n\
         /** Counters and gauges after the last step. */\nexport interface Stats {\n  \
         /** Whether requests are taken. */\n  ready: boolean;\n",
    );
    for stat in Stats::TABLE {
        let kind = match (stat.value)(&Stats::default()) {
            StatValue::One(_) => "number".to_owned(),
            StatValue::By(_, counts) => {
                let names: Vec<_> = counts
                    .iter()
                    .map(|(name, _)| format!("\"{name}\""))
                    .collect();
                let is_numbered = counts.iter().all(|(name, _)| name.parse::<u32>().is_ok());
                let key = if is_numbered {
                    "number".to_owned()
                } else {
                    names.join(" | ")
                };
                format!("Record<{key}, number>")
            }
            StatValue::Histogram(..) => "Record<string, number>".to_owned(),
        };
        let name = camel_case(stat.name);
        text += &format!("  /** {} */\n  {name}: {kind};\n", stat.help);
    }
    text + "}\n"
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_').map(str::to_owned);
    let first = words.next().unwrap_or_default();
    words.fold(first, |name, word| {
        name + &word[..1].to_uppercase() + &word[1..]
    })
}

/// Who has drawn a metric or set an alarm on it relies on its name.
#[test]
fn the_metrics_are_the_golden_ones() {
    let text = Server::plain().get("/metrics").text;
    let mut kinds = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let heads: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
        .map(|(name, help)| {
            let (_, kind) = kinds.next().expect("a metric with a help has a kind");
            format!("{name} {kind} {help}\n")
        })
        .filter(|line| line.starts_with("vllm:") || line.starts_with("http_"))
        .collect();
    golden(
        "tests/data/http/metrics.txt",
        &heads.into_iter().collect::<String>(),
    );
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => document
            .pointer(name.trim_start_matches('#'))
            .expect("a reference leads somewhere"),
        None => schema,
    }
}

/// A value that a schema accepts.
fn valid(document: &Value, schema: &Value) -> Value {
    let schema = resolved(document, schema);
    let kind = if schema["type"].is_array() {
        &schema["type"][0]
    } else {
        &schema["type"]
    };
    let first = [&schema["examples"], &schema["enum"]]
        .into_iter()
        .find_map(|list| list.get(0));
    if let Some(value) = first.or(schema.get("const")) {
        return value.clone();
    }
    match kind.as_str() {
        Some("boolean") => true.into(),
        Some("integer" | "number") => schema
            .get("maximum")
            .or(schema.get("minimum"))
            .cloned()
            .unwrap_or(json!(1)),
        Some("string") => "a".into(),
        Some("array") => match schema["prefixItems"].as_array() {
            Some(items) => items.iter().map(|item| valid(document, item)).collect(),
            None => json!([valid(document, &schema["items"])]),
        },
        Some("object") => {
            let required = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            required
                .map(|name| {
                    (
                        name.to_owned(),
                        valid(document, &schema["properties"][name]),
                    )
                })
                .collect()
        }
        _ => schema["anyOf"]
            .get(0)
            .map_or(json!({}), |schema| valid(document, schema)),
    }
}

/// Values at the bounds of a schema and just beyond them, each with whether it is accepted.
fn ends(document: &Value, schema: &Value) -> Vec<(Value, bool)> {
    let schema = resolved(document, schema);
    let mut found = Vec::new();
    let count = |name: &str| schema[name].as_u64().map(|count| count as usize);
    if let Some(options) = schema["anyOf"]
        .as_array()
        .filter(|_| schema["type"].is_null())
    {
        // A value beyond the bounds of one form may be valid in another.
        return options
            .iter()
            .flat_map(|option| ends(document, option))
            .collect();
    }
    if let Some(values) = schema["enum"].as_array() {
        found.extend(values.iter().map(|value| (value.clone(), true)));
        found.push(("no such value".into(), false));
    }
    for (name, step) in [("minimum", -1), ("maximum", 1)] {
        if let Some(end) = schema[name].as_i64() {
            found.push((end.into(), true));
            let past = end
                .checked_add(step)
                .map_or(json!(1e30 * step as f64), Value::from);
            found.push((past, false));
        }
    }
    if let Some(end) = schema["exclusiveMinimum"].as_f64() {
        found.extend([((end + 1e-3).into(), true), (end.into(), false)]);
    }
    if let Some(value) = schema["not"].get("const") {
        found.push((value.clone(), false));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        let pattern = Regex::new(pattern).expect("a pattern");
        let texts = [
            "".into(),
            "a".into(),
            "a b".into(),
            "ä".into(),
            "a".repeat(64),
            "a".repeat(128),
            "a".repeat(129),
        ];
        found.extend(
            texts.map(|text: String| (Value::from(text.as_str()), pattern.is_match(&text))),
        );
    }
    found.extend(count("minLength").map(|count| ("a".repeat(count - 1).into(), false)));
    if let Some(count) = count("maxLength") {
        found.extend([
            ("a".repeat(count).into(), true),
            ("a".repeat(count + 1).into(), false),
        ]);
    }
    let items = |count| Value::from(vec![valid(document, &schema["items"]); count]);
    found.extend(count("minItems").map(|count| (items(count - 1), false)));
    if let Some(count) = count("maxItems") {
        found.extend([(items(count), true), (items(count + 1), false)]);
    }
    if schema["type"] == "array" || schema["type"][0] == "array" {
        let inner = ends(document, &schema["items"]);
        found.extend(
            inner
                .into_iter()
                .map(|(item, taken)| (json!([item]), taken)),
        );
    }
    found.extend(object_ends(document, schema));
    found
}

fn object_ends(document: &Value, schema: &Value) -> Vec<(Value, bool)> {
    let mut found = Vec::new();
    let values = &schema["additionalProperties"];
    if let Some(most) = schema["maxProperties"].as_u64() {
        let keys = |count| -> Value {
            (0..count)
                .map(|key: u64| (key.to_string(), valid(document, values)))
                .collect()
        };
        found.extend([(keys(most), true), (keys(most + 1), false)]);
        let inner = ends(document, values);
        found.extend(
            inner
                .into_iter()
                .map(|(value, taken)| (json!({"7": value}), taken)),
        );
    }
    let base = if schema["properties"].is_object() {
        valid(document, schema)
    } else {
        json!({})
    };
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let wrong = wrong_type(property).map(|value| (value, false));
        let inner = ends(document, property)
            .into_iter()
            .chain(wrong)
            .filter(|_| property["enum"].is_null());
        found.extend(inner.map(|(value, taken)| (with(&base, &json!({name: value})), taken)));
        if is_required(schema, name) {
            let mut without = base.clone();
            without.as_object_mut().expect("an object").remove(name);
            found.push((without, false));
        }
    }
    found
}

/// A value of a type that the schema does not accept.
fn wrong_type(schema: &Value) -> Option<Value> {
    let text = schema.to_string();
    let is = |kind: &str| text.contains(&format!("\"{kind}\""));
    if ["type", "anyOf", "enum", "const", "$ref"]
        .iter()
        .all(|key| schema.get(key).is_none())
    {
        return None;
    }
    if schema.get("enum").is_some() {
        return Some(json!({}));
    }
    let candidates = [
        ("boolean", json!(true)),
        ("string", json!("x")),
        ("object", json!({})),
        ("array", json!([])),
    ];
    candidates
        .into_iter()
        .find(|(kind, _)| !is(kind) && !is("$ref"))
        .map(|(_, value)| value)
}

/// The forms of a request with an example of each.
fn forms(document: &Value, body: &Value) -> Vec<(Value, Value)> {
    let schema = resolved(document, &body["content"]["application/json"]["schema"]);
    let options = schema["anyOf"]
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![schema.clone()]);
    let options = options
        .iter()
        .map(|option| resolved(document, option).clone());
    options
        .map(|schema| (schema.clone(), schema["examples"][0].clone()))
        .collect()
}

/// A server for which every route has a valid request.
fn filling_gaps() -> Server {
    let text =
        TextModel::with_tokenizer(Some(renamed(QWEN)), Some(demo::TOKENIZER_CONFIG_JSON), None);
    Server::plain_with(Arc::new(text.expect("the demo's files are right")))
}

/// Routes that refuse everything on a server of one model without --lora-folder. `models`, and the tests of the command
/// line, try them.
const REFUSING: [&str; 3] = [
    "/models/unload",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
];

/// Fields of which some values are for other models than the one that answers.
const OF_MODELS: &[&str] = &[
    "/embedding pooling",
    "/embeddings pooling",
    "/invocations pooling",
    "/pooling task",
    "/v1/embeddings pooling",
];

/// A server of a model that answers, one of an encoder, and one of a model with a head for classes, each with its
/// document.
struct Servers([(Server, Value); 3]);

impl Servers {
    fn start() -> Self {
        let [encoder, classifier] = ["bert-mean", "bert-rerank"]
            .map(|name| server_of(&packed::model(&format!("encoders/{name}"))));
        Self([filling_gaps(), encoder, classifier].map(|server| {
            let document = server.get("/openapi.json").json();
            (server, document)
        }))
    }

    /// Every path with the server that answers it.
    fn paths(&self) -> impl Iterator<Item = (&str, &Server, &Value)> {
        let [(_, document), ..] = &self.0;
        let paths = document["paths"].as_object().expect("paths").keys();
        paths.map(|path| {
            let index = match path.as_str() {
                "/embed_all" | "/pooling" => 1,
                "/classify" | "/predict" => 2,
                _ => 0,
            };
            let (server, document) = &self.0[index];
            (path.as_str(), server, document)
        })
    }
}

#[test]
fn every_bound_of_the_document_holds() {
    let servers = Servers::start();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (path, server, document) in servers.paths() {
        let Some(body) = document["paths"][path]["post"].get("requestBody") else {
            continue;
        };
        if REFUSING.contains(&path) {
            continue;
        }
        for (form, example) in forms(document, body) {
            assert_eq!(server.post(path, &example).status, 200, "{path}: {example}");
            for (name, schema) in form["properties"].as_object().expect("properties") {
                // The command line's tests have adapters.
                if name == "lora" || OF_MODELS.contains(&format!("{path} {name}").as_str()) {
                    continue;
                }
                let mut values = ends(document, schema);
                values.extend(wrong_type(schema).map(|value| (value, false)));
                values.extend((!is_required(&form, name)).then_some((Value::Null, true)));
                for (value, taken) in values {
                    count += 1;
                    let fault = fault(server, path, (&form, &example), (name, &value), taken);
                    let value: String = value.to_string().chars().take(100).collect();
                    wrong.extend(fault.map(|fault| format!("{path} {name}: {value}: {fault}")));
                }
            }
        }
    }
    assert!(count > 1000, "{count} values were tried");
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn fields_of_other_servers_are_refused_or_ignored_by_name() {
    let servers = Servers::start();
    for (path, server, document) in servers.paths() {
        let Some(body) = document["paths"][path]["post"].get("requestBody") else {
            continue;
        };
        if REFUSING.contains(&path) {
            continue;
        }
        for (form, example) in forms(document, body) {
            let ask = |name: &str, value: Value| {
                server.post(path, &with(&example, &json!({name: value})))
            };
            let listed = |list: &str| form[list].as_object().expect("fields with reasons").clone();
            let (refused, ignored) = (listed("x-unsupported-fields"), listed("x-ignored-fields"));
            for (name, reason) in &refused {
                let answer = ask(name, "x".into());
                let message = format!(
                    "`{name}` is not supported: {}",
                    reason.as_str().expect("a reason")
                );
                assert_eq!(answer.status, 400, "{path} {name}");
                let json = answer.json();
                let [param, said] = if json["error"].is_string() {
                    [&json["param"], &json["error"]]
                } else {
                    [&json["error"]["param"], &json["error"]["message"]]
                };
                assert_eq!(
                    (param, said),
                    (&name.as_str().into(), &message.into()),
                    "{path}"
                );
                assert_eq!(
                    ask(name, Value::Null).status,
                    200,
                    "{path}: {name} is not used"
                );
            }
            for name in ignored.keys() {
                assert_eq!(ask(name, "x".into()).status, 200, "{path} {name}");
            }
            let is_row = |name: &&String| form["properties"].get(name.as_str()).is_some();
            assert_eq!(
                refused.keys().chain(ignored.keys()).find(is_row),
                None,
                "{path}: a listed field has no row"
            );
        }
    }
}

#[test]
fn a_field_is_refused_by_name_only_where_other_servers_have_it() {
    let strict = ServerOptions {
        strict_fields: true,
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), strict);
    let code =
        |path: &str, request: Value| server.post(path, &request).json()["error"]["code"].clone();
    assert_eq!(
        code(
            COMPLETIONS,
            json!({"prompt": "a", "logprob_token_ids": [1]})
        ),
        "unsupported_parameter"
    );
    let elsewhere = json!({"input": "a", "logprob_token_ids": [1]});
    assert_eq!(
        code("/v1/embeddings", elsewhere),
        "invalid_value",
        "it is unknown there"
    );
    assert_eq!(
        code(COMPLETIONS, json!({"prompt": "a", "verbosity": "low"})),
        "invalid_value",
        "it is unknown there"
    );
    assert_eq!(
        code(CHAT, with(&hello(), &json!({"verbosity": "low"}))),
        Value::Null,
        "it is ignored there"
    );
}

/// Sets a field of a request, of which two names may not disagree.
fn put(request: &mut Value, form: &Value, (name, value): (&str, &Value)) {
    let field = |name: &str| {
        let about = form["properties"][name]["description"].as_str();
        let other =
            about.and_then(|about| about.strip_prefix("Another name of `")?.strip_suffix("`."));
        other.unwrap_or(name).to_owned()
    };
    if !value.is_null() {
        let fields = request.as_object_mut().expect("an object");
        fields.retain(|other, _| other == name || field(other) != field(name));
    }
    request[name] = value.clone();
}

/// How the response to `example` with one more field contradicts the document, if it does.
fn fault(
    server: &Server,
    path: &str,
    (form, example): (&Value, &Value),
    (name, value): (&str, &Value),
    taken: bool,
) -> Option<String> {
    let mut request = example.clone();
    let of_path = format!("{} {name}", path.trim_end_matches("/count_tokens"));
    let needs = |of: &str| NEEDS.iter().find(|(field, _)| *field == of);
    if let Some((_, more)) = needs(&of_path).or_else(|| needs(name)) {
        let more: Value = serde_json::from_str(more).expect("JSON");
        for (name, value) in more.as_object().expect("an object") {
            put(&mut request, form, (name, value));
        }
    }
    if name == "max_tokens" && *value == 0 {
        request["echo"] = true.into();
    }
    put(&mut request, form, (name, value));
    let answer = server.post(path, &request);
    if taken {
        return (answer.status != 200).then(|| format!("refused: {}", answer.text));
    }
    if answer.status != 400 {
        return Some(format!("taken: {}", answer.status));
    }
    let json = answer.json();
    let param = json["error"]["param"]
        .as_str()
        .or(json["param"].as_str())
        .unwrap_or_default()
        .to_owned();
    let renamed = NAMES.contains(&(name, param.as_str()));
    (!renamed && !param.starts_with(name))
        .then(|| format!("refused by another name: {}", answer.text))
}

/// The requests' schemas as TypeScript.
fn typescript(document: &Value) -> String {
    let mut text = String::from(
        "// Request types of the API, made from the engine's table of request fields. Do not edit; to write it anew:\n\
         // FOLIO_REFRESH=1 cargo test --test http document\n",
    );
    let schemas = document["components"]["schemas"]
        .as_object()
        .expect("schemas");
    let mut names: Vec<String> = Vec::new();
    let paths = document["paths"].as_object().expect("paths").values();
    paths.for_each(|path| references(&path["post"]["requestBody"], schemas, &mut names));
    let used = || schemas.iter().filter(|(name, _)| names.contains(name));
    let groups = groups(used().map(|(_, schema)| schema));
    for (name, group) in &groups {
        text += &format!("\nexport interface {name} {}\n", type_of(group, ""));
    }
    for (name, schema) in used() {
        let mut own = schema.clone();
        match own["properties"].as_object_mut() {
            Some(properties) => {
                properties.retain(|_, property| property["x-group"].is_null());
                text += &format!(
                    "\nexport interface {name}{} {}\n",
                    extended(schema, &groups),
                    type_of(&own, "")
                );
            }
            None => text += &format!("\nexport type {name} = {};\n", type_of(schema, "")),
        }
    }
    text
}

/// Schemas of the groups of fields that requests share.
fn groups<'a>(requests: impl Iterator<Item = &'a Value>) -> Map<String, Value> {
    let mut groups = Map::new();
    for request in requests {
        for (name, property) in request["properties"].as_object().into_iter().flatten() {
            let Some(group) = property["x-group"].as_str() else {
                continue;
            };
            let schema = groups
                .entry(group)
                .or_insert_with(|| json!({"type": "object"}));
            schema["properties"][name] = property.clone();
            if is_required(request, name) && !is_required(schema, name) {
                let known = schema["required"].as_array().cloned().unwrap_or_default();
                schema["required"] = known.into_iter().chain([name.as_str().into()]).collect();
            }
        }
    }
    groups
}

/// The groups that a request extends, each without the fields that a row of the request hides.
fn extended(request: &Value, groups: &Map<String, Value>) -> String {
    let base = |(group, schema): (&String, &Value)| {
        let fields = schema["properties"]
            .as_object()
            .expect("a group has fields")
            .keys();
        let has = |name: &&String| request["properties"][name.as_str()]["x-group"] == *group;
        let (kept, hidden): (Vec<_>, Vec<_>) = fields.partition(has);
        let hidden: Vec<_> = hidden.iter().map(|name| format!("\"{name}\"")).collect();
        match (kept.is_empty(), hidden.is_empty()) {
            (true, _) => None,
            (false, true) => Some(group.clone()),
            (false, false) => Some(format!("Omit<{group}, {}>", hidden.join(" | "))),
        }
    };
    let bases: Vec<_> = groups.iter().filter_map(base).collect();
    let line = bases.join(", ");
    match line.len() {
        0 => line,
        1..=108 => format!("\n  extends {line}"),
        _ => format!("\n  extends {}", bases.join(",\n    ")),
    }
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"]
        .as_array()
        .is_some_and(|names| names.iter().any(|known| known == name))
}

/// Adds the names that a schema references, recursively.
fn references(schema: &Value, schemas: &Map<String, Value>, names: &mut Vec<String>) {
    match schema {
        Value::Array(items) => items
            .iter()
            .for_each(|item| references(item, schemas, names)),
        Value::Object(map) => {
            let name = map
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|path| path.rsplit('/').next());
            if let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) {
                names.push(name.to_owned());
                references(&schemas[name], schemas, names);
            }
            map.values()
                .for_each(|value| references(value, schemas, names));
        }
        _ => {}
    }
}

/// The TypeScript type of a schema; all lines except the first begin with `indent`.
fn type_of(schema: &Value, indent: &str) -> String {
    let union = |types: Vec<String>| types.join(" | ");
    if let Some(path) = schema["$ref"].as_str() {
        return path.rsplit('/').next().expect("a name").to_owned();
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(values) = schema["enum"].as_array() {
        return union(values.iter().map(Value::to_string).collect());
    }
    if let Some(options) = schema["anyOf"]
        .as_array()
        .filter(|_| schema["type"].is_null())
    {
        return union(
            options
                .iter()
                .map(|option| type_of(option, indent))
                .collect(),
        );
    }
    match &schema["type"] {
        Value::Array(kinds) => {
            let one = |kind: &Value| type_of(&with(schema, &json!({"type": kind})), indent);
            union(kinds.iter().map(one).collect())
        }
        Value::String(kind) => match kind.as_str() {
            "integer" | "number" => "number".into(),
            "array" => match schema["prefixItems"].as_array() {
                Some(items) => {
                    let items: Vec<_> = items.iter().map(|item| type_of(item, indent)).collect();
                    format!("[{}]", items.join(", "))
                }
                None => format!("Array<{}>", type_of(&schema["items"], indent)),
            },
            "object" => object_type(schema, indent),
            simple => simple.into(),
        },
        _ => "unknown".into(),
    }
}

fn object_type(schema: &Value, indent: &str) -> String {
    let Some(properties) = schema["properties"].as_object() else {
        return format!(
            "Record<string, {}>",
            type_of(&schema["additionalProperties"], indent)
        );
    };
    let inner = format!("{indent}  ");
    let member = |(name, property): (&String, &Value)| {
        let about = property["description"]
            .as_str()
            .map(|text| format!("{inner}/** {text} */\n"))
            .unwrap_or_default();
        let mark = if is_required(schema, name) { "" } else { "?" };
        format!(
            "{about}{inner}{name}{mark}: {};\n",
            type_of(property, &inner)
        )
    };
    format!(
        "{{\n{}{indent}}}",
        properties.iter().map(member).collect::<String>()
    )
}
