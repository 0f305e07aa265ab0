//! Structured output over HTTP: valid for any sampled tokens, batched with free answers, and combined with the other
//! fields.

use crate::harness::{self, Answer, CHAT, COMPLETIONS, MODEL, Server, hello, merged, with};
use crate::speculation;
use crate::templates::post_text;
use regex::Regex;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

fn content(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let choice = &answer.json()["choices"][0];
    choice["text"]
        .as_str()
        .or(choice["message"]["content"].as_str())
        .expect("a text")
        .to_owned()
}

fn person() -> Value {
    json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer",
        "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
        "required": ["name", "age", "tags"], "additionalProperties": false})
}

fn is_person(value: &Value) -> bool {
    let is_tag = |tag: &Value| tag == "a" || tag == "b";
    let tags = value["tags"]
        .as_array()
        .is_some_and(|tags| tags.len() <= 2 && tags.iter().all(is_tag));
    let name = value["name"]
        .as_str()
        .is_some_and(|name| name.chars().count() <= 8);
    let age = value["age"]
        .as_i64()
        .is_some_and(|age| (0..=150).contains(&age));
    name && age && tags && value.as_object().is_some_and(|map| map.len() == 3)
}

fn asking(more: &Value) -> Value {
    with(
        &with(&hello(), &json!({"temperature": 1, "max_tokens": 400})),
        more,
    )
}

#[test]
fn every_spelling_of_a_schema() {
    let server = Server::plain();
    let named = json!({"name": "person", "schema": person(), "strict": true});
    for more in [
        json!({"response_format": {"type": "json_schema", "json_schema": named}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": person()}}}),
        json!({"structured_outputs": {"json": person()}}),
        json!({"guided_json": person()}),
        json!({"guided_json": person().to_string()}),
    ] {
        for seed in 0..3 {
            let request = with(&asking(&more), &json!({"seed": seed}));
            let answer = server.post(CHAT, &request);
            let text = content(&answer);
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(is_person(&value), "{text}");
            assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
            let stream = server.post(CHAT, &with(&request, &json!({"stream": true})));
            let streamed: String = stream
                .chunks()
                .iter()
                .filter_map(|c| {
                    c["choices"][0]["delta"]["content"]
                        .as_str()
                        .map(str::to_owned)
                })
                .collect();
            assert_eq!(streamed, text, "a stream says the same");
        }
    }
    server.wait_until_idle();
}

#[test]
fn patterns_choices_and_grammars() {
    let server = Server::plain();
    let completion = |more: &Value| {
        let base = json!({"prompt": "Hello", "temperature": 1, "seed": 5, "max_tokens": 100});
        content(&server.post(COMPLETIONS, &with(&base, more)))
    };
    let date = completion(&json!({"guided_regex": "[0-9]{4}-[01][0-9]"}));
    assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
    let choice = completion(&json!({"structured_outputs": {"choice": ["red", "green"]}}));
    assert!(["red", "green"].contains(&choice.as_str()), "{choice}");
    let sum = completion(&json!({"guided_grammar": "start: N \"+\" N\nN: /[1-9]/"}));
    assert!(sum.len() == 3 && sum.as_bytes()[1] == b'+', "{sum}");
    for field in ["guided_grammar", "ebnf", "grammar"] {
        let sum = completion(
            &json!({field: "root ::= term (\"+\" term)? # a sum\nterm ::= [1-9] | \"(\" root \")\""}),
        );
        let closed = sum.matches('(').count() == sum.matches(')').count();
        assert!(
            closed && sum.chars().all(|c| "123456789+()".contains(c)),
            "{sum}"
        );
    }
    // Literals and classes that begin alike: a lexer would commit to one of them.
    let word = completion(&json!({"ebnf": "root ::= (\"yes\" | [a-z]) [a-z]{5} \"!\""}));
    assert!(
        (word.len() == 7 || word.len() == 9) && word.ends_with('!'),
        "{word}"
    );
    let object = content(&server.post(
        CHAT,
        &asking(&json!({"response_format": {"type": "json_object"}, "seed": 2})),
    ));
    assert!(object.starts_with('{'), "{object}");
}

#[test]
fn only_allowed_tokens_and_no_bad_words() {
    let server = Server::plain();
    let base = json!({"prompt": "Hello", "temperature": 1, "max_tokens": 200, "ignore_eos": true,
        "return_token_ids": true});
    let ids = |more: &Value| {
        let answer = server.post(COMPLETIONS, &with(&base, more));
        assert_eq!(answer.status, 200, "{}", answer.text);
        let ids = answer.json()["choices"][0]["token_ids"]
            .as_array()
            .expect("ids")
            .clone();
        ids.iter()
            .map(|id| id.as_u64().expect("an id"))
            .collect::<Vec<_>>()
    };
    let allowed = ids(&json!({"allowed_token_ids": [7, 2000, 4095]}));
    assert!(
        allowed.len() == 200 && allowed.iter().all(|id| [7, 2000, 4095].contains(id)),
        "{allowed:?}"
    );
    // Beside a grammar, both hold.
    let even: Vec<u32> = "02468"
        .chars()
        .flat_map(|digit| harness::ids(&digit.to_string()))
        .collect();
    let both = content(&server.post(
        COMPLETIONS,
        &with(
            &base,
            &json!({"guided_regex": "[0-9]{9}",
        "allowed_token_ids": even, "ignore_eos": false, "max_tokens": 9}),
        ),
    ));
    assert!(
        both.len() == 9 && both.chars().all(|c| "02468".contains(c)),
        "{both}"
    );
    let few: Vec<u32> = ["hat", " hat", " a"]
        .into_iter()
        .flat_map(harness::ids)
        .collect();
    assert_eq!(few.len(), 3, "each is one token");
    let said = |more: &Value| {
        let request = with(&base, &json!({"allowed_token_ids": few}));
        content(&server.post(COMPLETIONS, &with(&request, more)))
    };
    assert!(said(&json!({})).contains("hat"));
    assert_eq!(said(&json!({"bad_words": ["hat"]})), " a".repeat(200));
}

/// Other servers set these forms in `response_format`.
#[test]
fn an_unknown_type_of_response_format_is_told_with_the_field_to_use() {
    let server = Server::plain();
    for kind in ["grammar", "regex"] {
        let answer = server.post(CHAT, &asking(&json!({"response_format": {"type": kind}})));
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status.as_u16(), &error["param"]),
            (400, &json!("response_format.type"))
        );
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.contains("json_schema") && message.contains("`structured_outputs`"),
            "{message}"
        );
        assert!(message.contains(kind), "{message}");
    }
}

/// The device's tokens are a hash, so an object has other keys wherever the grammar lets it.
#[test]
fn an_object_has_declared_keys_only_unless_its_schema_allows_others() {
    let server = Server::plain();
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}, "no": {"type": "boolean"}},
        "required": ["ok"]});
    let key = Regex::new(r#"[{,]\s*"((?:[^"\\]|\\.)*)"\s*:"#).expect("a pattern");
    let others = |schema: &Value| {
        let more = json!({"guided_json": schema, "max_tokens": 60});
        let texts = (0..12)
            .map(|seed| content(&server.post(CHAT, &with(&asking(&more), &json!({"seed": seed})))));
        let is_other = |text: &String| {
            key.captures_iter(text)
                .any(|found| !["ok", "no"].contains(&&found[1]))
        };
        texts.filter(is_other).collect::<Vec<_>>()
    };
    assert_eq!(others(&schema), Vec::<String>::new());
    assert!(
        !others(&with(&schema, &json!({"x-allow-extra": true}))).is_empty(),
        "the standard allows other keys"
    );
}

#[test]
fn a_schema_that_is_too_large_is_refused_with_the_limit() {
    let server = Server::plain();
    let properties = |count: u32| -> Value {
        let all: Map<String, Value> = (0..count)
            .map(|key| (format!("p{key}"), json!({"type": "boolean"})))
            .collect();
        json!({"type": "object", "properties": all})
    };
    let alternatives = json!({"anyOf": vec![json!({}); 6000]});
    for (schema, limit) in [(alternatives, "512"), (properties(1001), "1000")] {
        let named = json!({"name": "x", "schema": schema});
        let formats = [
            (
                CHAT,
                json!({"response_format": {"type": "json_schema", "json_schema": named}}),
            ),
            (CHAT, json!({"guided_json": schema, "stream": true})),
            (
                CHAT,
                json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
                "tool_choice": "required"}),
            ),
        ];
        for (path, more) in formats {
            let answer = server.post(path, &with(&hello(), &more));
            assert_eq!(answer.status, 400, "{}", answer.text);
            let error = answer.json()["error"].clone();
            let message = error["message"].as_str().expect("a message");
            assert!(
                error["code"] == "grammar_error" && message.contains(limit),
                "{error}"
            );
        }
    }
    // Within the limits, whatever becomes of it is no failure of the server.
    let many = server.post(
        CHAT,
        &with(&hello(), &json!({"guided_json": properties(401)})),
    );
    assert!(
        many.status == 200 || many.json()["error"]["code"] == "grammar_error",
        "{}",
        many.text
    );
    server.wait_until_idle();
}

#[test]
fn a_schema_that_takes_long_to_compile_is_refused_wherever_it_stands() {
    let server = Server::plain();
    let alternatives = |at: i32| json!({"anyOf": [{"minimum": at}, {"maximum": -at}]});
    let patterns = |at: i32| json!({"pattern": format!("^(a|b)*a(a|b){{{at}}}$")});
    let all = |of: &dyn Fn(i32) -> Value| json!({"allOf": (1..20).map(of).collect::<Vec<_>>()});
    for (schema, keyword) in [
        (
            json!({"type": "integer", "multipleOf": 1_999_993}),
            "multipleOf",
        ),
        (
            json!({"type": "string", "minLength": 1_000_000}),
            "minLength",
        ),
        (all(&alternatives), "allOf"),
        (all(&patterns), "allOf"),
    ] {
        let object = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": object, "strict": true}});
        let structure = json!({"begin": "<f>", "schema": object, "end": "</f>"});
        let tag = json!({"type": "structural_tag", "structures": [structure], "triggers": ["<f"]});
        let named = json!({"name": "x", "schema": object});
        for more in [
            json!({"guided_json": object}),
            json!({"response_format": {"type": "json_schema", "json_schema": named}}),
            json!({"response_format": tag}),
            json!({"structured_outputs": {"grammar": format!("start: \"x\" %json {object}")}}),
            json!({"tools": [tool], "tool_choice": "required"}),
            json!({"tools": [tool], "response_format": {"type": "json_object"}}),
        ] {
            let start = Instant::now();
            let answer = server.post(CHAT, &with(&hello(), &more));
            assert_eq!(answer.status, 400, "{more}: {}", answer.text);
            let error = answer.json()["error"].clone();
            let message = error["message"].as_str().expect("a message");
            assert!(
                error["code"] == "grammar_error" && message.contains(keyword),
                "{more}: {error}"
            );
            // Compiling any of them takes minutes.
            assert!(start.elapsed() < Duration::from_secs(20), "{more}");
        }
    }
    server.wait_until_idle();
}

#[test]
fn a_grammar_and_a_limit() {
    let server = Server::plain();
    let long = json!({"guided_regex": "[a-z]{300}", "max_tokens": 5});
    let answer = server.post(CHAT, &asking(&long));
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 5);
}

/// Tokens that a schema forces need no step each. With logprobs every token is sampled, and the text is the same.
#[test]
fn forced_tokens_take_no_step_each() {
    // Drafts would save the same steps.
    let server = speculation::server(None);
    let schema = json!({"guided_json": {"type": "object", "properties":
        {"temperature_in_degrees_celsius": {"enum": [20]},
        "wind_speed_in_kilometers_per_hour": {"enum": [30]}}, "additionalProperties": false,
        "required": ["temperature_in_degrees_celsius", "wind_speed_in_kilometers_per_hour"]}, "seed": 3});
    let steps = |more: &Value| {
        server.wait_until_idle();
        let before = server.engine.stats().steps;
        let answer = server.post(CHAT, &with(&asking(&schema), more));
        (
            content(&answer),
            server.engine.stats().steps - before,
            answer.json()["usage"]["completion_tokens"].clone(),
        )
    };
    let (text, jumped, tokens) = steps(&json!({}));
    let (same, walked, drawn) = steps(&json!({"logprobs": true}));
    let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(value(&text), value(&same));
    println!("{tokens} tokens in {jumped} steps, {drawn} in {walked}");
    assert!(
        jumped * 2 < walked,
        "{jumped} steps with jumps, {walked} without: {text}"
    );
}

#[test]
fn free_answers_beside_constrained_ones_do_not_change() {
    let server = Server::plain();
    let free = with(
        &hello(),
        &json!({"temperature": 1, "seed": 42, "stream": true, "ignore_eos": true, "max_tokens": 60}),
    );
    let alone = merged(&server.post(CHAT, &free).text);
    let constrained = with(
        &asking(&json!({"guided_json": person()})),
        &json!({"stream": true, "n": 2}),
    );
    let open: Vec<_> = (0..3)
        .map(|seed| server.open(CHAT, &with(&constrained, &json!({"seed": seed}))))
        .collect();
    assert_eq!(merged(&server.post(CHAT, &free).text), alone);
    for open in open {
        assert!(open.rest().ends_with("data: [DONE]\n\n"));
    }
    server.wait_until_idle();
}

#[test]
fn the_demo_model_fills_a_schema() {
    let server = Server::cpu();
    let request = with(
        &hello(),
        &json!({"guided_json": person(), "max_tokens": 300}),
    );
    for temperature in [0, 1] {
        let answer = server.post(
            CHAT,
            &with(&request, &json!({"temperature": temperature, "seed": 1})),
        );
        let text = content(&answer);
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(is_person(&value), "{text}");
    }
}

/// `best_of`, `echo`, token ids and logprobs combined with structured output.
#[test]
fn a_structure_goes_with_every_other_field() {
    let server = Server::plain();
    let base = json!({"prompt": ["Hello", "A fox"], "temperature": 1, "seed": 5, "max_tokens": 40, "echo": true,
        "guided_regex": "[0-9]{4}!", "return_token_ids": true, "logprobs": 1, "prompt_logprobs": 0});
    let is_right = |text: &str, prompt: &str| {
        let digits = text
            .strip_prefix(prompt)
            .and_then(|rest| rest.strip_suffix('!'))
            .unwrap_or_default();
        digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let whole = server
        .post(COMPLETIONS, &with(&base, &json!({"n": 2, "best_of": 4})))
        .json();
    let choices = whole["choices"]
        .as_array()
        .unwrap_or_else(|| panic!("{whole}"));
    assert_eq!(choices.len(), 4);
    for (choice, prompt) in choices.iter().zip(["Hello", "Hello", "A fox", "A fox"]) {
        assert!(
            is_right(choice["text"].as_str().expect("a text"), prompt),
            "{choice}"
        );
        assert_eq!(choice["finish_reason"], "stop");
        let count = |list: &Value| list.as_array().map_or(0, Vec::len);
        let (prompt, answer) = (
            count(&choice["prompt_token_ids"]),
            count(&choice["token_ids"]),
        );
        assert_eq!(
            count(&choice["logprobs"]["tokens"]),
            prompt + answer,
            "{choice}"
        );
        assert_eq!(count(&choice["prompt_logprobs"]), prompt);
    }
    let chunks = server
        .post(COMPLETIONS, &with(&base, &json!({"stream": true})))
        .chunks();
    for (index, prompt) in ["Hello", "A fox"].iter().enumerate() {
        let of_choice = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index);
        let text: String = of_choice
            .map(|choice| choice["text"].as_str().expect("a text"))
            .collect();
        assert!(is_right(&text, prompt), "{text}");
    }
    // A complete structure ends the answer regardless of other fields about its length.
    let early = server
        .post(COMPLETIONS, &with(&base, &json!({"min_tokens": 30})))
        .json();
    assert!(
        is_right(
            early["choices"][0]["text"].as_str().expect("a text"),
            "Hello"
        ),
        "{early}"
    );
}

#[test]
fn clients_of_llama_cpp_send_schemas_too() {
    let server = Server::plain();
    let request = json!({"prompt": "Hello", "json_schema": person(), "temperature": 1, "seed": 3, "n_predict": 400});
    let answer = server.post("/completion", &request).json();
    let text = answer["content"].as_str().expect("a text");
    assert!(
        is_person(&serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))),
        "{text}"
    );
    let pattern =
        json!({"prompt": "Hello", "structured_outputs": {"regex": "[a-c]{3}"}, "n_predict": 20});
    let answer = server.post("/completion", &pattern).json();
    assert!(
        answer["content"]
            .as_str()
            .is_some_and(|text| text.len() == 3),
        "{answer}"
    );
}

/// Digits and letters of a pattern are those of ASCII, and names in references may have any characters.
#[test]
fn patterns_and_references_mean_what_the_standard_says() {
    let server = Server::plain();
    let is_meant =
        Regex::new(r"^[0-9]{2}/[0-9A-Za-z_]{2}/[^0-9][^0-9A-Za-z_]$").expect("a pattern");
    for seed in 0..5 {
        let ask = |more: &Value| {
            content(&server.post(CHAT, &with(&asking(more), &json!({"seed": seed}))))
        };
        let text = ask(&json!({"guided_regex": r"\d{2}/\w{2}/\D\W"}));
        assert!(is_meant.is_match(&text), "{text:?}");
        for (name, reference) in [
            ("a/b", "a~1b"),
            ("a~b", "a~0b"),
            ("Page<Item>", "Page%3CItem%3E"),
            ("50%", "50%25"),
        ] {
            let schema = json!({"type": "object", "properties": {"a": {"$ref": format!("#/$defs/{reference}")}},
                "required": ["a"], "$defs": {(name): {"enum": ["x", "y"]}}});
            for strict in [true, false] {
                let named = json!({"name": "n", "schema": schema, "strict": strict});
                let text =
                    ask(&json!({"response_format": {"type": "json_schema", "json_schema": named}}));
                let value: Value =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert!(
                    value == json!({"a": "x"}) || value == json!({"a": "y"}),
                    "{name}: {text}"
                );
            }
        }
    }
}

/// Integers that 64 bits cannot hold, or that a float rounds.
const LONG: [&str; 6] = [
    "123456789012345678901234567890",
    "-123456789012345678901234567890",
    "1180591620717411303424",
    "18446744073709551615",
    "9223372036854777856",
    "9007199254740993",
];

#[test]
fn long_integers_that_a_schema_lists_are_answered_with_all_digits() {
    let server = Server::plain();
    let schema = json!({"const": "N"});
    let text = r#"{"const": "N"}"#;
    let format = json!({"type": "json_schema", "name": "x", "schema": schema, "strict": true});
    let ask = asking(&json!({"model": MODEL}));
    let complete = json!({"model": MODEL, "prompt": "Hello", "stream": false, "max_tokens": 100});
    for (path, more) in [
        (
            CHAT,
            json!({"response_format": {"type": "json_schema", "json_schema": format}}),
        ),
        (
            CHAT,
            json!({"response_format": {"type": "json_object", "schema": schema}}),
        ),
        (CHAT, json!({"structured_outputs": {"json": schema}})),
        (CHAT, json!({"guided_json": schema})),
        (CHAT, json!({"guided_json": text})),
        (
            COMPLETIONS,
            with(&complete, &json!({"guided_json": schema})),
        ),
        (
            "/completion",
            with(&complete, &json!({"json_schema": schema})),
        ),
        ("/api/generate", with(&complete, &json!({"format": schema}))),
        (
            "/v1/responses",
            json!({"model": MODEL, "input": "Hello", "text": {"format": format}}),
        ),
        (
            "/v1/messages",
            with(
                &ask,
                &json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            ),
        ),
    ] {
        let request = if path == CHAT {
            with(&ask, &more)
        } else {
            more
        };
        for digits in LONG {
            let body = request
                .to_string()
                .replace("\\\"N\\\"", digits)
                .replace("\"N\"", digits);
            let answer = post_text(&server, path, body);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text);
            let answer = answer.json();
            let all = [
                "/choices/0/message/content",
                "/choices/0/text",
                "/content",
                "/response",
                "/output/0/content/0/text",
                "/content/0/text",
            ];
            let text = all
                .iter()
                .find_map(|place| answer.pointer(place)?.as_str())
                .unwrap_or_else(|| panic!("{path}: {answer}"));
            assert_eq!(text, digits, "{path}: {request}");
        }
    }
    server.wait_until_idle();
}

#[test]
fn long_integers_are_kept_within_objects_lists_and_alternatives() {
    let server = Server::plain();
    let [one, other] = [LONG[0], LONG[5]];
    let schema = format!(
        r#"{{"type": "object", "properties": {{
            "note": {{"type": "string", "maxLength": 4}},
            "id": {{"type": ["integer", "string"], "enum": [{one}, {other}, null, "a"]}},
            "of": {{"anyOf": [{{"const": {one}}}, {{"type": "null"}}]}},
            "in": {{"type": "object", "properties": {{"x": {{"const": [{one}, 1]}}}}, "required": ["x"]}},
            "all": {{"type": "array", "items": {{"const": {other}}}}},
            "age": {{"type": "integer", "minimum": 0, "maximum": 99}}
        }}, "required": ["id", "of", "in"]}}"#
    );
    let space = r"( |\n {0,24}|\n\t{0,8})?";
    let pattern = [
        r#"^\{_("note":_"[^"]*",_)?"id":_(ONE|OTHER|"a"),_"of":_(ONE|null),_"in":_\{_"x":_\[ONE,1\]_\}"#,
        r#"(,_"all":_\[_(OTHER(,_OTHER)*)?_\])?(,_"age":_[0-9]+)?_\}$"#,
    ];
    let pattern = pattern.concat().replace("ONE", one).replace("OTHER", other);
    let form = Regex::new(&pattern.replace('_', space)).expect("a pattern");
    let mut seen = String::new();
    for seed in 0..40 {
        let body =
            asking(&json!({"guided_json": "S", "seed": seed, "max_tokens": 300})).to_string();
        let answer = post_text(&server, CHAT, body.replace("\"S\"", &schema));
        let text = content(&answer);
        if answer.json()["choices"][0]["finish_reason"] == "stop" {
            assert!(form.is_match(&text), "{text}");
            seen += &text;
        }
    }
    for part in [other, one, "\"a\"", "\"note\"", "\"age\"", "null"] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
}

#[test]
fn a_long_integer_that_cannot_be_enforced_is_refused_and_never_rounded() {
    let server = Server::plain();
    for (schema, key) in [
        (r#"{"allOf": [{"const": N}]}"#, "const"),
        (r#"{"not": {}, "enum": [1, N]}"#, "enum"),
        (
            r##"{"$ref": "#/$defs/a", "$defs": {"a": {"enum": [[N]]}}}"##,
            "enum",
        ),
        (r#"{"anyOf": [{"const": N}, {"type": "integer"}]}"#, "const"),
        (
            r#"{"patternProperties": {"a": {"const": {"b": N}}}}"#,
            "const",
        ),
        (r#"{"minimum": N}"#, "minimum"),
    ] {
        let schema = schema.replace('N', LONG[0]);
        let body = asking(&json!({"guided_json": "S"})).to_string();
        let answer = post_text(&server, CHAT, body.replace("\"S\"", &schema));
        assert_eq!(answer.status, 400, "{schema}: {}", answer.text);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], "guided_json", "{schema}");
        let message = error["message"].as_str().expect("a text");
        let told = message.contains(&format!("`{key}`")) && message.contains(LONG[0]);
        assert!(told, "{schema}: {message}");
    }
    // A number is no schema.
    for field in ["guided_json", "json_schema"] {
        for schema in [LONG[0].to_owned(), format!("\"{}\"", LONG[0])] {
            let body = asking(&json!({field: "S"})).to_string();
            let answer = post_text(&server, CHAT, body.replace("\"S\"", &schema));
            assert_eq!(answer.status, 400, "{field}: {schema}: {}", answer.text);
            assert!(!answer.text.contains('\u{FDD5}'), "{}", answer.text);
        }
    }
    let items = format!(
        r#"{{"properties": {{"a": {0}, "b": {{"const": {0}}}}}, "required": ["b"]}}"#,
        LONG[0]
    );
    let body = asking(&json!({"guided_json": "S"})).to_string();
    let answer = post_text(&server, CHAT, body.replace("\"S\"", &items));
    assert_eq!(answer.status, 400, "{}", answer.text);
}

#[test]
fn a_grammar_may_name_tokens_by_number_and_by_text() {
    let server = Server::plain();
    for name in ["grammar", "guided_grammar"] {
        let request = json!({"prompt": "Hello", "n_predict": 4, "return_tokens": true,
            name: "root ::= <[5]> !<[6]> </think> <[7]>"});
        let answer = server.post("/completion", &request);
        assert_eq!(answer.status, 200, "{}", answer.text);
        let tokens = answer.json()["tokens"].clone();
        assert_eq!((&tokens[0], &tokens[3]), (&json!(5), &json!(7)), "{tokens}");
        assert_ne!(tokens[1], 6);
        assert_eq!(tokens[2], harness::ids("</think>")[0]);
    }
}
