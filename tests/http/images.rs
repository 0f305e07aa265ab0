//! Images in conversations: golden models answer questions about them, and what cannot be read is refused by name.

use crate::harness::{Answer, CHAT, MODEL, Server, config, with};
use crate::packed;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use folio::backend::cpu::CpuBackend;
use folio::config::Config;
use folio::engine::{self, Others};
use folio::image::ImageProcessor;
use folio::model::Model;
use folio::platform::FileAccess;
use folio::server::{ImageReader, Limits, ServerOptions};
use folio::text::{TextFolder, TextModel};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// Words and markers, as the goldens have them.
const TEMPLATE: &str = "{% for message in messages %}{% for part in message.content %}\
                        {% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{{ ' ' }}\
                        {% endfor %}{% endfor %}";

fn folder(family: &str) -> PathBuf {
    packed::model("vision").join(family)
}

fn read(family: &str, name: &str) -> Value {
    let bytes = std::fs::read(folder(family).join(name)).expect("the file is there");
    serde_json::from_slice(&bytes).expect("it is JSON")
}

/// The same, of a template that knows tools.
const TOOLS: &str = "{% for message in messages %}{% if message.tool_calls %}{{ '' }}\
                     {% elif message.content is string %}{{ message.content }}{{ ' ' }}\
                     {% else %}{% for part in message.content %}\
                     {% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{{ ' ' }}\
                     {% endfor %}{% endif %}{% endfor %}";

/// Rows of few images.
const ROWS: u32 = 170;

/// A server of a golden model on the CPU, which holds rows of few images.
fn server(family: &str, template: &str) -> Server {
    server_with(family, Some(template), Limits::default())
}

fn server_with(family: &str, template: Option<&str>, limits: Limits) -> Server {
    server_holding(ROWS, family, template, limits)
}

fn server_holding(rows: u32, family: &str, template: Option<&str>, limits: Limits) -> Server {
    let folder = folder(family);
    let mut files = TextFolder::default();
    for name in TextFolder::NAMES {
        if let Ok(bytes) = std::fs::read(folder.join(name)) {
            files.insert(name, bytes);
        }
    }
    // The words of goldens that are special begin with a letter, as no model's do: names of fields would be taken for
    // the beginnings of such words.
    let mut tokenizer = read(family, "tokenizer.json");
    let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
    added.retain(|token| {
        token["content"]
            .as_str()
            .is_some_and(|text| !text.starts_with('t'))
    });
    files.insert("tokenizer.json", tokenizer.to_string().into_bytes());
    let mut settings = read(family, "tokenizer_config.json");
    let settings = settings.as_object_mut().expect("an object");
    settings.retain(|name, _| !["bos_token", "eos_token", "pad_token"].contains(&name.as_str()));
    files.insert(
        "tokenizer_config.json",
        json!(settings).to_string().into_bytes(),
    );
    let processors = ImageProcessor::FILES.map(|name| read(family, name));
    let processor = ImageProcessor::read(
        &read(family, "config.json"),
        [Some(&processors[0]), Some(&processors[1])],
    );
    let processor = processor.expect("the files are right");
    let marker = processor.as_ref().map_or("", ImageProcessor::marker);
    let template = template.map(|template| template.replace("<image>", marker));
    let text = TextModel::from_folder(&files, template.as_deref());
    let text = text.expect("the text files are read");
    let options = ServerOptions {
        images: processor.map(ImageReader::new),
        limits,
        ..ServerOptions::default()
    };
    let model = Model::open(&folder).expect("the text model loads");
    let tower = Model::open_tower(&folder, FileAccess::Read).expect("the tower loads");
    let others = Others { draft: None, tower };
    let config = Config {
        max_image_rows: rows,
        ..config()
    };
    let open = || Ok(CpuBackend::default());
    let spawn = |inbox| engine::spawn_with(open, model, others, config, inbox, |_| {});
    Server::start(spawn, options, Arc::new(text))
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder("images").join(name)).expect("the image is there")
}

fn url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(file))
}

fn part(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value
        .as_array()
        .unwrap_or_else(|| panic!("a list, not {value}"));
    list.iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

/// A golden case as the parts of a message: words, and images in place of markers.
fn parts(case: &Value, marker: u64) -> Value {
    let mut images = case["images"].as_array().expect("names").iter();
    let prompt = ids(&case["prompt"]).into_iter().map(|id| {
        if u64::from(id) == marker {
            let name = images.next().and_then(Value::as_str);
            part(&url(&file(name.expect("a marker has an image"))))
        } else {
            json!({"type": "text", "text": format!("t{id:03}")})
        }
    });
    prompt.collect()
}

/// The token that stands for a row of an image.
fn marker(family: &str) -> u64 {
    let config = read(family, "config.json");
    let fields = ["image_token_id", "image_token_index"].map(|field| config[field].as_u64());
    fields.into_iter().flatten().next().expect("an id")
}

/// The golden cases whose images every decoder reads alike, each with its parts.
fn cases(family: &str) -> Vec<(Value, Value)> {
    let marker = marker(family);
    let golden = read(family, "golden.json");
    let list = golden["cases"].as_array().expect("a list of cases").iter();
    let is_exact = |case: &&Value| {
        let images = case["images"].to_string();
        images.contains(".png") && !images.contains(".jpg")
    };
    list.filter(is_exact)
        .map(|case| (case.clone(), parts(case, marker)))
        .collect()
}

fn asking(content: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 16,
        "ignore_eos": true, "return_token_ids": true})
}

/// The answer to a request that is right.
fn answered(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[test]
fn questions_about_images_are_answered_as_by_transformers() {
    for family in ["idefics3", "smolvlm", "mistral3"] {
        let server = server(family, TEMPLATE);
        let cases = cases(family);
        assert!(cases.len() > 3, "there are cases without a JPEG");
        for (case, parts) in &cases {
            let place = format!("{family}, {}", case["name"]);
            let expanded = ids(&case["expanded"]);
            let answer = answered(&server, CHAT, &asking(parts));
            assert_eq!(ids(&answer["prompt_token_ids"]), expanded, "{place}");
            let choice = &answer["choices"][0];
            assert_eq!(ids(&choice["token_ids"]), ids(&case["greedy"]), "{place}");
            assert_eq!(answer["usage"]["prompt_tokens"], expanded.len(), "{place}");
            let messages = json!({"messages": [{"role": "user", "content": parts}]});
            let counted = answered(&server, "/tokenize", &messages);
            assert_eq!(counted["count"], expanded.len(), "{place}");
            let again = answered(&server, CHAT, &asking(parts));
            assert_eq!(
                again["choices"][0]["token_ids"], choice["token_ids"],
                "{place}"
            );
            let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
            assert_eq!(*cached, (expanded.len() - 1) / 16 * 16, "{place}");
        }
    }
}

#[test]
fn another_image_is_another_prefix() {
    let server = server("smolvlm", TEMPLATE);
    let ask = |name: &str| {
        let text = json!({"type": "text", "text": "t050 ".repeat(20)});
        let answer = answered(
            &server,
            CHAT,
            &asking(&json!([text, part(&url(&file(name)))])),
        );
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        (answer["choices"][0]["token_ids"].clone(), cached)
    };
    let (small, _) = ask("small.png");
    let (alpha, cached) = ask("alpha.png");
    assert_eq!(cached, 16, "the text before the image is shared");
    assert_ne!(small, alpha);
    assert_eq!(ask("small.png").0, small);
}

#[test]
fn ollamas_images_come_before_the_text() {
    let server = server("smolvlm", TEMPLATE);
    let (case, parts) = cases("smolvlm")
        .into_iter()
        .find(|(case, _)| case["name"] == "first")
        .expect("a case begins with an image");
    let words: Vec<_> = parts.as_array().expect("parts")[1..]
        .iter()
        .filter_map(|part| part["text"].as_str())
        .collect();
    let name = case["images"][0].as_str().expect("a name");
    let message = json!({"role": "user", "content": words.join(" "), "images": [STANDARD.encode(file(name))]});
    let options = json!({"temperature": 0, "num_predict": 16});
    let answer = answered(
        &server,
        "/api/chat",
        &json!({"messages": [message], "stream": false, "options": options}),
    );
    let chat = with(&asking(&parts), &json!({"ignore_eos": false}));
    let chat = answered(&server, CHAT, &chat);
    assert_eq!(answer["prompt_eval_count"], ids(&case["expanded"]).len());
    assert_eq!(
        answer["message"]["content"],
        chat["choices"][0]["message"]["content"]
    );
}

#[test]
fn responses_and_messages_read_the_same_images() {
    let server = server("smolvlm", TEMPLATE);
    let (case, parts) = cases("smolvlm")
        .into_iter()
        .find(|(case, _)| case["name"] == "first")
        .expect("a case begins with an image");
    let parts = parts.as_array().expect("parts");
    let words: Vec<_> = parts[1..]
        .iter()
        .filter_map(|part| part["text"].as_str())
        .collect();
    let words = words.join(" ");
    let name = case["images"][0].as_str().expect("a name");
    let chat = with(&asking(&json!(parts)), &json!({"ignore_eos": false}));
    let chat = answered(&server, CHAT, &chat);
    let text = &chat["choices"][0]["message"]["content"];
    let image = json!({"type": "input_image", "image_url": url(&file(name)), "detail": "auto"});
    let content = json!([image, {"type": "input_text", "text": words}]);
    let input = json!([{"role": "user", "content": content}]);
    let asked = json!({"input": input, "temperature": 0, "max_output_tokens": 16});
    let answer = answered(&server, "/v1/responses", &asked);
    assert_eq!(
        answer["usage"]["input_tokens"],
        ids(&case["expanded"]).len()
    );
    assert_eq!(answer["output"][0]["content"][0]["text"], *text);
    let next =
        json!({"input": "t050", "previous_response_id": answer["id"], "max_output_tokens": 16});
    let next = answered(&server, "/v1/responses", &next);
    let count = next["usage"]["input_tokens"].as_u64();
    assert!(
        count > Some(ids(&case["expanded"]).len() as u64),
        "the image is in it: {count:?}"
    );
    let source =
        json!({"type": "base64", "media_type": "image/png", "data": STANDARD.encode(file(name))});
    let image = json!({"type": "image", "source": source});
    let content = json!([image, {"type": "text", "text": words}]);
    let asked = json!({"messages": [{"role": "user", "content": content}], "temperature": 0,
        "max_tokens": 16});
    let answer = answered(
        &server,
        "/v1/messages",
        &with(&asked, &json!({"model": MODEL})),
    );
    assert_eq!(answer["content"][0]["text"], *text);
    let counted = with(&asked, &json!({"model": MODEL}));
    let counted = answered(&server, "/v1/messages/count_tokens", &counted);
    assert_eq!(counted["input_tokens"], ids(&case["expanded"]).len());
}

/// What is refused: the field and the message.
fn refused(answer: &Answer) -> (String, String) {
    let error = answer.json()["error"].clone();
    assert_eq!(answer.status, 400, "{error}");
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (text("param"), text("message"))
}

#[test]
fn a_text_model_refuses_images_by_name() {
    let server = Server::plain();
    let text = json!({"type": "text", "text": "What is this?"});
    let content = json!([text, part(&url(&file("small.png")))]);
    for path in [CHAT, "/tokenize"] {
        let (param, message) = refused(&server.post(path, &asking(&content)));
        assert_eq!(param, "messages[0].content[1]");
        assert!(message.contains("text only"), "{message}");
    }
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    let server = server("smolvlm", TEMPLATE);
    let small = url(&file("small.png"));
    let side = 65_500_u16.to_le_bytes();
    let bomb = [
        &b"GIF89a"[..],
        &side,
        &side,
        &[0, 0, 0],
        b",",
        &[0; 4],
        &side,
        &side,
        &[0],
    ]
    .concat();
    let cut = file("small.png");
    let cut = &cut[..cut.len() / 2];
    for (url, reason) in [
        ("http://localhost/x.png".into(), "not fetched"),
        ("file:///etc/passwd".into(), "not fetched"),
        ("DATA:image/png;base64,AAAA".into(), "not a PNG"),
        ("data:image/png,AAAA".into(), "ends in base64"),
        ("data:image/png".into(), "ends in base64"),
        ("data:text/plain;base64,AAAA".into(), "begins with its type"),
        ("data:image/png;base64,%%".into(), "not base64"),
        (
            url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
            "not a PNG",
        ),
        (url(&bomb), "65500 × 65500"),
        (url(cut), "cannot be decoded"),
        (url(&[]), "not a PNG"),
    ] {
        let text = json!({"type": "text", "text": "t050"});
        let (param, message) = refused(&server.post(CHAT, &asking(&json!([text, part(&url)]))));
        assert_eq!(param, "messages[0].content[1]", "{message}");
        assert!(message.contains(reason), "{message}");
    }
    let low = json!({"type": "image_url", "image_url": {"url": small, "detail": "low"}});
    let (param, _) = refused(&server.post(CHAT, &asking(&json!([low]))));
    assert_eq!(param, "messages[0].content[0].image_url.detail");
    let many: Vec<_> = (0..33).map(|_| part(&small)).collect();
    let (param, message) = refused(&server.post(CHAT, &asking(&json!(many))));
    assert_eq!(param, "messages[0].content[32]");
    assert!(message.contains("at most 32 images"), "{message}");
    assert!(message.contains("has 33"), "{message}");
    let large: Vec<_> = (0..32).map(|_| part(&url(&file("wide.png")))).collect();
    let (param, message) = refused(&server.post(CHAT, &asking(&json!(large))));
    assert!(param.starts_with("messages[0].content["), "{param}");
    assert!(message.contains("at most 170"), "{message}");
    let system = json!({"role": "system", "content": [part(&small)]});
    let (param, message) = refused(&server.post(CHAT, &json!({"messages": [system]})));
    assert_eq!(param, "messages[0].content[0]");
    assert!(message.contains("of the user"), "{message}");
    let vectors = json!({"messages": [{"role": "user", "content": [part(&small)]}]});
    let (param, message) = refused(&server.post("/v1/embeddings", &vectors));
    assert_eq!(param, "messages[0].content[0]");
    assert!(message.contains("only text"), "{message}");
}

/// Patches are a multiple of the file: 10 parts of 64 patches of 48 numbers are 123 kB.
#[test]
fn images_count_in_the_memory_of_all_requests() {
    let limits = Limits {
        requests_bytes_max: 100_000,
        ..Limits::default()
    };
    let server = server_with("smolvlm", Some(TEMPLATE), limits);
    let ask = |name: &str| server.post(CHAT, &asking(&json!([part(&url(&file(name)))])));
    for _ in 0..3 {
        let answer = ask("small.png");
        assert_eq!(answer.status, 429, "{}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "requests_too_large");
        // What was charged is free again.
        assert_eq!(ask("wide.png").status, 200);
    }
}

/// The tower has room for such images only as may be held: of 20 tokens, and not of 24.
#[test]
fn an_image_that_is_too_large_for_the_tower_is_refused_with_both_numbers() {
    let server = server_holding(20, "mistral3", Some(TEMPLATE), Limits::default());
    let ask = |name: &str| asking(&json!([text_part("t050"), part(&url(&file(name)))]));
    for _ in 0..2 {
        let (param, message) = refused(&server.post(CHAT, &ask("wide.png")));
        assert_eq!(param, "messages[0].content[1]");
        assert!(message.contains("take 24 tokens; at most 20"), "{message}");
        answered(&server, CHAT, &ask("small.png"));
    }
}

#[test]
fn markers_that_a_user_types_are_text() {
    for (family, text) in [
        ("smolvlm", "t050 <image> t051"),
        ("mistral3", "t050 [IMG] t051 [IMG_BREAK][IMG_END]"),
    ] {
        let server = server(family, TEMPLATE);
        let typed = json!([text_part(text), part(&url(&file("small.png")))]);
        let answer = answered(&server, CHAT, &asking(&typed));
        let prompt = ids(&answer["prompt_token_ids"]);
        let marker = marker(family) as u32;
        let images = &read(family, "golden.json")["images"]["small.png"];
        let count = prompt.iter().filter(|id| **id == marker).count();
        assert_eq!(images["tokens"], count, "{family}");
        if family == "mistral3" {
            let ends = prompt.iter().filter(|id| **id == marker + 2).count();
            assert_eq!(ends, 1, "[IMG_END]");
        }
    }
    // A template that leaves images out cannot answer questions about them.
    let blind = server(
        "smolvlm",
        "{% for m in messages %}{{ m.content[0].text }}{% endfor %}",
    );
    let asked = json!([text_part("t050"), part(&url(&file("small.png")))]);
    let (param, message) = refused(&blind.post(CHAT, &asking(&asked)));
    assert_eq!(param, "messages");
    assert!(message.contains("0 of 1 images"), "{message}");
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A question, a call of a tool, and its result.
fn with_result(content: &Value) -> Value {
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": "t050"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": content},
    ]);
    with(&asking(&json!("")), &json!({"messages": messages}))
}

#[test]
fn images_in_results_of_tools_are_read_on_every_route() {
    let server = server("smolvlm", TOOLS);
    let image = url(&file("small.png"));
    let (first, last) = (text_part("t051"), text_part("t052"));
    let shown = json!([text_part("t050"), first, part(&image), last]);
    let expected = answered(&server, CHAT, &asking(&shown));
    let result = json!([first, part(&image), last]);
    let chat = answered(&server, CHAT, &with_result(&result));
    assert_eq!(chat["prompt_token_ids"], expected["prompt_token_ids"]);
    assert_eq!(
        chat["choices"][0]["token_ids"],
        expected["choices"][0]["token_ids"]
    );
    let count = &expected["usage"]["prompt_tokens"];

    let output = json!([{"type": "input_text", "text": "t051"}, {"type": "input_image", "image_url": image},
        {"type": "input_text", "text": "t052"}]);
    let input = json!([
        {"role": "user", "content": "t050"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": output},
    ]);
    let answer = answered(
        &server,
        "/v1/responses/input_tokens",
        &json!({"input": input}),
    );
    assert_eq!(answer["input_tokens"], *count);

    let source = json!({"type": "base64", "media_type": "image/png", "data": STANDARD.encode(file("small.png"))});
    let content = json!([first, {"type": "image", "source": source}, last]);
    let call = json!({"type": "tool_use", "id": "c1", "name": "look", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "c1", "content": content});
    let messages = json!([
        {"role": "user", "content": "t050"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]);
    let asked = json!({"model": MODEL, "messages": messages});
    let answer = answered(&server, "/v1/messages/count_tokens", &asked);
    assert_eq!(answer["input_tokens"], *count);

    // Ollama's images come before the text.
    let shown = json!([text_part("t050"), part(&image), text_part("t051 t052")]);
    let expected = answered(&server, CHAT, &asking(&shown));
    let call = json!({"function": {"name": "look", "arguments": {}}});
    let images = [STANDARD.encode(file("small.png"))];
    let messages = json!([
        {"role": "user", "content": "t050"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "look", "content": "t051 t052", "images": images},
    ]);
    let options = json!({"temperature": 0, "num_predict": 1});
    let asked = json!({"messages": messages, "stream": false, "options": options});
    let answer = answered(&server, "/api/chat", &asked);
    assert_eq!(
        answer["prompt_eval_count"],
        expected["usage"]["prompt_tokens"]
    );
}

#[test]
fn images_that_a_template_shows_in_no_result_come_behind_it() {
    let blind = TOOLS.replace(
        "part.type == 'image'",
        "part.type == 'image' and message.role == 'user'",
    );
    let server = server("smolvlm", &blind);
    let image = url(&file("small.png"));
    let result = json!([text_part("t051"), part(&image), text_part("t052")]);
    let answer = answered(&server, CHAT, &with_result(&result));
    let left = text_part("t051\n[an image, shown below]\nt052");
    let shown = json!([text_part("t050"), left, part(&image)]);
    let expected = answered(&server, CHAT, &asking(&shown));
    assert_eq!(answer["prompt_token_ids"], expected["prompt_token_ids"]);

    // A template that allows no message of the user there.
    let strict = format!(
        "{{% for m in messages %}}{{% if m.role == 'user' and not loop.first %}}\
         {{{{ raise_exception('roles must alternate') }}}}{{% endif %}}{{% endfor %}}{blind}"
    );
    let server = self::server("smolvlm", &strict);
    let (param, message) = refused(&server.post(CHAT, &with_result(&result)));
    assert_eq!(param, "messages[2].content[1]");
    assert!(message.contains("roles must alternate"), "{message}");
}

#[test]
fn a_template_without_tools_shows_images_of_results_as_text_does() {
    let server = server("smolvlm", TEMPLATE);
    let image = url(&file("small.png"));
    let answer = answered(
        &server,
        CHAT,
        &with_result(&json!([part(&image), text_part("t051")])),
    );
    let call = text_part(r#"{"name":"look","arguments":{}}"#);
    let introduced = text_part("The function returned:");
    let shown = json!([
        text_part("t050"),
        call,
        introduced,
        part(&image),
        text_part("t051")
    ]);
    let expected = answered(&server, CHAT, &asking(&shown));
    assert_eq!(answer["prompt_token_ids"], expected["prompt_token_ids"]);
}

/// The conversation could not go on if the image were refused: clients send it again with each request.
#[test]
fn a_text_model_is_told_of_images_in_results_of_tools() {
    let server = Server::plain();
    let far = "https://example.com/x.png";
    let note = "an image, which this model cannot see";
    let asked = with_result(&json!([part(far)]));
    let messages = json!({"messages": asked["messages"]});
    let shown = answered(&server, "/apply-template", &messages);
    assert!(
        shown["prompt"]
            .as_str()
            .is_some_and(|prompt| prompt.contains(note)),
        "{shown}"
    );
    let chat = |result: &Value| {
        let call = json!({"function": {"name": "look", "arguments": {}}});
        let called = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let options = json!({"num_predict": 1});
        json!({"messages": [called, result], "stream": false, "options": options})
    };
    let seen = json!({"role": "tool", "content": "x", "images": ["AAAA"]});
    let told = json!({"role": "tool", "content": format!("[{note}]\nx")});
    let same = answered(&server, "/api/chat", &chat(&told));
    let answer = answered(&server, "/api/chat", &chat(&seen));
    assert_eq!(answer["prompt_eval_count"], same["prompt_eval_count"]);
    let output = json!([{"type": "input_image", "image_url": far}]);
    let items = |output: &Value| {
        json!({"input": [
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": output},
        ]})
    };
    let path = "/v1/responses/input_tokens";
    let same = answered(&server, path, &items(&json!(format!("[{note}]"))));
    assert_eq!(answered(&server, path, &items(&output)), same);
    let block = json!({"type": "image", "source": {"type": "url", "url": far}});
    let blocks = |content: &Value| {
        let call = json!({"type": "tool_use", "id": "c1", "name": "look", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "c1", "content": content});
        let messages = json!([{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]);
        json!({"model": MODEL, "messages": messages})
    };
    let path = "/v1/messages/count_tokens";
    let same = answered(&server, path, &blocks(&json!(format!("[{note}]"))));
    assert_eq!(answered(&server, path, &blocks(&json!([block]))), same);
}

#[test]
fn ollama_generates_from_images() {
    let server = server("smolvlm", TEMPLATE);
    let image = STANDARD.encode(file("small.png"));
    let options = json!({"temperature": 0, "num_predict": 8});
    let asked =
        json!({"prompt": "t050 t051", "images": [image], "stream": false, "options": options});
    let answer = answered(&server, "/api/generate", &asked);
    let message = json!({"role": "user", "content": "t050 t051", "images": [image]});
    let chat = json!({"messages": [message], "stream": false, "options": options});
    let chat = answered(&server, "/api/chat", &chat);
    assert_eq!(answer["response"], chat["message"]["content"]);
    assert_eq!(answer["prompt_eval_count"], chat["prompt_eval_count"]);
    let shown = answered(&server, "/api/show", &json!({"model": MODEL}));
    let capabilities = shown["capabilities"].as_array().expect("a list");
    assert!(capabilities.contains(&"vision".into()), "{shown}");
    assert_eq!(server.get("/props").json()["modalities"]["vision"], true);
    assert_eq!(
        Server::plain().get("/props").json()["modalities"]["vision"],
        false
    );
    let bare = server_with("smolvlm", None, Limits::default());
    for (server, more) in [
        (&server, json!({"raw": true})),
        (&server, json!({"suffix": "t052"})),
        (&server, json!({"images": ["%%"]})),
        (&server, json!({"images": "%%"})),
        (&bare, json!({})),
        (&Server::plain(), json!({})),
    ] {
        let answer = server.post("/api/generate", &with(&asked, &more));
        assert_eq!(answer.status, 400, "{more}: {}", answer.text);
        assert!(answer.text.contains("image"), "{more}: {}", answer.text);
    }
}

#[test]
fn a_request_has_as_many_images_as_the_server_says() {
    let limits = Limits {
        images_max: 1,
        ..Limits::default()
    };
    let server = server_with("smolvlm", Some(TEMPLATE), limits);
    let small = part(&url(&file("small.png")));
    answered(&server, CHAT, &asking(&json!([small])));
    let (param, message) = refused(&server.post(CHAT, &asking(&json!([small, small]))));
    assert_eq!(param, "messages[0].content[1]");
    assert!(
        message.contains("at most 1 images") && message.contains("has 2"),
        "{message}"
    );
}

/// What follows the end of a PNG is not read.
#[test]
fn a_photograph_fits_into_a_body_for_a_model_that_reads_images() {
    let mut large = file("small.png");
    large.resize(5 << 20, 0);
    let asked = asking(&json!([part(&url(&large))]));
    answered(&server("smolvlm", TEMPLATE), CHAT, &asked);
    assert_eq!(Server::plain().post(CHAT, &asked).status, 413);
    let limits = Limits {
        body_bytes_max: Some(6 << 20),
        ..Limits::default()
    };
    let server = server_with("smolvlm", Some(TEMPLATE), limits);
    assert_eq!(server.post(CHAT, &asked).status, 413);
}
