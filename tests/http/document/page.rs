//! The tables of docs/api.md: the routes, and what becomes of fields of other engines.

use super::{document, forms, golden};
use serde_json::Value;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

#[test]
fn the_page_of_the_api_lists_the_routes_and_the_fields_of_other_engines() {
    let document = document();
    let page = include_str!("../../../docs/api.md").replace("\r\n", "\n");
    let page = with_table(&page, "routes", &routes(&document));
    let page = with_table(&page, "fields of other engines", &foreign(&document));
    golden("docs/api.md", &page);
}

/// The page with a table between its two marks.
fn with_table(page: &str, name: &str, table: &str) -> String {
    let (begin, end) = (
        format!("<!-- {name}: begin -->\n"),
        format!("<!-- {name}: end -->"),
    );
    let (before, rest) = page.split_once(&begin).expect("the page has the table");
    let (_, after) = rest.split_once(&end).expect("the table ends");
    format!("{before}{begin}{table}{end}{after}")
}

/// The paths, each with its operations. A route that exists with and without `/v1` is listed once.
fn paths(document: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let paths = document["paths"].as_object().expect("a document has paths");
    paths
        .iter()
        .filter(|(path, _)| !paths.contains_key(&format!("/v1{path}")))
}

/// A Markdown table of the routes.
fn routes(document: &Value) -> String {
    let mut table = "| Route | |\n|---|---|\n".to_owned();
    for (path, operations) in paths(document) {
        let operations = operations.as_object().expect("a path has operations");
        let methods: Vec<String> = operations
            .keys()
            .map(|method| method.to_uppercase())
            .collect();
        let summary = operations
            .values()
            .find_map(|operation| operation["summary"].as_str())
            .unwrap_or_default();
        table += &format!("| `{} {path}` | {summary} |\n", methods.join(", "));
    }
    table
}

/// A field of another engine: its name, whether it is refused, and why.
type Foreign = (String, bool, String);

/// Markdown tables of the fields of other engines, one for each set of routes that have them.
fn foreign(document: &Value) -> String {
    let mut routes: BTreeMap<Foreign, BTreeSet<&str>> = BTreeMap::new();
    for (path, operations) in paths(document) {
        let Some(body) = operations["post"].get("requestBody") else {
            continue;
        };
        for (form, _) in forms(document, body) {
            collect(&form, "", &mut |field| {
                routes.entry(field).or_default().insert(path);
            });
        }
    }
    let mut tables: BTreeMap<BTreeSet<&str>, Vec<Foreign>> = BTreeMap::new();
    for (field, routes) in routes {
        tables.entry(routes).or_default().push(field);
    }
    let mut tables: Vec<_> = tables.into_iter().collect();
    tables.sort_by_key(|(routes, fields)| std::cmp::Reverse((routes.len(), fields.len())));
    let mut text = String::new();
    for (routes, fields) in tables {
        let names: Vec<_> = routes.iter().map(|path| format!("`{path}`")).collect();
        text += &format!(
            "\n{}:\n\n| Field | | Why, or what to use instead |\n|---|---|---|\n",
            names.join(", ")
        );
        for (name, is_refused, reason) in fields {
            let fate = if is_refused { "refused" } else { "ignored" };
            text += &format!("| `{name}` | {fate} | {} |\n", reason.replace('|', "\\|"));
        }
    }
    text + "\n"
}

/// The fields of other engines in an object's schema, and in the objects within it.
fn collect(schema: &Value, at: &str, found: &mut impl FnMut(Foreign)) {
    for (list, is_refused) in [("x-unsupported-fields", true), ("x-ignored-fields", false)] {
        for (name, reason) in schema[list].as_object().into_iter().flatten() {
            let reason = reason.as_str().expect("a reason is text").to_owned();
            found((format!("{at}{name}"), is_refused, reason));
        }
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        collect(inner, &format!("{at}{name}."), found);
    }
}
