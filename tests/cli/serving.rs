//! The server: what it answers, guards and limits, and how it ends.

use super::*;

#[cfg(unix)]
#[test]
fn serve_answers_and_ends_when_told() {
    let golden = demo_golden();
    let mut server = Server::start();
    assert!(server.ask("GET", "/health", "").starts_with("HTTP/1.1 200"));
    let body = json!({"messages": golden[0]["messages"], "temperature": 0, "max_tokens": 64});
    let answer = server.ask("POST", "/v1/chat/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(&golden_answer(&golden[0])), "{answer}");

    // A stream that is open when the signal arrives ends normally.
    let body = json!({"messages": golden[0]["messages"], "stream": true, "ignore_eos": true, "max_tokens": 200});
    let mut stream = BufReader::new(server.open("POST", "/v1/chat/completions", &body.to_string()));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(
            stream.read_line(&mut line).expect("the stream reads") > 0,
            "the stream has begun"
        );
    }
    signal(&server, "-TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream reads");
    assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let mut messages = String::new();
    server
        .messages
        .read_to_string(&mut messages)
        .expect("stderr reads");
    assert_eq!(
        server.process.wait().expect("the server ends").code(),
        Some(0),
        "{messages}"
    );
}

#[test]
fn serve_guards_and_limits_as_told() {
    let keys = [
        "--api-key",
        "sesame",
        "--choices-max",
        "2",
        "--prompts-max",
        "3",
    ];
    let mut server = Server::with(&[&["--device", "fake"], &keys[..]].concat());
    let status = |server: &Server, body: Value| {
        let answer = server.ask("POST", "/v1/completions", &body.to_string());
        answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse::<u16>().ok())
            .unwrap_or_else(|| panic!("{answer}"))
    };
    let short =
        |prompts: usize, n: u32| json!({"prompt": vec!["Hello"; prompts], "n": n, "max_tokens": 2});
    assert_eq!(status(&server, short(1, 1)), 401, "the key is asked for");
    server.headers = vec!["Authorization: Bearer sesame\r\n"];
    assert_eq!(status(&server, short(3, 2)), 200);
    assert_eq!(status(&server, short(1, 3)), 400, "--choices-max");
    assert_eq!(status(&server, short(4, 1)), 400, "--prompts-max");
    server.headers.push("Host: gpu.lan:80\r\n");
    assert_eq!(status(&server, short(1, 1)), 200, "any host with a key");
    server.headers.push("Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(status(&server, short(1, 1)), 403, "another site's page");
    let mut server = Server::with(&["--device", "fake", "--allowed-host", "*.lan"]);
    server.headers = vec!["Host: gpu.lan:80\r\n"];
    assert_eq!(status(&server, short(1, 1)), 200, "--allowed-host");
    server.headers = vec!["Host: evil.example\r\n"];
    let refused = server.ask("POST", "/v1/completions", &short(1, 1).to_string());
    assert!(
        refused.starts_with("HTTP/1.1 403 ") && refused.contains("allow it with --allowed-host"),
        "{refused}"
    );
    assert!(
        result(&["serve", "--help"]).contains("--allowed-host <HOST>"),
        "the flag that the refusal names exists"
    );
    refusal(
        &["serve", "--choices-max", "129"],
        &["--choices-max", "129"],
    );
    refusal(&["serve", "--prompts-max", "0"], &["--prompts-max", "0"]);
}

/// An empty setting is an error, never a setting that is off; and no message repeats a key.
#[test]
fn security_settings_fail_closed() {
    let variables = [
        "FOLIO_API_KEY",
        "FOLIO_API_KEY_FILE",
        "FOLIO_HOST",
        "FOLIO_ALLOWED_HOST",
        "FOLIO_ALLOWED_ORIGINS",
    ];
    for variable in variables {
        let option = format!(
            "--{}",
            variable
                .trim_start_matches("FOLIO_")
                .to_lowercase()
                .replace('_', "-")
        );
        let mut command = folio(&["serve", "--device", "fake", "--port", "0"]);
        let by_variable = command
            .env(variable, "")
            .output()
            .expect("the binary starts");
        let by_option = run(&[
            "serve",
            "--device",
            "fake",
            "--port",
            "0",
            &format!("{option}="),
        ]);
        for output in [by_variable, by_option] {
            let message = text(&output.stderr);
            assert!(
                matches!(output.status.code(), Some(1 | 2)),
                "{variable}: {message}"
            );
            assert!(message.contains(&option), "{variable}: {message}");
        }
    }
    let serve = |option: &str, value: &str, words: &[&str]| {
        refusal(
            &["serve", "--device", "fake", "--port", "0", option, value],
            &[&[option], words].concat(),
        );
    };
    serve("--api-key", "one,two", &["comma", "--api-key-file"]);
    serve("--api-key", "one two", &["spaces"]);
    serve("--allowed-origins", "https://a.org,", &["''"]);
    serve("--allowed-origins", "example.org", &["https://example.org"]);
    serve("--allowed-host", "http://gpu.lan", &["gpu.example.org"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    let path = file.to_str().expect("a path");
    serve("--api-key-file", path, &["No such file"]);
    fs::write(&file, "\n").expect("a file");
    serve("--api-key-file", path, &["has no key"]);
    fs::write(&file, "good\nsecret one\n").expect("a file");
    serve("--api-key-file", path, &["line 2", "spaces"]);
    assert!(
        !text(&run(&["serve", "--api-key-file", path]).stderr).contains("secret"),
        "a key is not printed"
    );
    fs::write(&file, "sesame\n\nother\n").expect("a file");
    let mut server = Server::with(&["--device", "fake", "--api-key-file", path]);
    assert!(
        server
            .ask("GET", "/v1/models", "")
            .starts_with("HTTP/1.1 401")
    );
    for (header, status) in [
        ("Authorization: Bearer sesame\r\n", "200"),
        ("X-Api-Key: other\r\n", "200"),
        ("Authorization: Bearer sesam\r\n", "401"),
        ("Authorization: Bearer sesame,other\r\n", "401"),
        ("Authorization: Bearer \r\n", "401"),
    ] {
        server.headers = vec![header];
        let answer = server.ask("GET", "/v1/models", "");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{header}: {answer}"
        );
    }
}

/// A terminal that is closed may send two of them.
#[cfg(unix)]
#[test]
fn a_hang_up_drains_like_sigterm() {
    let mut server = Server::with(&["--device", "fake:pause=10"]);
    let mut stream = begun(&server, 100);
    for _ in 0..2 {
        signal(&server, "-HUP");
        let drains = || server.ask("GET", "/health", "").starts_with("HTTP/1.1 503");
        assert!(
            (0..1000).any(|_| drains()),
            "no drain; are these tests run with SIGHUP ignored, as under nohup?"
        );
    }
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream reads");
    assert!(
        rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"),
        "{rest}"
    );
    assert_eq!(
        server.process.wait().expect("the server ends").code(),
        Some(0)
    );
}

/// As `nohup` starts it.
#[cfg(unix)]
#[test]
fn a_hang_up_that_is_ignored_stays_ignored() {
    let mut server = Server::after("trap '' HUP", "fake");
    signal(&server, "-HUP");
    let answer = server.ask(
        "POST",
        "/v1/completions",
        &json!({"prompt": "Hello", "max_tokens": 2}).to_string(),
    );
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        server
            .process
            .try_wait()
            .expect("it can be asked")
            .is_none()
    );
}

#[cfg(unix)]
#[test]
fn connections_are_limited_by_options_and_by_the_limit_of_files() {
    refusal(
        &[
            "serve",
            "--port",
            "0",
            "--device",
            "fake",
            "--max-connections",
            "0",
        ],
        &["--max-connections"],
    );
    let limits = [
        "--device",
        "fake:pause=10",
        "--max-connections",
        "1",
        "--max-connections-per-peer",
        "0",
    ];
    let server = Server::with(&limits);
    assert!(!server.greeting.contains("warning"), "{}", server.greeting);
    let stream = begun(&server, 2000);
    let answer = server.ask("GET", "/health", "");
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("too_many_connections"),
        "{answer}"
    );
    drop(stream);
    let server = Server::after("ulimit -n 300", "fake");
    let words = "at most 150 connections instead of 4096: this process may open only 300 files";
    assert!(server.greeting.contains(words), "{}", server.greeting);
    assert!(server.ask("GET", "/health", "").starts_with("HTTP/1.1 200"));
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut server = Server::with(&["--device", "fake:pause=100"]);
    let _stream = begun(&server, 2000);
    signal(&server, "-TERM");
    while !server.ask("GET", "/health", "").starts_with("HTTP/1.1 503") {
        std::thread::yield_now();
    }
    assert!(
        server
            .process
            .try_wait()
            .expect("it can be asked")
            .is_none(),
        "the stream may go on for minutes"
    );
    signal(&server, "-TERM");
    assert_eq!(
        server.process.wait().expect("the server ends").code(),
        Some(130)
    );
}

#[cfg(unix)]
#[test]
fn a_server_whose_engine_is_gone_ends_with_a_failure() {
    for (script, words) in [
        ("fake:panic@3", "panic"),
        ("fake:dead@3", "lost"),
        ("fake:hang@2,hang@4,hang@6", "hangs"),
    ] {
        let mut server = Server::with(&["--device", script]);
        let body = json!({"prompt": "Hello", "stream": true, "ignore_eos": true, "max_tokens": 50});
        let answer = server.ask("POST", "/v1/completions", &body.to_string());
        assert!(
            answer.contains("\"error\"") && answer.contains("data: [DONE]"),
            "{script}: {answer}"
        );
        let mut messages = String::new();
        server
            .messages
            .read_to_string(&mut messages)
            .expect("stderr reads");
        assert_eq!(
            server.process.wait().expect("the server ends").code(),
            Some(1),
            "{script}: {messages}"
        );
        assert!(
            messages
                .lines()
                .last()
                .is_some_and(|line| line.contains(words)),
            "{script}: {messages}"
        );
    }
}

/// A template may show tools in a way that says nothing of how calls are written.
#[test]
fn a_server_says_at_its_start_that_calls_of_an_unknown_format_are_not_read() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("own.jinja");
    let path = file.to_str().expect("the path is UTF-8");
    let unknown = "{{ tools | tojson }}{{ messages[0]['content'] }}";
    let known = format!("{unknown}<tool_call>");
    let set = ["--tool-call-parser", "xlam"];
    for (template, more, is_said) in [
        (unknown, &[][..], true),
        (unknown, &set, false),
        (&known, &[], false),
    ] {
        fs::write(&file, template).expect("the folder takes files");
        let options = ["--device", "fake", "--chat-template", path];
        let server = Server::with(&[&options[..], more].concat());
        let said = server.greeting.matches("--tool-call-parser").count();
        assert_eq!(said, usize::from(is_said), "{}", server.greeting);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn systemd_is_told_that_the_server_is_ready_and_that_it_ends() {
    use std::os::unix::net::UnixDatagram;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let timeout = std::time::Duration::from_secs(30);
    socket.set_read_timeout(Some(timeout)).expect("it has one");
    let told = || {
        let mut bytes = [0; 64];
        let count = socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8_lossy(&bytes[..count]).trim().to_owned()
    };
    let mut command = folio(&["serve", "--port", "0", "--device", "fake"]);
    let server = Server::of({
        command.env("NOTIFY_SOCKET", &path);
        command
    });
    assert_eq!(told(), "READY=1");
    signal(&server, "-TERM");
    assert_eq!(told(), "STOPPING=1");
}

#[test]
fn every_line_of_a_json_log_is_an_object() {
    let command = folio(&[
        "serve",
        "--port",
        "0",
        "--device",
        "fake",
        "--log-format",
        "json",
    ]);
    let server = Server::of(command);
    server.ask("GET", "/v1/models", "");
    let lines: Vec<Value> = server
        .greeting
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    let ready = lines.iter().find_map(|line| {
        let message = line["fields"]["message"].as_str()?;
        message.starts_with("ready on http://").then_some(line)
    });
    assert_eq!(ready.expect("it is ready")["level"], "INFO");
}
