//! Tests of `server/parameters/prepared.rs`.

use super::*;

fn call(id: &str, arguments: &Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}})
}

#[test]
fn calls_without_arguments_have_an_empty_object() {
    let none = [
        Value::Null,
        json!(""),
        json!(" \n"),
        json!("null"),
        json!("{}"),
        json!({}),
    ];
    let calls: Vec<_> = none.iter().map(|arguments| call("1", arguments)).collect();
    let absent = json!({"id": "1", "function": {"name": "look"}});
    let calls: Vec<_> = calls.into_iter().chain([absent]).collect();
    let messages = vec![json!({"role": "assistant", "content": "", "tool_calls": calls})];
    assert_eq!(unreadable_arguments(&messages), None);
    for call in prepare(messages, TemplateForm::default())[0]["tool_calls"]
        .as_array()
        .expect("calls")
    {
        assert_eq!(call["function"]["arguments"], json!({}), "{call}");
    }
    for broken in ["{", "[1]", "7", "\"{}\""] {
        let calls = [call("1", &json!({"a": 1})), call("2", &json!(broken))];
        let messages = [
            json!({"role": "user", "content": ""}),
            json!({"role": "assistant", "tool_calls": calls}),
        ];
        assert_eq!(unreadable_arguments(&messages), Some((1, 1)), "{broken}");
    }
}

#[test]
fn a_thought_has_every_name() {
    for name in THOUGHTS {
        let other = if name == "thinking" {
            "reasoning"
        } else {
            "thinking"
        };
        let messages = vec![
            json!({"role": "assistant", "content": "x", (name): "Hm.", (other): null}),
            json!({"role": "assistant", "content": "x", (other): null}),
            json!({"role": "user", "content": "x", (name): "Hm."}),
        ];
        let prepared = prepare(messages, TemplateForm::default());
        assert!(
            THOUGHTS.iter().all(|name| prepared[0][name] == "Hm."),
            "{name}"
        );
        assert_eq!(prepared[1], json!({"role": "assistant", "content": "x"}));
        assert_eq!(
            prepared[2],
            json!({"role": "user", "content": "x", (name): "Hm."})
        );
    }
}

#[test]
fn ids_of_calls_are_short_where_the_template_demands_it() {
    let messages = |ids: [&str; 2]| {
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
        let calls = ids.map(|id| call(id, &json!({})));
        vec![
            json!({"role": "assistant", "tool_calls": calls}),
            result(ids[1]),
            result(ids[0]),
        ]
    };
    let form = TemplateForm::of("[TOOL_CALLS]");
    for ids in [
        ["toolu_01", "call_2"],
        ["abcDEF123", "abc"],
        ["a b c d e", "äöüß"],
    ] {
        let prepared = prepare(messages(ids), form);
        let [first, second] = [0, 1].map(|call| {
            prepared[0]["tool_calls"][call]["id"]
                .as_str()
                .expect("an id")
        });
        let fits = |id: &str| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(
            fits(first) && fits(second) && first != second,
            "{first} {second}"
        );
        assert_eq!(
            [&prepared[2]["tool_call_id"], &prepared[1]["tool_call_id"]],
            [first, second]
        );
        assert_eq!(first == ids[0], fits(ids[0]), "an id that fits stays");
        let kept = prepare(messages(ids), TemplateForm::default());
        assert_eq!(kept[0]["tool_calls"][0]["id"], ids[0]);
    }
    // Without ids, results belong to the calls in their order, or by name.
    let mut calls = [
        call("", &json!({})),
        call("", &json!({})),
        call("", &json!({})),
    ];
    calls[2]["function"]["name"] = "hear".into();
    let result = |name: Option<&str>| json!({"role": "tool", "name": name, "content": ""});
    let asked = json!({"role": "assistant", "tool_calls": calls});
    let prepared = prepare(
        vec![asked, result(None), result(Some("hear")), result(None)],
        form,
    );
    let ids = [0, 1, 2].map(|call| {
        prepared[0]["tool_calls"][call]["id"]
            .as_str()
            .expect("an id")
    });
    assert!(ids[0] != ids[1] && ids[1] != ids[2]);
    assert_eq!(
        [1, 2, 3].map(|at| &prepared[at]["tool_call_id"]),
        [ids[0], ids[2], ids[1]]
    );
}

#[test]
fn a_template_of_single_calls_gets_one_message_for_each() {
    let asked = json!({"role": "assistant", "content": "I look.", "thinking": "Hm.",
            "tool_calls": [call("1", &json!({"a": 1})), call("2", &json!({}))]});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
    let messages = vec![
        asked,
        result("2"),
        result("1"),
        json!({"role": "user", "content": "x"}),
    ];
    let harmony = "<|channel|> message.thinking tool_calls[0]";
    let prepared = prepare(messages.clone(), TemplateForm::of(harmony));
    let roles: Vec<_> = prepared
        .iter()
        .map(|message| message["role"].as_str().expect("a role"))
        .collect();
    assert_eq!(roles, ["assistant", "tool", "assistant", "tool", "user"]);
    assert_eq!(
        (&prepared[0]["thinking"], &prepared[0]["content"]),
        (&json!("Hm.\n\nI look."), &json!(""))
    );
    assert_eq!(
        (&prepared[2]["thinking"], &prepared[2]["content"]),
        (&Value::Null, &json!(""))
    );
    assert_eq!(
        [&prepared[1]["content"], &prepared[3]["content"]],
        ["1", "2"]
    );
    for all in [
        "tool_calls[0] {% for call in message.tool_calls %}",
        "tool_calls[0] {%- for call in turn['tool_calls'] -%}",
    ] {
        assert_eq!(prepare(messages.clone(), TemplateForm::of(all)).len(), 4);
    }
}

/// What a template calls a message says nothing about what it takes.
#[test]
fn the_form_of_a_template_does_not_depend_on_its_names() {
    for thoughts in [".thinking", "['thinking']", "[\"thinking\"]"] {
        let form = TemplateForm::of(&format!("<|channel|> {{{{ turn{thoughts} }}}}"));
        assert!(form.has_thought_or_content, "{thoughts}");
    }
    for (template, has_only_parts) in [
        ("{% for part in m.content %}", true),
        ("{%- for part in turn[\"content\"] -%}", true),
        (
            "{% for part in m.content %}{% if m.content is string %}",
            false,
        ),
        ("{% if '</think>' in message.content %}", false),
        ("{{ message.content }}", false),
    ] {
        let form = TemplateForm::of(template);
        assert_eq!(form.has_only_parts, has_only_parts, "{template}");
    }
}

#[test]
fn a_thought_is_a_part_of_the_content_where_the_template_reads_parts() {
    let form = TemplateForm::of("{% if block['type'] == 'thinking' %}");
    let message =
        |content: &str| json!({"role": "assistant", "content": content, "reasoning": "Hm."});
    let prepared = prepare(
        vec![
            message("Yes."),
            message(""),
            json!({"role": "assistant", "content": "x"}),
        ],
        form,
    );
    let thought = json!({"type": "thinking", "thinking": "Hm.", "closed": true});
    assert_eq!(
        prepared[0]["content"],
        json!([thought, {"type": "text", "text": "Yes."}])
    );
    assert_eq!(prepared[1]["content"], json!([thought]));
    assert_eq!(prepared[2]["content"], "x");
}

#[test]
fn a_template_that_goes_through_parts_gets_parts() {
    let smolvlm =
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}";
    let messages = || {
        let parts = json!([{"type": "image"}, {"type": "text", "text": "b"}]);
        vec![
            json!({"role": "system", "content": "a"}),
            json!({"role": "user", "content": parts}),
        ]
    };
    let prepared = prepare(messages(), TemplateForm::of(smolvlm));
    assert_eq!(
        prepared[0]["content"],
        json!([{"type": "text", "text": "a"}])
    );
    assert_eq!(prepared[1], messages()[1]);
    for other in [
        "{{ message['content'] }}",
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for p in message['content'] %}",
    ] {
        assert_eq!(prepare(messages(), TemplateForm::of(other)), messages());
    }
}

#[test]
fn images_of_results_come_behind_them_in_their_order() {
    let image = |name: &str| json!({"type": "image", "name": name});
    let text = |text: &str| json!({"type": "text", "text": text});
    let result = |content: Value| json!({"role": "tool", "content": content});
    let moved = with_images_behind_results(vec![
        result(json!([text("a"), image("1")])),
        result("b".into()),
        result(json!([image("2")])),
        json!({"role": "user", "content": "c"}),
        json!({"role": "assistant", "content": "d"}),
        result(json!([image("3")])),
        json!({"role": "assistant", "content": "e"}),
        result(json!([image("4")])),
    ]);
    let shown = "[an image, shown below]";
    let expected = vec![
        result(format!("a\n{shown}").into()),
        result("b".into()),
        result(shown.into()),
        json!({"role": "user", "content": [image("1"), image("2"), text("c")]}),
        json!({"role": "assistant", "content": "d"}),
        result(shown.into()),
        json!({"role": "user", "content": [image("3")]}),
        json!({"role": "assistant", "content": "e"}),
        result(shown.into()),
        json!({"role": "user", "content": [image("4")]}),
    ];
    assert_eq!(moved, expected);
}
