//! Structural tags: free text, and parts whose form is described, in the older and the newer notation.

use crate::harness::{CHAT, Server, hello, saying, with};
use serde_json::{Value, json};

/// An object with one number, which is 7.
fn seven() -> Value {
    json!({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": false})
}

fn tag(begin: &str, content: &Value, end: &str) -> Value {
    json!({"type": "tag", "begin": begin, "content": content, "end": end})
}

fn json_of(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": schema})
}

/// The text of an answer under a format, of a model that would say something else.
fn answer(said: &str, more: &Value) -> (String, String) {
    let request = with(&with(&hello(), &json!({"max_tokens": 60})), more);
    let answer = saying(&[said]).post(CHAT, &request);
    assert_eq!(answer.status, 200, "{more}: {}", answer.text);
    let choice = &answer.json()["choices"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (
        text(&choice["message"]["content"]),
        text(&choice["finish_reason"]),
    )
}

/// What is between two texts.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = text
        .split_once(begin)
        .unwrap_or_else(|| panic!("{begin} in {text}"));
    rest.split_once(end)
        .unwrap_or_else(|| panic!("{end} in {text}"))
        .0
}

#[test]
fn a_trigger_begins_a_part_of_its_form_and_other_text_is_free() {
    let structures = json!([
        {"begin": "<f=look>", "schema": seven(), "end": "</f>"},
        {"begin": "<f=hear>", "schema": {"const": "no"}, "end": "</f>"},
    ]);
    let old = json!({"type": "structural_tag", "structures": structures, "triggers": ["<f="]});
    let tags = json!([
        tag("<f=look>", &json_of(&seven()), "</f>"),
        tag("<f=hear>", &json_of(&json!({"const": "no"})), "</f>")
    ]);
    let format = json!({"type": "triggered_tags", "triggers": ["<f="], "tags": tags});
    let new = json!({"type": "structural_tag", "format": format});
    for form in [&old, &new] {
        let asked = [
            json!({"response_format": form}),
            json!({"structured_outputs": {"structural_tag": form}}),
            json!({"structured_outputs": {"structural_tag": form.to_string()}}),
        ];
        for asked in &asked {
            let free = "I say <f without a part.";
            assert_eq!(answer(free, asked), (free.to_owned(), "stop".to_owned()));
            let right = "See: <f=look>{\"n\": 7}</f> and <f=hear>\"no\"</f> done.";
            assert_eq!(answer(right, asked), (right.to_owned(), "stop".to_owned()));
            let (text, _) = answer("See: <f=look>{\"n\": 8}</f>", asked);
            let part = between(&text, "See: <f=look>", "</f>");
            assert_eq!(
                serde_json::from_str::<Value>(part).ok(),
                Some(json!({"n": 7})),
                "{text}"
            );
            let (text, _) = answer("Now <f=smell>", asked);
            assert!(
                text.starts_with("Now <f=look>") || text.starts_with("Now <f=hear>"),
                "{text}"
            );
        }
    }
}

#[test]
fn formats_of_the_newer_notation_hold() {
    let look = tag("<l>", &json_of(&seven()), "</l>");
    let under =
        |format: Value| json!({"response_format": {"type": "structural_tag", "format": format}});
    let (text, reason) = answer("Hello.", &under(look.clone()));
    let part = between(&text, "<l>", "</l>").trim();
    assert_eq!(
        (serde_json::from_str::<Value>(part).ok(), reason.as_str()),
        (Some(json!({"n": 7})), "stop")
    );
    let one = json!({"type": "triggered_tags", "triggers": ["<l>"], "tags": [look], "at_least_one": true,
        "stop_after_first": true});
    let (text, reason) = answer("Well, <l>{\"n\": 7}</l> and more.", &under(one));
    assert_eq!(
        (text.as_str(), reason.as_str()),
        ("Well, <l>{\"n\": 7}</l>", "stop")
    );
    let word = |value: &str| json!({"type": "const_string", "value": value});
    let row = json!({"type": "sequence", "elements": [
        word("a/b \"c\" "),
        {"type": "or", "elements": [word("one"), word("two")]},
        {"type": "regex", "pattern": "[0-9]{3}/"},
        {"type": "optional", "content": word("")},
        tag("(", &json!({"type": "any_text"}), ")"),
    ]});
    let said = "a/b \"c\" two123/(anything goes)";
    assert_eq!(answer(said, &under(row)).0, said);
    let list = json!({"type": "tags_with_separator", "separator": "; ", "at_least_one": true,
        "tags": [tag("<", &word("x"), ">"), tag("[", &word("y"), "]")]});
    for said in ["<x>", "<x>; [y]; <x>"] {
        assert_eq!(
            answer(said, &under(list.clone())),
            (said.to_owned(), "stop".to_owned())
        );
    }
}

#[test]
fn what_is_wrong_in_a_structural_tag_is_named() {
    let server = Server::plain();
    let structure = json!({"begin": "<a>", "schema": {}, "end": "</a>"});
    let under = |format: Value| json!({"type": "structural_tag", "format": format});
    let nested = (0..40).fold(
        json!({"type": "any_text"}),
        |inner, _| json!({"type": "star", "content": inner}),
    );
    for (form, word) in [
        (json!({"type": "structural_tag"}), "structures"),
        (
            json!({"type": "structural_tag", "structures": [structure], "triggers": []}),
            "triggers",
        ),
        (
            json!({"type": "structural_tag", "structures": [structure], "triggers": ["<b>"]}),
            "no tag begins with",
        ),
        (
            json!({"type": "structural_tag", "structures": [{"begin": 1}], "triggers": ["<"]}),
            "triggers",
        ),
        (
            json!({"type": "structural_tag", "structures": "x", "triggers": ["<"]}),
            "structures",
        ),
        (under(json!({"type": "qwen_xml_parameter"})), "format.type"),
        (
            under(json!({"type": "tag", "begin": "a", "content": {"type": "grammar"}, "end": "b"})),
            "format.content.type",
        ),
        (under(json!({"type": "const_string"})), "format.value"),
        (
            under(json!({"type": "json_schema", "json_schema": 7})),
            "format.json_schema",
        ),
        (under(json!({"type": "regex", "pattern": "("})), ""),
        (under(nested), "deep"),
        (
            under(
                json!({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}),
            ),
            "last element",
        ),
    ] {
        for asked in [
            json!({"response_format": form}),
            json!({"structured_outputs": {"structural_tag": form}}),
        ] {
            let refused = server.post(CHAT, &with(&hello(), &asked));
            assert_eq!(refused.status, 400, "{asked}: {}", refused.text);
            let error = &refused.json()["error"];
            let param = error["param"].as_str().expect("a field");
            assert!(
                asked
                    .get(param.split('.').next().expect("a name"))
                    .is_some(),
                "{asked}: {error}"
            );
            assert!(
                error["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(word)),
                "{word}: {error}"
            );
        }
    }
    for name in ["disable_any_whitespace", "whitespace_pattern"] {
        let asked = json!({"structured_outputs": {"json": {}, (name): true}});
        let refused = server.post(CHAT, &with(&hello(), &asked)).json();
        assert_eq!(
            refused["error"]["param"],
            format!("structured_outputs.{name}"),
            "{refused}"
        );
        let off = json!({"structured_outputs": {"json": {}, (name): false}});
        assert_eq!(server.post(CHAT, &with(&hello(), &off)).status, 200);
    }
}
