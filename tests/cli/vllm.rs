//! Commands, variables and files that are made for `vllm serve`.

use super::*;

const FAKE: [&str; 2] = ["--device", "fake"];
const CHAT: &str = "/v1/chat/completions";

fn serving(options: &[&str]) -> Server {
    Server::with(&[&FAKE[..], options].concat())
}

fn refused(options: &[&str], words: &[&str]) {
    refusal(
        &[&["serve", "--port", "0"][..], &FAKE, options].concat(),
        words,
    );
}

/// The JSON of an answer that succeeds.
fn answered(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.ask("POST", path, &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head ends");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn hello() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4, "temperature": 0})
}

/// What the fake device of a server whose context is in its greeting says of it.
fn context(options: &[&str]) -> String {
    let greeting = serving(options).greeting.clone();
    let ready = greeting.lines().last().expect("a line");
    let (_, rest) = ready.split_once("context ").expect("it says so");
    rest.split(',').next().expect("a number").to_owned()
}

#[test]
fn options_without_effect_are_accepted_and_said() {
    let ignored = [
        "--enable-auto-tool-choice",
        "--trust-remote-code",
        "--enforce-eager",
        "--enable-prefix-caching",
        "--enable-chunked-prefill",
        "--async-scheduling",
        "--disable-log-requests",
        "--enable-log-requests",
        "--disable-uvicorn-access-log",
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
        "--enable-server-load-tracking",
    ];
    let with_values = [
        ["--uvicorn-log-level", "info"],
        ["--scheduling-policy", "fcfs"],
        ["--stream-interval", "1"],
        ["--runner", "generate"],
        ["--task", "auto"],
        ["--compilation-config", "{\"level\": 3}"],
    ];
    let silent = [
        ["--tensor-parallel-size", "1"],
        ["--pipeline-parallel-size", "1"],
        ["--data-parallel-size", "1"],
        ["-tp", "1"],
        ["--max-logprobs", "20"],
        ["--response-role", "assistant"],
        ["--generation-config", "auto"],
        ["--revision", "main"],
    ];
    let options = [
        &ignored[..],
        with_values.as_flattened(),
        silent.as_flattened(),
        &["--no-enable-log-requests", "--no-enable-prefix-caching"],
    ];
    let server = serving(&options.concat());
    for name in ignored
        .iter()
        .chain(with_values.iter().map(|[name, _]| name))
    {
        let line = format!("{name} changes nothing here: ");
        assert!(
            server.greeting.contains(&line),
            "{name}: {}",
            server.greeting
        );
    }
    answered(&server, CHAT, &hello());
}

#[test]
fn options_that_folio_cannot_do_are_refused_with_what_to_use_instead() {
    for (options, words) in [
        (
            ["--tensor-parallel-size", "2"],
            [
                "--tensor-parallel-size 2 is not supported",
                "one process serves one device",
            ],
        ),
        (
            ["-tp", "4"],
            ["--tensor-parallel-size 4", "start one for each"],
        ),
        (
            ["--lora-modules", "a=b"],
            ["--lora-modules a", "adapter_config.json"],
        ),
        (["--revision", "v2"], ["--revision v2", "NAME@REVISION"]),
        (
            ["--response-role", "bot"],
            ["--response-role bot", "`assistant`"],
        ),
        (
            ["--max-logprobs", "50"],
            ["--max-logprobs 50", "at most 20"],
        ),
        (["--ssl-keyfile", "key.pem"], ["--ssl-keyfile", "proxy"]),
        (
            ["--generation-config", "folder"],
            ["--generation-config", "--override-generation-config"],
        ),
    ] {
        refused(&options, &words);
    }
    refused(
        &["--enable-mm-embeds"],
        &["--enable-mm-embeds is not supported", "text only"],
    );
}

#[test]
fn variables_and_files_have_the_options_of_vllm_too() {
    let mut command = folio(&["serve", "--port", "0", "--device", "fake"]);
    command
        .env("FOLIO_ENFORCE_EAGER", "1")
        .env("FOLIO_TRUST_REMOTE_CODE", "false");
    command
        .env("FOLIO_TENSOR_PARALLEL_SIZE", "1")
        .env("FOLIO_MAX_MODEL_LEN", "1k");
    let greeting = Server::of(command).greeting.clone();
    assert!(
        greeting.contains("--enforce-eager changes nothing here"),
        "{greeting}"
    );
    assert!(!greeting.contains("--trust-remote-code"), "{greeting}");
    assert!(greeting.contains("context 1000,"), "{greeting}");
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("options.toml");
    let path = file.to_str().expect("a path is text").to_owned();
    let text = "enforce-eager = true\ntensor_parallel_size = 1\nmax_model_len = \"1K\"\n\
                no_enable_prefix_caching = true\n\
                uvicorn-log-level = \"info\"\ncompilation_config = {level = 3}\n";
    fs::write(&file, text).expect("the folder takes files");
    let greeting = serving(&["--config", &path]).greeting.clone();
    for name in [
        "--enforce-eager",
        "--uvicorn-log-level",
        "--compilation-config",
    ] {
        assert!(
            greeting.contains(&format!("{name} changes nothing here")),
            "{name}: {greeting}"
        );
    }
    assert!(greeting.contains("context 1024,"), "{greeting}");
    fs::write(&file, "tensor_parallel_size = 2\n").expect("the folder takes files");
    refused(
        &["--config", &path],
        &["options.toml", "--tensor-parallel-size 2 is not supported"],
    );
    fs::write(&file, "[models.a]\nenable_mm_embeds = true\n").expect("the folder takes files");
    refused(
        &["--config", &path],
        &["options.toml", "--enable-mm-embeds is not supported"],
    );
    let mut command = folio(&["serve", "--port", "0", "--device", "fake"]);
    let output = command
        .env("FOLIO_ENABLE_MM_EMBEDS", "1")
        .output()
        .expect("the binary starts");
    assert!(
        !output.status.success()
            && text_of(&output).contains("--enable-mm-embeds is not supported")
    );
}

fn text_of(output: &Output) -> String {
    text(&output.stderr)
}

#[test]
fn numbers_of_tokens_are_written_as_for_vllm_and_the_last_option_counts() {
    assert_eq!(context(&["--max-model-len", "1k"]), "1000");
    assert_eq!(context(&["--max-model-len", "1K"]), "1024");
    assert_eq!(
        context(&["--max-model-len", "0.5K", "--max-num-batched-tokens", "2k"]),
        "512"
    );
    let of_model = context(&[]);
    assert_eq!(context(&["--max-model-len", "auto"]), of_model);
    assert_eq!(context(&["--max-model-len", "-1"]), of_model);
    assert_eq!(
        context(&["--max-model-len", "100", "--max-model-len", "200"]),
        "200"
    );
    assert_eq!(
        context(&["--max-model-len", "100", "--max-model-len=auto"]),
        of_model
    );
    for wrong in ["1x", "k", "-5", "a"] {
        refused(&["--max-model-len", wrong], &["--max-model-len"]);
    }
    refused(&["--max-num-seqs", "auto"], &["--max-num-seqs"]);
}

#[test]
fn a_path_of_a_proxy_may_stand_before_every_route() {
    let server = serving(&["--root-path", "/llm/one/"]);
    for before in ["", "/llm/one"] {
        answered(&server, &format!("{before}{CHAT}"), &hello());
        let health = server.ask("GET", &format!("{before}/health"), "");
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
        let missing = server.ask("GET", &format!("{before}/v1/nothing"), "");
        assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
    }
    let other = server.ask("GET", "/llm/two/health", "");
    assert!(other.starts_with("HTTP/1.1 404"), "{other}");
    for wrong in ["llm", "/a b", "/{a}"] {
        refused(&["--root-path", wrong], &["--root-path"]);
    }
}

#[test]
fn usage_ids_and_defaults_are_set_for_all_requests() {
    let server = serving(&[
        "--enable-force-include-usage",
        "--return-tokens-as-token-ids",
        "--override-generation-config",
        "{\"max_new_tokens\": 3, \"temperature\": 0}",
        "--generation-config",
        "vllm",
    ]);
    let asked = json!({"prompt": "Once", "max_tokens": 9, "ignore_eos": true, "logprobs": 0});
    let [one, two] = [0, 1].map(|_| answered(&server, "/v1/completions", &asked));
    assert_eq!(one["usage"]["completion_tokens"], 3, "{one}");
    assert_eq!(one["choices"], two["choices"], "it is greedy");
    let token = &one["choices"][0]["logprobs"]["tokens"][0];
    assert!(
        token
            .as_str()
            .is_some_and(|token| token.starts_with("token_id:")),
        "{one}"
    );
    for more in [
        json!({}),
        json!({"stream_options": {"include_usage": false}}),
    ] {
        let mut streamed = hello();
        streamed["stream"] = true.into();
        let more = more.as_object().expect("an object").clone();
        streamed.as_object_mut().expect("an object").extend(more);
        let answer = server.ask("POST", CHAT, &streamed.to_string());
        assert!(
            answer.contains("\"choices\":[],\"usage\":{\"prompt_tokens\":"),
            "{answer}"
        );
    }
    for (option, value, word) in [
        (
            "--override-generation-config",
            "{\"temperature\": 900}",
            "`temperature`",
        ),
        ("--override-generation-config", "{\"stop\": 9}", "`stop`"),
        (
            "--override-generation-config",
            "nothing",
            "--override-generation-config",
        ),
        (
            "--default-chat-template-kwargs",
            "[]",
            "--default-chat-template-kwargs",
        ),
        (
            "--default-chat-template-kwargs",
            "{\"messages\": []}",
            "`messages`",
        ),
    ] {
        refused(&[option, value], &[option, word]);
    }
}

#[test]
fn a_template_gets_the_servers_variables_before_those_of_a_request() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let template = folder.path().join("chat.jinja");
    fs::write(&template, "{{ a }}/{{ b }}/{{ enable_thinking }}").expect("the folder takes files");
    let server = serving(&[
        "--chat-template",
        template.to_str().expect("a path is text"),
        "--default-chat-template-kwargs",
        "{\"a\": 1, \"b\": 2, \"enable_thinking\": false}",
    ]);
    let rendered = |more: Value| {
        let mut request = hello();
        let more = more.as_object().expect("an object").clone();
        request.as_object_mut().expect("an object").extend(more);
        answered(&server, "/apply-template", &request)["prompt"].clone()
    };
    assert_eq!(rendered(json!({})), "1/2/False");
    assert_eq!(
        rendered(json!({"chat_template_kwargs": {"b": 3}})),
        "1/3/False"
    );
    assert_eq!(rendered(json!({"reasoning_effort": "high"})), "1/2/True");
}

#[test]
fn origins_may_be_a_list_in_json() {
    let server = serving(&[
        "--allowed-origins",
        "[\"https://a.example\", \"https://b.example\"]",
    ]);
    for origin in [
        "https://a.example",
        "https://b.example",
        "https://c.example",
    ] {
        let request = format!(
            "OPTIONS {CHAT} HTTP/1.1\r\nHost: {}\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Connection: close\r\n\r\n",
            server.address
        );
        let mut stream = TcpStream::connect(&server.address).expect("the server listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("the answer is text");
        let is_allowed = answer.contains(&format!("access-control-allow-origin: {origin}"));
        assert_eq!(is_allowed, origin != "https://c.example", "{answer}");
    }
    serving(&["--allowed-origins", "[\"*\"]"]);
}

#[cfg(unix)]
#[test]
fn a_socket_is_named_as_for_vllm() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = folder.path().join("folio.sock");
    let path = path.to_str().expect("a path is text");
    let mut command = folio(&["serve", "--device", "fake", "--uds", path]);
    let mut process = command
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
    let ready = lines.find_map(|line| line.ok().filter(|line| line.contains("ready on")));
    assert!(ready.is_some_and(|line| line.contains(&format!("ready on unix:{path} "))));
    process.kill().expect("it runs");
    process.wait().expect("it ends");
    refused(&["--uds", ""], &["--uds"]);
}

#[test]
fn lines_of_a_batch_call_every_route_that_generates_embeds_or_ranks() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("batch.jsonl");
    let pair = json!({"text_1": "a", "text_2": "b"});
    let ranking = json!({"query": "a", "documents": ["b", "c"]});
    let lines = [
        ("/v1/chat/completions", hello()),
        ("/v1/completions", json!({"prompt": "Once"})),
        ("/v1/responses", json!({"input": "Hello!"})),
        ("/v1/messages", hello()),
        ("/v1/embeddings", json!({"input": "Once"})),
        ("/v1/score", pair.clone()),
        ("/score", pair),
        ("/v1/rerank", ranking.clone()),
        ("/v2/rerank", ranking.clone()),
        ("/rerank", ranking),
    ];
    let line = |(url, body): &(&str, Value)| json!({"custom_id": url, "method": "POST", "url": url, "body": body});
    let text: Vec<_> = lines.iter().map(|one| line(one).to_string()).collect();
    fs::write(&file, text.join("\n")).expect("the folder takes files");
    let path = file.to_str().expect("a path is text");
    let output = result(&[
        "run",
        "--device",
        "fake",
        "--input",
        path,
        "--max-tokens",
        "4",
    ]);
    let answers: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(answers.len(), lines.len());
    for (answer, (url, _)) in answers.iter().zip(&lines) {
        assert_eq!(
            (&answer["custom_id"], &answer["response"]["status_code"]),
            (&json!(url), &json!(200)),
            "{answer}"
        );
    }
    assert_eq!(answers[2]["response"]["body"]["max_output_tokens"], 4);
}
