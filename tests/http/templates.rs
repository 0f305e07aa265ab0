//! What chat templates of models demand of a conversation, whatever API it comes from. The templates are the decisive
//! lines of those that models come with.

use crate::harness::{Answer, CHAT, MODEL, Server, config, ids, with};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use folio::model::demo;
use folio::server::ServerOptions;
use folio::text::TextModel;
use serde_json::{Value, json};
use std::sync::Arc;

/// A server on the fake device whose model has this template.
fn server(template: &str) -> Server {
    let text = TextModel::from_parts(
        Some(demo::TOKENIZER_JSON),
        Some(demo::TOKENIZER_CONFIG_JSON),
        Some(template),
    );
    Server::fake_with(
        "",
        config(),
        ServerOptions::default(),
        Arc::new(text.expect("a template")),
    )
}

/// A server that tells what its template sees, as the reason of a refusal.
fn telling(traits: &str, told: &str) -> Server {
    server(&format!(
        "{{# tool_calls {traits} #}}{{{{ raise_exception({told}|tojson) }}}}"
    ))
}

/// Requests for an answer to the same conversation on every route: a question, a thought with two calls, and results.
fn after_calls(ids: [&str; 2]) -> [(&'static str, Value); 4] {
    let function = |arguments: Value| json!({"name": "look", "arguments": arguments});
    let call = |id: &str, arguments: Value| json!({"id": id, "type": "function", "function": function(arguments)});
    let result =
        |id: &str| json!({"role": "tool", "tool_call_id": id, "content": format!("result {id}")});
    let user = json!({"role": "user", "content": "Look."});
    let calls = [
        call(ids[0], json!("{\"at\": \"a\"}")),
        call(ids[1], json!("")),
    ];
    let asked = json!({"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": calls});
    let chat = json!({"model": MODEL, "max_tokens": 1, "messages": [user, asked, result(ids[0]), result(ids[1])]});
    let used = |id: &str, input: Value| json!({"type": "tool_use", "id": id, "name": "look", "input": input});
    let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": "s"});
    let found = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": format!("result {id}")});
    let messages = json!({"model": MODEL, "max_tokens": 1, "messages": [user,
        {"role": "assistant", "content": [thought, used(ids[0], json!({"at": "a"})), used(ids[1], json!({}))]},
        {"role": "user", "content": [found(ids[0]), found(ids[1])]}]});
    let item = |id: &str, arguments: &str| {
        with(
            &json!({"type": "function_call", "call_id": id}),
            &function(arguments.into()),
        )
    };
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": format!("result {id}")});
    let reasoning =
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]});
    let responses = json!({"model": MODEL, "max_output_tokens": 16, "store": false, "input": [user, reasoning,
        item(ids[0], "{\"at\": \"a\"}"), item(ids[1], ""), output(ids[0]), output(ids[1])]});
    let bare = |arguments: Value| json!({"function": function(arguments)});
    let told =
        |id: &str| json!({"role": "tool", "tool_name": "look", "content": format!("result {id}")});
    let ollama = json!({"model": MODEL, "stream": false, "options": {"num_predict": 1}, "messages": [user,
        {"role": "assistant", "content": "", "thinking": "Hm.",
            "tool_calls": [bare(json!({"at": "a"})), bare(Value::Null)]}, told(ids[0]), told(ids[1])]});
    [
        (CHAT, chat),
        ("/v1/messages", messages),
        ("/v1/responses", responses),
        ("/api/chat", ollama),
    ]
}

fn refused(answer: &Answer) -> String {
    let error = answer.json()["error"].clone();
    error["message"]
        .as_str()
        .or(error.as_str())
        .unwrap_or_else(|| panic!("a refusal: {}", answer.text))
        .to_owned()
}

/// What a telling server's template saw.
fn seen(server: &Server, path: &str, request: &Value) -> Value {
    let told = refused(&server.post(path, request));
    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{path}: {error}: {told}"))
}

#[test]
fn templates_see_the_same_conversation_whatever_the_api() {
    // One after the other, because a refusal is short.
    let servers = [1, 2, 3, 4].map(|at| {
        telling(
            "<|channel|> tool_calls[0] message.thinking",
            &format!("[messages|length, messages[{at}]]"),
        )
    });
    for (path, request) in after_calls(["a1", "b2"]) {
        let seen = [0, 1, 2, 3].map(|at| {
            let told = seen(&servers[at], path, &request);
            assert_eq!(told[0], 5, "{path}: {told}");
            told[1].clone()
        });
        let roles = [0, 1, 2, 3].map(|at| &seen[at]["role"]);
        assert_eq!(roles, ["assistant", "tool", "assistant", "tool"], "{path}");
        for name in ["reasoning_content", "reasoning", "thinking"] {
            assert_eq!(
                (&seen[0][name], &seen[2][name]),
                (&json!("Hm."), &Value::Null),
                "{path}: {name}"
            );
        }
        let arguments = |at: usize| seen[at]["tool_calls"][0]["function"]["arguments"].clone();
        assert_eq!(
            (arguments(0), arguments(2)),
            (json!({"at": "a"}), json!({})),
            "{path}"
        );
        for at in [0, 2] {
            assert_eq!(
                seen[at]["tool_calls"][0]["id"],
                seen[at + 1]["tool_call_id"],
                "{path}"
            );
        }
        assert_eq!(
            (&seen[1]["content"], &seen[3]["content"]),
            (&json!("result a1"), &json!("result b2")),
            "{path}"
        );
    }
}

#[test]
fn a_template_that_demands_ids_of_nine_letters_takes_any_call() {
    let template = "{# [TOOL_CALLS] #}{% for message in messages %}{% for call in message.tool_calls or [] %}\
        {% if call.id is not defined or call.id|length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}\
        {{ call.id }}{% endfor %}{% if message.role == 'tool' %}{% if message.tool_call_id is not defined or \
        message.tool_call_id|length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}\
        {{ message.tool_call_id }}{% endif %}{% endfor %}x";
    let server = server(template);
    for ids in [
        ["toolu_0123456789", "call_fedcba9876543210"],
        ["a", "b"],
        ["abcdefghi", "123456789"],
    ] {
        for (path, request) in after_calls(ids) {
            let answer = server.post(path, &request);
            assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        }
    }
}

#[test]
fn a_template_that_goes_through_arguments_takes_calls_without_any() {
    let server = server(
        "{% for message in messages %}{% for call in message.tool_calls or [] %}<function={{ call.function.name }}>\
        {% for key, value in call.function.arguments|items %}{{ key }}={{ value }};{% endfor %}{% endfor %}\
        {% endfor %}x",
    );
    let messages = |arguments: Value| {
        let call = json!({"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}});
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]})
    };
    for none in [
        json!("{}"),
        json!(""),
        json!(" "),
        Value::Null,
        json!("null"),
        json!({}),
    ] {
        let answer = server.post("/apply-template", &messages(none.clone()));
        assert_eq!(
            answer.json()["prompt"],
            "<function=look>x",
            "{none}: {}",
            answer.text
        );
    }
    assert_eq!(
        server
            .post("/apply-template", &messages(json!("{\"a\": 1}")))
            .json()["prompt"],
        "<function=look>a=1;x"
    );
    for broken in ["{", "[1]", "no"] {
        let answer = server.post("/apply-template", &messages(json!(broken)));
        let field = "messages[1].tool_calls[0].function.arguments";
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(field))
        );
    }
}

/// As transformers renders them; a template that would write a list gets a text.
#[test]
fn parts_of_the_user_stay_parts_where_the_template_shows_them() {
    let messages = json!([
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]},
        {"role": "user", "content": [{"type": "text", "text": "One"}]},
    ]);
    let shown = "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content \
        %}{{ p.text }}{% endfor %}{% endif %}]{% endfor %}";
    let written = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    for (template, expected) in [
        (shown, "[Be\nbrief.][Hi there][One]"),
        (written, "[Be\nbrief.][Hi\n there][One]"),
    ] {
        let server = server(template);
        let answer = server.post("/apply-template", &json!({"messages": messages}));
        assert_eq!(answer.json()["prompt"], expected);
        let request = json!({"model": MODEL, "messages": messages, "max_tokens": 1});
        let answer = server.post("/v1/chat/completions", &request);
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
}

#[test]
fn a_prompt_ends_with_exactly_the_text_that_is_continued() {
    let own = std::str::from_utf8(demo::TOKENIZER_CONFIG_JSON).expect("JSON is text");
    let own: Value = serde_json::from_str(own).expect("JSON");
    let own = own["chat_template"].as_str().expect("a template");
    let marked = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
        {% endfor %}";
    let trimming = marked.replace("message.content", "message.content|trim");
    let texts = [
        "|",
        ">",
        "|>",
        "_",
        "e",
        "d",
        "i",
        "im",
        "end",
        "<",
        "<|",
        "<|im_end|>",
        "x",
        "",
        " ",
        "\n",
        "e ",
        "{",
    ];
    for (template, trims) in [(own, false), (marked, false), (trimming.as_str(), true)] {
        let server = server(template);
        for text in texts {
            let messages =
                json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]);
            let request = json!({"messages": messages, "add_generation_prompt": false, "continue_final_message": true});
            let answer = server.post("/apply-template", &request);
            let prompt = answer.json()["prompt"]
                .as_str()
                .unwrap_or_else(|| panic!("{}", answer.text))
                .to_owned();
            let shown = if trims { text.trim() } else { text };
            assert!(
                prompt.ends_with(&format!("<|im_start|>assistant\n{shown}")),
                "{text:?}: {prompt:?}"
            );
            let rendered = server.post(
                "/v1/chat/completions/render",
                &with(&request, &json!({"model": MODEL})),
            );
            let ends = rendered.json()["token_ids"].as_array().expect("ids").len();
            let whole = ids(&format!("<|im_start|>assistant\n{shown}")).len();
            assert!(ends >= whole, "{text:?}: {}", rendered.text);
        }
    }
}

#[test]
fn tools_are_described_by_the_user_where_instructions_are_refused() {
    let gemma = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
        {% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Conversation roles must alternate') }}{% endif %}<|im_start|>{{ message['role'] }}\n\
        {{ message['content'] | trim }}<|im_end|>\n{% endfor %}";
    let server = server(gemma);
    let parameters = json!({"type": "object", "properties": {}});
    let function = json!({"name": "look", "description": "Looks.", "parameters": parameters});
    let chat = json!([{"type": "function", "function": function}]);
    let responses = json!([{"type": "function", "name": "look", "parameters": parameters}]);
    let messages = json!([{"name": "look", "input_schema": parameters}]);
    for (path, request) in after_calls(["a1", "b2"]) {
        let tools = match path {
            "/v1/messages" => &messages,
            "/v1/responses" => &responses,
            _ => &chat,
        };
        let answer = server.post(path, &with(&request, &json!({"tools": tools})));
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    }
    let user = json!({"role": "user", "content": "Weather?"});
    let system = json!({"role": "system", "content": "Be kind."});
    let prompt = |messages: Value| {
        let answer = server.post(
            "/apply-template",
            &json!({"messages": messages, "tools": chat}),
        );
        answer.json()["prompt"]
            .as_str()
            .unwrap_or_else(|| panic!("{}", answer.text))
            .to_owned()
    };
    let shown = prompt(json!([user]));
    assert!(
        shown.starts_with("<|im_start|>user\nYou can call") && shown.contains("Looks."),
        "{shown}"
    );
    assert!(shown.contains("\nWeather?<|im_end|>"), "{shown}");
    assert!(prompt(json!([system, user])).contains("Be kind."));
    // Without tools, the template decides.
    let refused = server.post("/apply-template", &json!({"messages": [system, user]}));
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
}

#[test]
fn a_tool_needs_neither_a_description_nor_parameters() {
    let harmony = "{% for tool in tools or [] %}{{ '// ' + tool.function.description + '\\n' }}{{ tool.function.name }}\
        {% for key, spec in (tool.function.parameters.properties or {}).items() %}\
        {% if spec.enum or spec.oneOf %}{{ '// default: ' + spec.default }}{% endif %}{% endfor %}{% endfor %}x";
    let seed = "{% for tool in tools or [] %}{{ tool.function.name }}\
        {% for key, spec in tool.function.parameters.properties.items() %}{{ key }}{% endfor %}{% endfor %}x";
    let choice = |default: Value| json!({"type": "object", "properties": {"a": {"enum": [1, 2], "default": default}}});
    for template in [harmony, seed] {
        let server = server(template);
        for parameters in [
            Value::Null,
            json!({}),
            json!({"type": "object"}),
            choice(json!(1)),
            choice(json!(true)),
        ] {
            for description in [Value::Null, json!("Looks.")] {
                let function =
                    json!({"name": "look", "description": description, "parameters": parameters});
                let tool = with(&function, &json!({"type": "function"}));
                let block =
                    json!({"name": "look", "description": description, "input_schema": parameters});
                let chat = json!([{"type": "function", "function": function}]);
                let user = json!([{"role": "user", "content": "a"}]);
                let ask = json!({"model": MODEL, "messages": user, "max_tokens": 1});
                for (path, request) in [
                    (CHAT, with(&ask, &json!({"tools": chat}))),
                    ("/v1/messages", with(&ask, &json!({"tools": [block]}))),
                    (
                        "/v1/responses",
                        json!({"model": MODEL, "input": "a", "max_output_tokens": 16, "tools": [tool]}),
                    ),
                    (
                        "/api/chat",
                        json!({"model": MODEL, "stream": false, "messages": user, "tools": chat}),
                    ),
                ] {
                    let answer = server.post(path, &request);
                    assert_eq!(
                        answer.status,
                        StatusCode::OK,
                        "{path}: {function}: {}",
                        answer.text
                    );
                }
            }
        }
        let nameless = json!({"messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function", "function": {"name": "look"}}]});
        let prompt = server.post("/apply-template", &nameless).json()["prompt"].clone();
        assert!(
            prompt.as_str().is_some_and(|text| text.contains("look")),
            "{prompt}"
        );
    }
}

#[test]
fn a_tool_is_shown_alike_whatever_the_api() {
    let server = telling("", "tools");
    let parameters = json!({"type": "object", "properties": {"at": {"type": "string"}}});
    let function = json!({"name": "look", "description": "Looks.", "parameters": parameters});
    let chat = json!([{"type": "function", "function": function}]);
    let user = json!([{"role": "user", "content": "a"}]);
    let item = with(&json!({"type": "function"}), &function);
    let block = json!({"input_schema": parameters, "description": "Looks.", "name": "look"});
    for (path, request) in [
        (
            CHAT,
            json!({"model": MODEL, "messages": user, "tools": chat}),
        ),
        (
            "/v1/messages",
            json!({"model": MODEL, "messages": user, "max_tokens": 1, "tools": [block]}),
        ),
        (
            "/v1/responses",
            json!({"model": MODEL, "input": "a", "tools": [item]}),
        ),
        (
            "/api/chat",
            json!({"model": MODEL, "messages": user, "tools": chat}),
        ),
    ] {
        // As text, because the order counts.
        assert_eq!(
            seen(&server, path, &request).to_string(),
            chat.to_string(),
            "{path}"
        );
    }
}

#[test]
fn results_stand_directly_after_their_calls() {
    let server = telling("", "messages[1:]");
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": id});
    let text = json!({"type": "text", "text": "Go on."});
    let used = |id: &str| json!({"type": "tool_use", "id": id, "name": "look", "input": {}});
    for content in [
        json!([text, result("a"), result("b")]),
        json!([result("a"), text, result("b")]),
        json!([result("a"), result("b"), text]),
    ] {
        let messages = json!([{"role": "user", "content": "Look."},
            {"role": "assistant", "content": [used("a"), used("b")]}, {"role": "user", "content": content}]);
        let seen = seen(
            &server,
            "/v1/messages",
            &json!({"model": MODEL, "max_tokens": 1, "messages": messages}),
        );
        let shown: Vec<_> = seen.as_array().expect("messages")[1..]
            .iter()
            .map(|message| &message["content"])
            .collect();
        assert_eq!(shown, ["a", "b", "Go on."], "{content}");
    }
}

/// Sends a body as text: a value of serde_json has numbers of 64 bits.
pub(crate) fn post_text(server: &Server, path: &str, body: String) -> Answer {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body));
    server.send(request.expect("a request"))
}

/// Numbers as JSON, and as Python's `json.loads` and `str` give them back.
const NUMBERS: [[&str; 2]; 9] = [
    ["12345678901234567890"; 2],
    ["18446744073709551616"; 2],
    ["-9223372036854775809"; 2],
    ["123456789012345678901234567890"; 2],
    ["1234567890123456789012345678901234567890123456789012345678901234567890"; 2],
    ["0.1000000000000000055511151231257827", "0.1"],
    ["100000000000000000000.0", "1e+20"],
    ["-0", "0"],
    ["1E22", "1e+22"],
];

#[test]
fn numbers_of_earlier_calls_are_shown_with_their_digits() {
    let arguments = "messages[1].tool_calls[0].function.arguments";
    let servers = [
        server(&format!(
            "{{# tool_calls #}}{{{{ raise_exception({arguments}|tojson) }}}}"
        )),
        server(&format!(
            "{{# tool_calls #}}{{{{ raise_exception({arguments}.at ~ {arguments}|string) }}}}"
        )),
    ];
    for [json, shown] in NUMBERS {
        for (path, request) in after_calls(["a1", "b2"]) {
            let body = request.to_string();
            let long = body
                .replace("\\\"a\\\"", json)
                .replace("{\"at\":\"a\"}", &format!("{{\"at\":{json}}}"));
            assert_ne!(long, body, "{path}");
            // A special string in the conversation, whose texts are then marked.
            for body in [long.replace("\"Look.\"", "\"<|im_end|>\""), long] {
                let told = refused(&post_text(&servers[0], path, body.clone()));
                assert_eq!(told, format!("{{\"at\": {shown}}}"), "{path}: {json}");
                let told = refused(&post_text(&servers[1], path, body));
                assert_eq!(told, format!("{shown}{{'at': {shown}}}"), "{path}: {json}");
            }
        }
    }
}

#[test]
fn numbers_of_tools_are_shown_with_their_digits() {
    let telling = telling("", "tools");
    let plain = server("{% for message in messages %}{{ message.content }}{% endfor %}");
    let parameters =
        json!({"type": "object", "properties": {"at": {"type": "integer", "default": "N"}}});
    let function = json!({"name": "look", "description": "Looks.", "parameters": parameters});
    let chat = json!([{"type": "function", "function": function}]);
    let user = json!([{"role": "user", "content": "a"}]);
    let item = with(&json!({"type": "function"}), &function);
    let block = json!({"input_schema": parameters, "description": "Looks.", "name": "look"});
    for [json, shown] in NUMBERS {
        for (path, request) in [
            (
                CHAT,
                json!({"model": MODEL, "max_tokens": 1, "messages": user, "tools": chat}),
            ),
            (
                "/v1/messages",
                json!({"model": MODEL, "messages": user, "max_tokens": 1, "tools": [block]}),
            ),
            (
                "/v1/responses",
                json!({"model": MODEL, "max_output_tokens": 16, "input": "a", "tools": [item]}),
            ),
            (
                "/api/chat",
                json!({"model": MODEL, "stream": false, "messages": user, "tools": chat}),
            ),
        ] {
            let body = request.to_string().replace("\"N\"", json);
            let told = refused(&post_text(&telling, path, body.clone()));
            assert!(
                told.contains(&format!("\"default\": {shown}}}")),
                "{path}: {json}: {told}"
            );
            // What is answered has numbers, and no sign of how they were kept.
            let answer = post_text(&plain, path, body);
            assert_eq!(
                answer.status,
                StatusCode::OK,
                "{path}: {json}: {}",
                answer.text
            );
            assert!(
                !answer.text.contains('\u{FDD5}'),
                "{path}: {json}: {}",
                answer.text
            );
        }
        let body = json!({"messages": user, "tools": chat})
            .to_string()
            .replace("\"N\"", json);
        let prompt = post_text(&plain, "/apply-template", body).json()["prompt"].to_string();
        assert!(
            shown.contains(['.', 'e']) || prompt.contains(&format!("default\\\":{shown}}}")),
            "{json}: {prompt}"
        );
    }
}

#[test]
fn numbers_of_template_settings_are_shown_and_others_have_64_bits() {
    let server = server("{{ raise_exception(x|tojson ~ (x is integer) ~ (x is callable)) }}");
    let [long, more] = [
        "123456789012345678901234567890",
        "1234567890123456789012345678901234567890123",
    ];
    for number in [long, more] {
        let body = json!({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": "N"}});
        let told = refused(&post_text(
            &server,
            "/apply-template",
            body.to_string().replace("\"N\"", number),
        ));
        assert_eq!(told, format!("{number}TrueFalse"));
    }
    // Where an object is expected, a number is none.
    let call = json!({"type": "function", "function": {"name": "look", "arguments": "N"}});
    let used = json!({"type": "tool_use", "id": "a", "name": "look", "input": "N"});
    let user = json!({"role": "user", "content": "a"});
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": "N"}});
    let ask = json!({"model": MODEL, "max_tokens": 1, "messages": [user]});
    for (path, request, field) in [
        (
            CHAT,
            with(
                &ask,
                &json!({"messages": [user, {"role": "assistant", "tool_calls": [call]}]}),
            ),
            "arguments",
        ),
        (
            "/v1/messages",
            with(
                &ask,
                &json!({"messages": [user, {"role": "assistant", "content": [used]}]}),
            ),
            "input",
        ),
        (CHAT, with(&ask, &json!({"tools": [tool]})), "parameters"),
        (
            CHAT,
            with(&ask, &json!({"chat_template_kwargs": "N"})),
            "chat_template_kwargs",
        ),
        (
            CHAT,
            with(
                &ask,
                &json!({"messages": [{"role": "user", "content": "N"}]}),
            ),
            "content",
        ),
    ] {
        let answer = post_text(&server, path, request.to_string().replace("\"N\"", long));
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{path}: {}",
            answer.text
        );
        assert!(
            answer.text.contains(&format!("{field}` must be")),
            "{path}: {}",
            answer.text
        );
    }
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "a"}], "seed": "N"});
    let answer = post_text(&server, CHAT, body.to_string().replace("\"N\"", long));
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    assert!(
        answer.text.contains("`seed`") && !answer.text.contains('\u{FDD5}'),
        "{}",
        answer.text
    );
}

#[test]
fn enable_thinking_switches_thinking_unless_a_variable_does() {
    let told = "{{ [reasoning_effort|default(0), enable_thinking|default(0), thinking|default(0)]|tojson }}";
    let server = server(told);
    let chat = json!({"messages": [{"role": "user", "content": "Hello!"}]});
    let (on, off) = (
        json!({"enable_thinking": true}),
        json!({"enable_thinking": false}),
    );
    for (switches, told) in [
        (on.clone(), json!([0, true, true])),
        (off.clone(), json!([0, false, false])),
        (
            with(&off, &json!({"reasoning_effort": "high"})),
            json!(["high", false, false]),
        ),
        (
            with(&on, &json!({"chat_template_kwargs": off})),
            json!([0, false, 0]),
        ),
    ] {
        let reply = server.post("/apply-template", &with(&chat, &switches));
        let prompt = reply.json()["prompt"].clone();
        let seen: Option<Value> = prompt
            .as_str()
            .and_then(|prompt| serde_json::from_str(prompt).ok());
        assert_eq!(seen, Some(told), "{switches}: {}", reply.text);
    }
}

/// What the template of each route that renders one sees when a request says how to think: in the words of its API, and
/// by variables.
#[test]
fn thinking_is_switched_on_every_route_that_renders_a_template() {
    let server = telling(
        "",
        "[reasoning_effort|default(0), enable_thinking|default(0), thinking|default(0)]",
    );
    let chat = json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    let answered = json!({"model": MODEL, "input": "Hello!"});
    let sees = |path: &str, base: &Value, more: Value| {
        let answer = server.post(path, &with(base, &more));
        let text = answer.text.replace("\\\"", "\"");
        let from = text.find('[').unwrap_or_else(|| panic!("{path}: {text}"));
        let told = &text[from..=text[from..].find(']').expect("a list") + from];
        serde_json::from_str::<Value>(told)
            .unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    };
    let (effort, nested) = (
        |effort: &str| json!({"reasoning_effort": effort}),
        |name: &str, effort: &str| json!({ (name): {"effort": effort} }),
    );
    for path in [
        CHAT,
        "/v1/chat/completions/render",
        "/apply-template",
        "/tokenize",
    ] {
        for (word, is_on) in [
            ("none", false),
            ("minimal", true),
            ("low", true),
            ("high", true),
        ] {
            assert_eq!(
                sees(path, &chat, effort(word)),
                json!([word, is_on, is_on]),
                "{path}"
            );
        }
    }
    for path in ["/v1/responses", "/v1/responses/input_tokens"] {
        for (word, is_on) in [
            ("none", false),
            ("minimal", true),
            ("low", true),
            ("high", true),
        ] {
            assert_eq!(
                sees(path, &answered, nested("reasoning", word)),
                json!([word, is_on, is_on]),
                "{path}"
            );
        }
    }
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        assert_eq!(
            sees(path, &chat, nested("output_config", "high")),
            json!(["high", false, false]),
            "{path}"
        );
        let adaptive = json!({"thinking": {"type": "adaptive"}});
        assert_eq!(
            sees(path, &chat, adaptive),
            json!([0, true, true]),
            "{path}"
        );
    }
    let generate = json!({"model": MODEL, "prompt": "Hello!"});
    for (path, base) in [("/api/chat", &chat), ("/api/generate", &generate)] {
        assert_eq!(
            sees(path, base, json!({"think": "high"})),
            json!(["high", true, true]),
            "{path}"
        );
        assert_eq!(
            sees(path, base, json!({"think": false})),
            json!([0, false, false]),
            "{path}"
        );
    }
    // Variables of the request come last, whatever else it says.
    for (path, base, more) in [
        (CHAT, &chat, effort("high")),
        ("/apply-template", &chat, effort("high")),
        ("/tokenize", &chat, effort("high")),
        ("/v1/responses", &answered, nested("reasoning", "high")),
        (
            "/v1/responses/input_tokens",
            &answered,
            nested("reasoning", "high"),
        ),
        (
            "/v1/messages",
            &chat,
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        ),
        ("/api/chat", &chat, json!({"think": "high"})),
        ("/api/generate", &generate, json!({"think": "high"})),
    ] {
        let own = with(
            &more,
            &json!({"chat_template_kwargs": {"enable_thinking": false}}),
        );
        assert_eq!(sees(path, base, own), json!(["high", false, 0]), "{path}");
        let both = with(
            &more,
            &json!({"chat_template_kwargs": {"thinking": 1, "reasoning_effort": "x"}}),
        );
        assert_eq!(sees(path, base, both), json!(["x", 0, 1]), "{path}");
        let template = server.post(path, &with(base, &json!({"chat_template": "x"})));
        assert!(
            template.text.contains("--chat-template"),
            "{path}: {}",
            template.text
        );
    }
}
