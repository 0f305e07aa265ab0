//! OpenAI's Responses API: its streams, event by event, whole responses, stored ones, and what Codex sends.

use crate::agents::{CALL, lines, named, streaming, thinking};
use crate::document::golden;
use crate::harness::{MODEL, Server, config, post, saying, with};
use crate::templates::post_text;
use axum::body::Body;
use axum::http::Request;
use folio::server::{ResponseBytes, ServerOptions};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";

fn ask() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let tool =
        json!({"type": "function", "name": "get_weather", "parameters": schema, "strict": false});
    json!({"model": MODEL, "input": "What is the weather in Paris?", "tools": [tool], "max_output_tokens": 200})
}

fn text_of(response: &Value) -> &str {
    let mut parts = response["output"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| item["content"][0]["text"].as_str());
    parts
        .next_back()
        .unwrap_or_else(|| panic!("no text: {response}"))
}

#[test]
fn streams_of_responses() {
    let answer = format!("<think>\nHm.\n</think>\n\nI look.\n{CALL}");
    let plain = lines(named(
        &thinking(&[&answer]).post(RESPONSES, &streaming(&ask())),
    ));
    golden("tests/data/http/responses.jsonl", &plain);
    let call = "<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** Begin\"}}\n</tool_call>";
    let other = "<tool_call>\n{\"name\": \"agents__stop\", \"arguments\": {}}\n</tool_call>";
    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /.*/"});
    let patch = json!({"type": "custom", "name": "apply_patch", "format": format});
    let agents = json!({"type": "namespace", "name": "agents__", "tools": [{"type": "function", "name": "stop"}]});
    let reasoning = json!({"summary": "auto", "effort": "low"});
    let more = json!({"tools": [patch, agents, {"type": "web_search"}], "reasoning": reasoning,
        "include": ["reasoning.encrypted_content"], "store": false});
    let server = thinking(&[&format!("<think>\nHm.\n</think>\n\n{call}\n{other}")]);
    let answer = server.post(RESPONSES, &with(&streaming(&ask()), &more));
    assert_eq!(answer.header("x-ignored-tools"), "web_search");
    let events = named(&answer);
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["sequence_number"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    golden("tests/data/http/responses_agents.jsonl", &lines(events));
    let cut = with(
        &streaming(&ask()),
        &json!({"max_output_tokens": 4, "truncation": "auto"}),
    );
    let events = named(&saying(&["One two three four five."]).post(RESPONSES, &cut));
    assert_eq!(
        events.last().expect("an event")["type"],
        "response.incomplete"
    );
    golden("tests/data/http/responses_incomplete.jsonl", &lines(events));
}

#[test]
fn an_input_that_is_too_long_is_cut_if_that_is_asked_for() {
    let server = Server::plain();
    let request = json!({"input": "a ".repeat(4000), "truncation": "auto"});
    let cut = server.post(RESPONSES, &request).json();
    let whole = json!({"input": "Hello!", "max_output_tokens": 1});
    assert_eq!(
        (&cut["truncation"], &cut["usage"]["input_tokens"]),
        (&"auto".into(), &2047.into()),
        "{cut}"
    );
    assert_eq!(
        server.post("/responses", &whole).json()["truncation"],
        "disabled"
    );
    let refused = server.post(
        RESPONSES,
        &with(&request, &json!({"truncation": "disabled"})),
    );
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn a_whole_response_is_the_last_event_of_its_stream() {
    let server = thinking(&[&format!("<think>\nHm.\n</think>\n\nI look.\n{CALL}")]);
    let whole = server.post(RESPONSES, &ask()).json();
    let last = named(&server.post(RESPONSES, &streaming(&ask())))
        .pop()
        .expect("an event");
    assert_eq!(last["type"], "response.completed");
    let kinds = |response: &Value| -> Vec<Value> {
        response["output"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| item["type"].clone())
            .collect()
    };
    assert_eq!(kinds(&whole), ["reasoning", "message", "function_call"]);
    assert_eq!(kinds(&whole), kinds(&last["response"]));
    assert_eq!(
        whole["output"][2]["arguments"],
        "{\"city\": \"Paris\", \"days\": 2}"
    );
    let keys = |response: &Value| {
        response
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&whole), keys(&last["response"]));
    let cut = server
        .post(RESPONSES, &with(&ask(), &json!({"max_output_tokens": 2})))
        .json();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&"incomplete".into(), &"max_output_tokens".into())
    );
}

#[test]
fn the_loop_of_responses_with_and_without_the_store() {
    let server = saying(&[CALL, "It is sunny.", "You are welcome."]);
    let first = server.post(RESPONSES, &ask()).json();
    let call = first["output"][0].clone();
    let result =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"});
    let question = json!({"role": "user", "content": [{"type": "input_text",
        "text": "What is the weather in Paris?"}]});
    let all = server
        .post(
            RESPONSES,
            &with(
                &ask(),
                &json!({"input": [question, call, result], "store": false}),
            ),
        )
        .json();
    assert_eq!(text_of(&all), "It is sunny.");
    let follow = json!({"input": [result], "previous_response_id": first["id"]});
    let second = server.post(RESPONSES, &with(&ask(), &follow)).json();
    assert_eq!(text_of(&second), "It is sunny.");
    assert_eq!(
        second["usage"]["input_tokens"], all["usage"]["input_tokens"],
        "the prompts are the same"
    );
    let third = json!({"input": "Thanks.", "previous_response_id": second["id"]});
    assert_eq!(
        text_of(&server.post(RESPONSES, &with(&ask(), &third)).json()),
        "You are welcome."
    );
    // An item by its id, as clients send that rely on the store.
    let reference = json!({"type": "item_reference", "id": call["id"]});
    let referred = server
        .post(
            RESPONSES,
            &with(&ask(), &json!({"input": [question, reference, result]})),
        )
        .json();
    assert_eq!(text_of(&referred), "It is sunny.");
    assert_eq!(
        server
            .get(&format!(
                "{RESPONSES}/{}",
                all["id"].as_str().expect("an id")
            ))
            .status,
        404,
        "not stored"
    );
}

#[test]
fn an_input_refers_to_items_of_limited_size_however_often() {
    let server = Server::plain();
    // Fields that nobody reads are stored with an item.
    let said =
        json!({"type": "message", "role": "user", "content": "a", "note": "x".repeat(40_000)});
    let first = server.post(RESPONSES, &with(&ask(), &json!({"input": [said]})));
    assert_eq!(first.status, 200, "{}", first.text);
    let id = first.json()["id"].as_str().expect("an id").to_owned();
    let items = server.get(&format!("{RESPONSES}/{id}/input_items")).json();
    let reference = json!({"type": "item_reference", "id": items["data"][0]["id"]});
    let answer = server.post(
        RESPONSES,
        &with(&ask(), &json!({"input": vec![reference; 1000]})),
    );
    assert_eq!(answer.status, 400, "{}", answer.text);
    let error = answer.json()["error"].clone();
    let param = error["param"].as_str().expect("a field");
    let message = error["message"].as_str().expect("a message");
    assert!(
        param.starts_with("input[") && message.contains("33554432"),
        "{error}"
    );
    let missing = json!({"input": [{"type": "item_reference", "id": "msg_none"}]});
    let missing = server.post(RESPONSES, &with(&ask(), &missing));
    assert_eq!(missing.json()["error"]["param"], "input[0]");
}

#[test]
fn stored_responses_are_read_listed_and_deleted_by_their_client() {
    let options = ServerOptions {
        api_keys: vec!["a".into(), "b".into()],
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    let send = |method: &str, path: &str, key: &str, body: Body| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {key}"));
        server.send(
            request
                .header("content-type", "application/json")
                .body(body)
                .expect("a request"),
        )
    };
    let input = json!([{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]);
    let body = json!({"input": input, "max_output_tokens": 4, "metadata": {"k": "v"}}).to_string();
    let made = send("POST", RESPONSES, "a", body.into()).json();
    assert_eq!(made["metadata"], json!({"k": "v"}));
    let path = format!("{RESPONSES}/{}", made["id"].as_str().expect("an id"));
    let get = |path: &str, key: &str| send("GET", path, key, Body::empty());
    assert_eq!(get(&path, "a").json(), made);
    assert_eq!(get(path.trim_start_matches("/v1"), "a").json(), made);
    assert_eq!(get(&path, "b").status, 404);
    let items = get(&format!("{path}/input_items?order=asc&limit=1"), "a").json();
    assert_eq!(
        (items["data"][0]["content"].clone(), &items["has_more"]),
        ("One.".into(), &true.into())
    );
    let rest = format!(
        "{path}/input_items?order=asc&after={}",
        items["last_id"].as_str().expect("an id")
    );
    assert_eq!(get(&rest, "a").json()["data"][0]["content"], "Two.");
    assert_eq!(get(&format!("{path}/input_items?limit=0"), "a").status, 400);
    assert_eq!(send("DELETE", &path, "b", Body::empty()).status, 404);
    assert_eq!(
        send("DELETE", &path, "a", Body::empty()).json()["deleted"],
        true
    );
    let after = json!({"input": "a", "previous_response_id": made["id"]}).to_string();
    let gone = send("POST", RESPONSES, "a", after.into()).json();
    assert_eq!(gone["error"]["code"], "previous_response_not_found");
}

#[test]
fn a_store_without_room_keeps_nothing() {
    let options = ServerOptions {
        response_store_bytes: ResponseBytes(0),
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    let made = server
        .post(
            RESPONSES,
            &json!({"input": "Hello!", "max_output_tokens": 4}),
        )
        .json();
    assert_eq!(
        server
            .get(&format!(
                "{RESPONSES}/{}",
                made["id"].as_str().expect("an id")
            ))
            .status,
        404
    );
}

#[test]
fn thoughts_come_back_sealed() {
    let server = thinking(&["<think>\nHm.\n</think>\n\nYes.", "No."]);
    let request = json!({"input": "Hello!", "include": ["reasoning.encrypted_content"], "store": false,
        "reasoning": {"summary": "auto"}, "max_output_tokens": 100});
    let first = server.post(RESPONSES, &request).json();
    let thought = &first["output"][0];
    assert_eq!(thought["summary"][0]["text"], "Hm.");
    let sealed = thought["encrypted_content"]
        .as_str()
        .expect("a sealed text")
        .to_owned();
    // With the period, which base64 lacks: two letters alone turn up in a signature by chance.
    assert!(!sealed.contains("Hm."));
    // It is accepted with its summary, alone, and broken.
    let forged = format!("{}A", &sealed[..sealed.len() - 1]);
    for sealed in [json!(sealed), json!(forged), json!("x"), Value::Null] {
        let item =
            json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed});
        let input =
            json!([{"role": "user", "content": "a"}, item, {"role": "user", "content": "b"}]);
        assert_eq!(
            server
                .post(RESPONSES, &with(&request, &json!({"input": input})))
                .status,
            200,
            "{sealed}"
        );
    }
}

#[test]
fn what_codex_sends() {
    let server = Server::plain();
    let part = |text: &str| json!([{"type": "input_text", "text": text}]);
    let message = |role: &str, text: &str| {
        json!({"type": "message", "id": "msg_1", "role": role,
        "content": part(text)})
    };
    let input = json!([
        message("developer", "You are an agent."),
        message("developer", "Skills."),
        message("user", "<environment_context/>"),
        message("user", "edit a.txt")
    ]);
    let request = json!({
        "model": MODEL, "stream": true, "input": input, "tool_choice": "auto", "parallel_tool_calls": true,
        "tools": [{"type": "function", "name": "exec_command", "strict": false, "parameters": {"type": "object"}},
            {"type": "web_search", "external_web_access": true}],
        "reasoning": {"summary": "auto"}, "store": false, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "x", "client_metadata": {"turn_id": "x"}, "max_output_tokens": 8,
        // Not from there: a random answer is sometimes empty.
        "temperature": 0,
    });
    assert!(named(&server.post(RESPONSES, &request)).len() > 3);
    let probe = server.post(
        RESPONSES,
        &with(&request, &json!({"input": [], "stream": false})),
    );
    assert_eq!(probe.status, 200, "{}", probe.text);
    let count = server
        .post(
            "/v1/responses/input_tokens",
            &json!({"input": input, "tools": request["tools"]}),
        )
        .json();
    assert!(count["input_tokens"].as_u64() > Some(10));
}

#[test]
fn a_response_has_the_form_that_is_asked_for() {
    let server = Server::plain();
    let properties = json!({"ok": {"type": "boolean"}});
    let schema = json!({"type": "object", "properties": properties, "required": ["ok"]});
    let format = json!({"type": "json_schema", "name": "x", "schema": schema, "strict": true});
    let answer = server
        .post(
            RESPONSES,
            &json!({"input": "Hello!", "text": {"format": format}, "max_output_tokens": 100}),
        )
        .json();
    let object: Value = serde_json::from_str(text_of(&answer)).expect("JSON");
    assert!(object["ok"].is_boolean(), "{object}");
    assert_eq!(answer["text"]["format"], format);
    let include = ["message.output_text.logprobs"];
    let logprobs =
        json!({"input": "Hello!", "include": include, "top_logprobs": 2, "max_output_tokens": 3});
    let answer = server.post(RESPONSES, &logprobs).json();
    let entries = answer["output"][0]["content"][0]["logprobs"]
        .as_array()
        .expect("a list");
    assert!(
        !entries.is_empty()
            && entries.iter().all(|entry| entry["top_logprobs"]
                .as_array()
                .is_some_and(|top| top.len() == 2))
    );
}

#[test]
fn a_stream_of_a_response_that_fails() {
    let server = Server::fake("failed@2", config(), ServerOptions::default());
    let events = named(&server.post(
        RESPONSES,
        &with(&streaming(&ask()), &json!({"max_output_tokens": 50})),
    ));
    let last = events.last().expect("an event");
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&"response.failed".into(), &"failed".into())
    );
    // How much was said before depends on the reader's speed; clients expect the first event in any case.
    let ends = [events.first(), events.last()]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    golden("tests/data/http/responses_failed.jsonl", &lines(ends));
    let long = server
        .send(post(RESPONSES, &json!({"input": "a ".repeat(4000)})))
        .json();
    let (code, message) = (
        &long["error"]["code"],
        long["error"]["message"].as_str().expect("a message"),
    );
    assert_eq!(code, "context_length_exceeded");
    assert!(
        message.starts_with("This model's maximum context length is "),
        "{message}"
    );
}

#[test]
fn long_integers_of_tools_and_schemas_are_given_back_as_they_came() {
    let server = Server::plain();
    let long = "123456789012345678901234567890";
    let parameters =
        json!({"type": "object", "properties": {"id": {"enum": ["N", 1], "default": "N"}}});
    let tool = json!({"type": "function", "name": "look", "parameters": parameters});
    let format =
        json!({"type": "json_schema", "name": "x", "schema": {"const": "N"}, "strict": true});
    for (name, value) in [
        ("tools", json!([tool])),
        ("text", json!({"format": format})),
    ] {
        let request = with(
            &ask(),
            &json!({"model": MODEL, name: value, "max_output_tokens": 40}),
        );
        let given = value.to_string().replace("\"N\"", long);
        let given = &given[1..given.len() - 1];
        let body = request.to_string().replace("\"N\"", long);
        let whole = post_text(&server, RESPONSES, body.clone());
        assert_eq!(whole.status, 200, "{}", whole.text);
        let id = whole.json()["id"].as_str().expect("an id").to_owned();
        let stored = server.get(&format!("{RESPONSES}/{id}"));
        assert_eq!(stored.header("content-type"), "application/json");
        let streamed = body.replacen('{', "{\"stream\": true, ", 1);
        let streamed = post_text(&server, RESPONSES, streamed);
        for text in [&whole.text, &stored.text, &streamed.text] {
            assert!(text.contains(given), "{given} in {text}");
            assert!(!text.contains('\u{FDD5}'), "{text}");
        }
    }
}
