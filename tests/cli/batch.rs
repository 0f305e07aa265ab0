//! `folio run` as a client of the API: files in OpenAI's batch format and in the short forms, any field of a request,
//! and models without a chat template.

use super::{demo_golden, folio, golden_answer, packed, refusal, repository, result, run, text};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;

/// Answers of `run --input` with these lines. The exit code says whether one failed.
fn answers(arguments: &[&str], lines: &[Value]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let input = folder.path().join("in.jsonl");
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    fs::write(&input, lines.join("\n")).expect("the folder takes files");
    let output = run(&[&["run", "--input", &input.to_string_lossy()], arguments].concat());
    let (answers, message) = (text(&output.stdout), text(&output.stderr));
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    assert_eq!(
        answers.len(),
        lines.len(),
        "every line has an answer: {message}"
    );
    let has_failed = |answer: &&Value| {
        !answer["error"].is_null()
            || answer["response"]["status_code"]
                .as_u64()
                .is_some_and(|status| status != 200)
    };
    let failed = answers.iter().filter(has_failed).count();
    assert_eq!(
        output.status.code(),
        Some(i32::from(failed > 0)),
        "{message}"
    );
    assert_eq!(
        message.contains(&format!("{failed} of {} lines failed", lines.len())),
        failed > 0,
        "{message}"
    );
    answers
}

fn line(id: &str, url: &str, body: &Value) -> Value {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body})
}

/// A folder with the demo model, without its chat template.
fn base_model(folder: &Path) {
    for name in [
        "model.safetensors",
        "tokenizer.json",
        "config.json",
        "generation_config.json",
    ] {
        fs::copy(repository("assets/demo").join(name), folder.join(name))
            .expect("a file of the demo copies");
    }
    let config =
        fs::read(repository("assets/demo/tokenizer_config.json")).expect("the demo has a config");
    let mut config: Value = serde_json::from_slice(&config).expect("the config is JSON");
    config
        .as_object_mut()
        .expect("an object")
        .remove("chat_template")
        .expect("the demo has a template");
    fs::write(folder.join("tokenizer_config.json"), config.to_string())
        .expect("the folder takes files");
}

#[test]
fn a_file_mixes_openai_lines_and_short_forms() {
    let golden = demo_golden();
    let chat = "/v1/chat/completions";
    let greedy = json!({"messages": golden[0]["messages"], "temperature": 0, "max_tokens": 64});
    let with = |name: &str, value: Value| {
        let mut body = greedy.clone();
        body[name] = value;
        body
    };
    let lines = [
        line("chat", chat, &greedy),
        json!({"prompt_token_ids": golden[0]["prompt_ids"], "temperature": 0, "max_tokens": 64}),
        line(
            "texts",
            "/v1/completions",
            &json!({"prompt": ["Hello", "Once"], "max_tokens": 2}),
        ),
        line("vector", "/v1/embeddings", &json!({"input": "Hello"})),
        line(
            "choice",
            chat,
            &with("structured_outputs", json!({"choice": ["red", "blue"]})),
        ),
        line("field", chat, &with("temperature", json!(9))),
        line("model", chat, &with("model", json!("other"))),
        line("stream", chat, &with("stream", json!(true))),
        line("url", "/v1/models", &greedy),
        json!({"custom_id": "method", "method": "GET", "url": chat, "body": greedy}),
        json!({"custom_id": "body", "method": "POST", "url": chat}),
        json!({"method": "POST", "url": chat, "body": greedy}),
        line("unknown field", chat, &with("no_such_field", json!(1))),
    ];
    let answers = answers(&["--device", "cpu"], &lines);
    for (line, answer) in lines
        .iter()
        .zip(&answers)
        .filter(|(line, _)| line["prompt_token_ids"].is_null())
    {
        assert_eq!(
            answer["custom_id"], line["custom_id"],
            "answers come in the order of the lines"
        );
        assert!(
            answer["id"]
                .as_str()
                .is_some_and(|id| id.starts_with("batch_req_")),
            "{answer}"
        );
        assert!(
            answer["response"].is_null() != answer["error"].is_null(),
            "one of the two: {answer}"
        );
    }
    let body = |index: usize| {
        assert_eq!(
            answers[index]["response"]["status_code"], 200,
            "{}",
            answers[index]
        );
        assert!(
            answers[index]["response"]["request_id"].is_string(),
            "{}",
            answers[index]
        );
        &answers[index]["response"]["body"]
    };
    assert_eq!(
        body(0)["choices"][0]["message"]["content"],
        golden_answer(&golden[0])
    );
    assert_eq!(answers[1]["index"], 1);
    assert_eq!(answers[1]["outputs"][0]["text"], golden_answer(&golden[0]));
    assert_eq!(body(2)["choices"].as_array().map(Vec::len), Some(2));
    assert!(
        body(3)["data"][0]["embedding"]
            .as_array()
            .is_some_and(|vector| vector.len() > 8)
    );
    assert!(
        ["red", "blue"]
            .map(|word| json!(word))
            .contains(&body(4)["choices"][0]["message"]["content"])
    );
    for (index, status, word) in [(5, 400, "temperature"), (6, 404, "other")] {
        let response = &answers[index]["response"];
        assert_eq!(response["status_code"], status, "{response}");
        assert!(
            response["body"]["error"]["message"]
                .as_str()
                .is_some_and(|text| text.contains(word)),
            "{response}"
        );
    }
    let errors = [
        "invalid_body",
        "invalid_url",
        "invalid_method",
        "invalid_body",
        "invalid_custom_id",
    ];
    for (answer, code) in answers[7..].iter().zip(errors) {
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(answer["error"]["message"].is_string(), "{answer}");
    }
    assert_eq!(
        body(12)["choices"][0]["message"]["content"],
        golden_answer(&golden[0]),
        "ignored, as a server does"
    );
}

#[test]
fn a_short_form_takes_every_field_of_the_api() {
    let golden = demo_golden();
    let calls = golden
        .iter()
        .find(|golden| golden["tools"].is_array())
        .expect("one prompt has tools");
    let ids = &golden[0]["prompt_ids"];
    let lines = [
        json!({"messages": calls["messages"], "tools": calls["tools"]}),
        json!({"messages": golden[0]["messages"], "logprobs": 2, "max_tokens": 1}),
        json!({"prompt_token_ids": ids, "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 1}),
        json!({"prompt_token_ids": ids, "echo": true, "max_tokens": 1}),
        json!({"prompt_token_ids": ids, "tools": []}),
    ];
    let answers = answers(
        &[
            "--device",
            "cpu",
            "--temperature",
            "0",
            "--max-tokens",
            "64",
        ],
        &lines,
    );
    let call = &answers[0]["outputs"][0];
    assert_eq!(
        call["text"],
        golden_answer(calls),
        "the text is all that the model wrote"
    );
    assert_eq!(call["tool_calls"][0]["function"]["name"], "get_weather");
    assert_eq!(call["finish_reason"], "tool_calls");
    let logprobs = |index: usize| answers[index]["outputs"][0]["logprobs"].clone();
    assert_eq!(logprobs(1), logprobs(2), "both ways to ask mean the same");
    assert_eq!(logprobs(1)[0]["token_id"], golden[0]["greedy_ids"][0]);
    assert_eq!(
        logprobs(1)[0]["top"][0]["token_id"],
        golden[0]["greedy_ids"][0]
    );
    assert_eq!(logprobs(1)[0]["top"].as_array().map(Vec::len), Some(2));
    let echoed = answers[3]["outputs"][0]["text"].as_str().expect("a text");
    assert!(
        echoed.contains("Hello!"),
        "the prompt stands before the answer: {echoed}"
    );
    assert!(
        answers[4]["error"]
            .as_str()
            .is_some_and(|error| error.contains("tools")),
        "{}",
        answers[4]
    );
}

/// `--prompt` and a line's `prompt` are one message of a user; `raw` makes them text to continue.
#[test]
fn a_prompt_means_the_same_everywhere() {
    let golden = &demo_golden()[0];
    let (message, rendered) = (&golden["messages"][0]["content"], &golden["prompt_text"]);
    let answer = golden_answer(golden);
    let greedy = [
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
    ];
    let lines = [
        json!({"prompt": message}),
        json!({"prompt": rendered, "raw": true}),
        json!({"messages": golden["messages"]}),
        json!({"prompt": [rendered, rendered], "raw": true}),
        json!({"prompt": golden["prompt_ids"]}),
        json!({"messages": golden["messages"], "raw": true}),
    ];
    let said = answers(&greedy, &lines);
    for said in &said[..4] {
        assert_eq!(said["outputs"][0]["text"], answer, "{said}");
    }
    for (said, words) in [
        (&said[4], "must be a text"),
        (&said[5], "needs the chat template"),
    ] {
        assert!(
            said["error"]
                .as_str()
                .is_some_and(|error| error.contains(words)),
            "{said}"
        );
    }
    let raw = [
        json!({"prompt": rendered}),
        json!({"prompt": message, "raw": false}),
        lines[2].clone(),
    ];
    for said in answers(&[&greedy[..], &["--raw"]].concat(), &raw) {
        assert_eq!(
            said["outputs"][0]["text"], answer,
            "a line wins over the flag: {said}"
        );
    }
}

#[test]
fn no_line_is_refused_because_the_engine_is_busy() {
    let several = line(
        "several",
        "/v1/completions",
        &json!({"prompt": vec!["Hello"; 9], "n": 2, "max_tokens": 2}),
    );
    let few = answers(
        &["--device", "fake", "--queue-requests-max", "2"],
        &vec![several; 12],
    );
    assert!(
        few.iter()
            .all(|answer| answer["response"]["status_code"] == 200),
        "{}",
        few[0]
    );
    // Long texts are encoded on separate threads, whose number is limited.
    let long = json!({"prompt": "Hello ".repeat(900), "max_tokens": 1});
    let many = answers(&["--device", "fake"], &vec![long; 150]);
    for answer in many {
        assert_eq!(answer["error"], Value::Null);
        assert_eq!(answer["usage"]["completion_tokens"], 1);
    }
}

#[test]
fn answers_come_while_the_input_is_open() {
    let mut command = folio(&[
        "run",
        "--device",
        "fake",
        "--max-tokens",
        "2",
        "--input",
        "-",
    ]);
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut input = process.stdin.take().expect("stdin is piped");
    let mut output = BufReader::new(process.stdout.take().expect("stdout is piped"));
    for index in 0..3 {
        writeln!(input, "{}", json!({"prompt": "Hello"})).expect("the command reads");
        let mut answer = String::new();
        output.read_line(&mut answer).expect("the command writes");
        let answer: Value = serde_json::from_str(&answer).expect("a line is JSON");
        assert_eq!(answer["index"], index);
    }
    drop(input);
    assert!(process.wait().expect("the command ends").success());
}

#[test]
fn beams_answer_a_prompt_and_the_lines_of_a_file() {
    let greedy = result(&[
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "8",
        "--prompt",
        "Hello!",
    ]);
    let search = [
        "run",
        "--device",
        "cpu",
        "--max-tokens",
        "8",
        "--seed",
        "1",
        "--prompt",
        "Hello!",
        "--beams",
    ];
    assert_eq!(
        result(&[&search[..], &["1"]].concat()),
        greedy,
        "one beam is greedy"
    );
    assert!(!result(&[&search[..], &["4"]].concat()).trim().is_empty());
    let all: Value =
        serde_json::from_str(&result(&[&search[..], &["4", "--json"]].concat())).expect("JSON");
    assert_eq!(
        all["choices"].as_array().map(Vec::len),
        Some(1),
        "the best of four"
    );
    refusal(&[&search[..], &["17"]].concat(), &["best_of", "16"]);
}

#[test]
fn every_kind_of_keys_and_values_answers() {
    for kind in ["auto", "f32", "f16", "q8", "fp8", "fp8_e4m3"] {
        let greedy = [
            "run",
            "--device",
            "cpu",
            "--temperature",
            "0",
            "--prompt",
            "Hello!",
            "--kv-cache-dtype",
            kind,
        ];
        let answer = result(&greedy);
        assert!(
            answer.starts_with("Hi! What can I do for you?"),
            "{kind}: {answer}"
        );
    }
    refusal(
        &[
            "run",
            "--device",
            "cpu",
            "--prompt",
            "a",
            "--kv-cache-dtype",
            "fp8_e5m2",
        ],
        &["--kv-cache-dtype"],
    );
}

#[test]
fn a_prompt_takes_every_field_of_the_api() {
    let greedy = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
        "--prompt",
        "Hello!",
    ];
    let choice = r#"{"structured_outputs": {"choice": ["red"]}}"#;
    assert_eq!(
        result(&[&greedy[..], &["--extra-body", choice]].concat()),
        "red\n"
    );
    let whole = result(
        &[
            &greedy[..],
            &["--extra-body", r#"{"logprobs": true, "n": 2}"#, "--json"],
        ]
        .concat(),
    );
    let whole: Value = serde_json::from_str(&whole).expect("one JSON object");
    assert_eq!(whole["choices"].as_array().map(Vec::len), Some(2));
    assert!(
        whole["choices"][1]["logprobs"]["content"][0]["logprob"].is_number(),
        "{whole}"
    );
    refusal(
        &[&greedy[..], &["--extra-body", r#"{"n": 2}"#]].concat(),
        &["`n`", "--json"],
    );
    refusal(
        &[&greedy[..], &["--extra-body", r#"{"no_such_field": 2}"#]].concat(),
        &["no_such_field"],
    );
    refusal(
        &[&greedy[..], &["--extra-body", "[]"]].concat(),
        &["--extra-body", "JSON object"],
    );
}

#[test]
fn a_model_without_chat_template_completes_text() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    base_model(folder.path());
    let model = folder.path().to_string_lossy();
    let golden = &demo_golden()[0];
    let rendered = golden["prompt_text"].as_str().expect("a text");
    let greedy = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--model",
        &model,
    ];
    let output = run(&[&greedy[..], &["--prompt", rendered]].concat());
    assert_eq!(
        text(&output.stdout),
        golden_answer(golden) + "\n",
        "{}",
        text(&output.stderr)
    );
    let notes = text(&output.stderr);
    let notes: Vec<&str> = notes
        .lines()
        .filter(|line| line.contains("chat template"))
        .collect();
    assert!(
        notes.len() == 1 && notes[0].contains("--chat-template"),
        "one line says so: {notes:?}"
    );
    let raw = run(&[&greedy[..], &["--prompt", rendered, "--raw"]].concat());
    assert_eq!(raw.stdout, output.stdout);
    assert!(
        !text(&raw.stderr).contains("chat template"),
        "who asks for it is not told"
    );

    refusal(
        &["chat", "--device", "cpu", "--model", &model],
        &["--chat-template", "/v1/completions"],
    );
    let messages = json!({"messages": golden["messages"]});
    let lines = [line("a", "/v1/chat/completions", &messages), messages];
    let answers = answers(&["--device", "cpu", "--model", &model], &lines);
    let message = &answers[0]["response"]["body"]["error"]["message"];
    let refused = message.as_str().expect("the route refuses");
    assert!(
        refused.contains("--chat-template") && refused.contains("/v1/completions"),
        "{refused}"
    );
    assert!(
        answers[1]["error"]
            .as_str()
            .is_some_and(|error| error.contains("--chat-template")),
        "{}",
        answers[1]
    );

    let template = folder.path().join("own.jinja");
    fs::write(&template, "{{ messages[0]['content'] }}").expect("the folder takes files");
    let own = [
        "--chat-template",
        &template.to_string_lossy(),
        "--prompt",
        rendered,
    ];
    let templated = run(&[&greedy[..], &own].concat());
    assert!(templated.status.success() && !text(&templated.stderr).contains("no chat template"));
}

/// A model that reads images, without the tokenizer's words that begin with a letter, and with a chat template.
fn seeing_model(folder: &Path) {
    let golden = packed::model("vision").join("smolvlm");
    for entry in fs::read_dir(&golden).expect("the folder is there") {
        let path = entry.expect("it is read").path();
        if path.is_file() {
            let name = path.file_name().expect("a file has a name");
            fs::copy(&path, folder.join(name)).expect("a file copies");
        }
    }
    let change = |name: &str, change: &dyn Fn(&mut Value)| {
        let path = folder.join(name);
        let bytes = fs::read(&path).expect("it is there");
        let mut file: Value = serde_json::from_slice(&bytes).expect("it is JSON");
        change(&mut file);
        fs::write(&path, file.to_string()).expect("the folder takes files");
    };
    change("tokenizer.json", &|file| {
        let added = file["added_tokens"].as_array_mut().expect("a list");
        added.retain(|token| {
            !token["content"]
                .as_str()
                .is_some_and(|text| text.starts_with('t'))
        });
    });
    change("tokenizer_config.json", &|file| {
        let map = file.as_object_mut().expect("an object");
        map.retain(|name, _| !["bos_token", "eos_token", "pad_token"].contains(&name.as_str()));
    });
    let template = "{% for message in messages %}{% for part in message.content %}\
                    {% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{{ ' ' }}\
                    {% endfor %}{% endfor %}";
    fs::write(folder.join("chat_template.jinja"), template).expect("the folder takes files");
}

#[test]
fn run_shows_images_and_names_the_file_that_is_none() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    seeing_model(folder.path());
    let model = folder.path().to_string_lossy();
    let images = packed::model("vision").join("images");
    let small = images.join("small.png");
    let small = small.to_string_lossy();
    let asked = |more: &[&str]| {
        let common = [
            "run",
            "--model",
            &model,
            "--device",
            "cpu",
            "--max-tokens",
            "4",
            "--json",
        ];
        run(&[&common, more].concat())
    };
    let count = |more: &[&str]| {
        let output = asked(more);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        answer["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    let without = count(&["t050"]);
    let with_one = count(&["--image", &small, "t050"]);
    let with_two = count(&["--image", &small, "--image", &small, "t050"]);
    assert!(with_one >= without + 64, "{with_one} of {without}");
    assert_eq!(with_two - with_one, with_one - without);
    let config = folder.path().join("config.json");
    let config = config.to_string_lossy();
    for (file, reason) in [("no-such.png", "no-such.png"), (&*config, "config.json")] {
        let refusal = asked(&["--image", file, "t050"]);
        assert!(!refusal.status.success());
        let message = text(&refusal.stderr);
        assert!(
            message.contains("--image") && message.contains(reason),
            "{message}"
        );
    }
    let refusal = run(&[
        "run", "--device", "cpu", "--image", &small, "--prompt", "Hello",
    ]);
    assert!(!refusal.status.success());
    let message = text(&refusal.stderr);
    assert!(
        message.contains("--image: this model reads text only"),
        "{message}"
    );
}
