//! `folio chat` and `folio run` in a terminal of 40 columns: history, wrapped answers, several lines, Ctrl-C, commands.
//! And without one: prompts through pipes.

use super::{demo_golden, folio, golden_answer, refusal, repository, result, run, text};
use folio::model::demo;
use folio::text::TextModel;
use rexpect::session::{PtySession, spawn_command};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

const TIMEOUT_MS: u64 = 60_000;
const COLUMNS: usize = 40;

/// folio in a terminal; what it keeps lies in `home`.
fn terminal(arguments: &[&str], home: &Path, variables: &[(&str, &str)]) -> PtySession {
    let mut command = Command::new("sh");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOLIO_")) {
        command.env_remove(name);
    }
    command.args([
        "-c",
        &format!("stty rows 24 cols {COLUMNS}; exec \"$0\" \"$@\""),
    ]);
    command.arg(env!("CARGO_BIN_EXE_folio")).args(arguments);
    command
        .env("XDG_DATA_HOME", home)
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR");
    command.envs(variables.iter().copied());
    spawn_command(command, Some(TIMEOUT_MS)).expect("a terminal opens")
}

/// `folio chat` on the demo model, after its progress and its greeting.
fn chat(home: &Path, options: &[&str]) -> PtySession {
    let mut session = terminal(&[&["chat"], options].concat(), home, &[]);
    session
        .exp_string("opening the device")
        .expect("it tells what it does");
    session
        .exp_string("/help lists commands")
        .expect("it greets");
    session
}

/// Types a line after the prompt.
fn say(session: &mut PtySession, line: &str) {
    session.exp_string("> ").expect("it asks");
    session.send_line(line).expect("it reads");
}

/// Ends a conversation, which must go well.
fn bye(mut session: PtySession) {
    say(&mut session, "/bye");
    session.exp_eof().expect("it ends");
    let status = format!("{:?}", session.process().wait());
    assert!(
        status.contains("Exited") && status.ends_with(", 0))"),
        "{status}"
    );
}

/// The text that a terminal shows, without codes for colours and the cursor.
fn plain(output: &str) -> String {
    let codes = regex::Regex::new("\x1b\\[[0-9;?]*[A-Za-z]").expect("it is valid");
    codes.replace_all(output, "").replace('\r', "")
}

#[test]
fn the_history_outlives_a_conversation_and_is_private() {
    let home = tempfile::tempdir().expect("a folder for this test");
    let options = [
        "--device",
        "fake",
        "--max-tokens",
        "2",
        "--ignore-eos",
        "--verbose",
    ];
    let mut session = chat(home.path(), &options);
    say(&mut session, "a first message");
    session
        .exp_regex(r"\d+ tokens in \(\d+ cached\), 2 out, first after .* tokens/s")
        .expect("it tells the speed");
    bye(session);
    let history = home.path().join("folio/chat_history");
    assert!(
        fs::read_to_string(&history)
            .expect("it is kept")
            .contains("a first message")
    );
    assert_eq!(
        fs::metadata(&history)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );

    let mut session = chat(home.path(), &options);
    // Up: the end of the last conversation; up again: its message.
    session.exp_string("> ").expect("it asks");
    session.send("\x1b[A\x1b[A").expect("it reads");
    session.flush().expect("it reads");
    session
        .exp_string("a first message")
        .expect("it comes back");
    session.send_line("").expect("it reads");
    session.exp_string(" tokens in").expect("it is answered");
    bye(session);
}

#[test]
fn answers_are_wrapped_between_words() {
    let golden = &demo_golden()[1];
    let home = tempfile::tempdir().expect("a folder for this test");
    let mut session = chat(
        home.path(),
        &["--device", "cpu", "--temperature", "0", "--verbose"],
    );
    say(
        &mut session,
        golden["messages"][0]["content"].as_str().expect("a text"),
    );
    let shown = session.exp_string(" tokens in").expect("it answers");
    let answer = golden_answer(golden);
    let first = answer.split(' ').next().expect("a word");
    let shown = plain(&shown);
    let lines: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.starts_with(first))
        .collect();
    assert!(
        lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= COLUMNS),
        "{shown:?}"
    );
    assert!(lines.join(" ").contains(&answer), "{shown:?}");
    bye(session);
}

#[test]
fn ctrl_c_stops_an_answer_and_the_conversation_goes_on() {
    let home = tempfile::tempdir().expect("a folder for this test");
    let options = [
        "--device",
        "fake:pause=20",
        "--ignore-eos",
        "--max-tokens",
        "1500",
        "--verbose",
    ];
    let mut session = chat(home.path(), &options);
    say(&mut session, "go on");
    session
        .exp_regex(r"(?s)go on.*\n.*\S+ \S+")
        .expect("the answer has begun");
    session.send_control('c').expect("it is told");
    session.exp_string("> ").expect("it asks again");
    session.send_control('c').expect("it is told");
    session
        .exp_string("/bye ends")
        .expect("nothing is stopped, and it says how to end");
    say(&mut session, "/set max_tokens 2");
    say(&mut session, "once more");
    session.exp_string(", 2 out").expect("it answers in full");
    session.exp_string("> ").expect("it asks");
    session.send_control('d').expect("it is told");
    session.exp_eof().expect("it ends");
}

#[test]
fn commands_set_save_and_load() {
    let home = tempfile::tempdir().expect("a folder for this test");
    let mut session = chat(
        home.path(),
        &[
            "--device",
            "cpu",
            "--temperature",
            "0",
            "--max-tokens",
            "40",
        ],
    );
    say(&mut session, "/sytem x");
    session
        .exp_string("did you mean /system?")
        .expect("it is recognized");
    say(&mut session, "/set temprature 1");
    session
        .exp_string("did you mean temperature?")
        .expect("it is recognized");
    let golden = &demo_golden()[4];
    let [system, user] = [0, 1].map(|index| {
        golden["messages"][index]["content"]
            .as_str()
            .expect("a text")
    });
    say(&mut session, &format!("/system {system}"));
    // In two lines, which the answer does not show.
    say(&mut session, &format!("\"\"\"{user}"));
    say(&mut session, "\"\"\"");
    session.exp_string("Rome").expect("it answers");
    say(&mut session, "/regen");
    session.exp_string("Rome").expect("it answers again");
    say(&mut session, "/save talk");
    session.exp_string("saved as").expect("it is kept");
    say(&mut session, "/model");
    session
        .exp_string("folio-tiny on")
        .expect("it tells the model");
    bye(session);
    let file = home.path().join("folio/conversations/talk.json");
    let saved: Value = serde_json::from_slice(&fs::read(&file).expect("it is kept")).expect("JSON");
    assert_eq!(
        saved["messages"][0],
        json!({"role": "system", "content": system})
    );
    assert_eq!(
        saved["messages"][1],
        json!({"role": "user", "content": user})
    );
    assert_eq!(
        saved["messages"].as_array().map(Vec::len),
        Some(3),
        "the second answer is in the first one's place"
    );
    assert_eq!(
        fs::metadata(&file)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );

    let mut session = chat(home.path(), &["--device", "fake", "--max-tokens", "1"]);
    say(&mut session, "/load talk");
    session.exp_string("3 messages").expect("it is there");
    session.exp_string("Rome").expect("its end is shown");
    say(&mut session, "/load other");
    session.exp_string("other.json").expect("it is not there");
    say(&mut session, "/read no-such-file");
    session
        .exp_string("error: no-such-file")
        .expect("it is not there");
    say(&mut session, "/image no-such-file");
    session
        .exp_string("error: this model reads text only")
        .expect("the demo reads no images");
    let note = home.path().join("note.txt");
    fs::write(&note, "Dogs bark.\n").expect("the folder takes files");
    say(&mut session, &format!("/read {}", note.display()));
    session.exp_string("11 characters").expect("it is read");
    say(&mut session, "Who barks?");
    say(&mut session, "/save talk");
    session.exp_string("saved as").expect("it is kept");
    bye(session);
    let saved: Value = serde_json::from_slice(&fs::read(&file).expect("it is kept")).expect("JSON");
    let expected = format!(
        "File {}:\n```\nDogs bark.\n```\n\nWho barks?",
        note.display()
    );
    assert_eq!(
        saved["messages"][3],
        json!({"role": "user", "content": expected})
    );
}

#[test]
fn thoughts_are_dim_and_are_not_sent_back() {
    let text = TextModel::from_parts(
        Some(demo::TOKENIZER_JSON),
        Some(demo::TOKENIZER_CONFIG_JSON),
        None,
    );
    let tokenizer = text
        .expect("the demo's files are right")
        .tokenizer
        .expect("the demo has one");
    let ids = |text: &str| tokenizer.encode(text, false).expect("it encodes");
    let dotted = |text: &str| {
        ids(text)
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(".")
    };
    let answers = [
        "<think>\nHm, why?\n</think>\n\nYes.<|im_end|>",
        "<think>\nSure.\n</think>\n\nNo.<|im_end|>",
    ];
    let script = answers
        .map(|answer| format!(">{}", dotted(answer)))
        .concat();
    let device = format!("fake:say={}{script}", dotted("<|im_start|>assistant\n"));
    let home = tempfile::tempdir().expect("a folder for this test");
    // The demo's template, as that of a model that thinks.
    let config: Value = serde_json::from_slice(demo::TOKENIZER_CONFIG_JSON).expect("JSON");
    let template = home.path().join("template.jinja");
    let own = config["chat_template"].as_str().expect("the demo has one");
    fs::write(&template, format!("{{# <think> #}}{own}")).expect("the folder takes files");
    let template = template.to_string_lossy();
    let mut session = chat(
        home.path(),
        &[
            "--device",
            &device,
            "--chat-template",
            &template,
            "--verbose",
        ],
    );
    say(&mut session, "Is it?");
    session
        .exp_string("\x1b[2mHm,\x1b[0m")
        .expect("a thought is dim");
    let shown = session.exp_string("Yes.").expect("it answers");
    assert!(
        shown.contains("\x1b[2mwhy?\x1b[0m") && !shown.contains("think>"),
        "{shown:?}"
    );
    session.exp_string("tokens/s").expect("it tells the speed");
    say(&mut session, "Really?");
    session.exp_string("\x1b[2mSure.").expect("it thinks again");
    session.exp_string("No.").expect("it answers");
    let turns = [
        ("user", "Is it?"),
        ("assistant", "Yes."),
        ("user", "Really?"),
    ];
    let prompt: String = turns
        .iter()
        .map(|(role, text)| format!("<|im_start|>{role}\n{text}<|im_end|>\n"))
        .collect();
    let count = ids(&format!("{prompt}<|im_start|>assistant\n")).len();
    session
        .exp_string(&format!("{count} tokens in ("))
        .expect("the prompt has the answer without its thoughts");
    bye(session);
}

#[test]
fn a_conversation_goes_on_with_another_model() {
    let home = tempfile::tempdir().expect("a folder for this test");
    let mut session = chat(home.path(), &["--device", "fake", "--max-tokens", "1"]);
    say(&mut session, "/model no/such/folder");
    session
        .exp_string("going on with folio-tiny")
        .expect("it says so");
    let folder = repository("assets/demo");
    say(&mut session, &format!("/model {}", folder.display()));
    session.exp_regex(r"demo on").expect("it has changed");
    bye(session);
}

#[test]
fn run_without_a_prompt_is_a_conversation() {
    let home = tempfile::tempdir().expect("a folder for this test");
    let mut session = terminal(
        &["run", "--device", "fake", "--max-tokens", "1"],
        home.path(),
        &[],
    );
    session
        .exp_string("/help lists commands")
        .expect("it greets");
    bye(session);
}

#[test]
fn progress_names_the_phases_of_a_start() {
    let home = tempfile::tempdir().expect("a folder for this test");
    let load = [
        "run",
        "--device",
        "cpu",
        "--max-tokens",
        "1",
        "--prompt",
        "a",
    ];
    for (options, weights) in [
        (&[][..], "loading weights"),
        (&["--quantization", "q8"], "quantizing weights"),
    ] {
        let mut session = terminal(&[&load, options].concat(), home.path(), &[]);
        for phase in [
            "opening the device",
            "allocating the KV pool",
            weights,
            "measuring the device",
        ] {
            session.exp_string(phase).expect(phase);
        }
        session.exp_eof().expect("it ends");
    }
}

/// What a server in a terminal says of a request, up to the request's path.
fn logged_request(variables: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().expect("a folder for this test");
    let mut session = terminal(
        &["serve", "--device", "fake", "--port", "0"],
        home.path(),
        variables,
    );
    let (_, ready) = session
        .exp_regex(r"http://127\.0\.0\.1:\d+")
        .expect("it is ready");
    let address = ready.trim_start_matches("http://");
    let mut client = TcpStream::connect(address).expect("it listens");
    client
        .write_all(b"GET /v1/models HTTP/1.0\r\n\r\n")
        .expect("it reads");
    client.read_to_end(&mut Vec::new()).expect("it answers");
    let said = session
        .exp_string("/v1/models")
        .expect("it logs the request");
    session.send_control('c').expect("it reads");
    session.exp_eof().expect("it ends");
    said
}

#[test]
fn the_log_has_colours_unless_they_are_unwanted() {
    let coloured = regex::Regex::new("\x1b\\[[0-9;]*m").expect("it is valid");
    let said = logged_request(&[]);
    assert!(coloured.is_match(&said), "{said:?}");
    for unwanted in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        let said = logged_request(&[unwanted]);
        assert!(
            said.contains("GET") && !coloured.is_match(&said),
            "{unwanted:?}: {said:?}"
        );
    }
}

/// What `folio run` prints if this text comes through a pipe.
fn piped(arguments: &[&str], prompt: &str) -> String {
    let mut process = folio(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    process
        .stdin
        .take()
        .expect("stdin is piped")
        .write_all(prompt.as_bytes())
        .expect("the command reads");
    let output = process.wait_with_output().expect("the command ends");
    assert!(output.status.success(), "{arguments:?}");
    text(&output.stdout)
}

#[test]
fn a_prompt_is_an_argument_an_option_or_comes_through_a_pipe() {
    let golden = &demo_golden()[0];
    let prompt = golden["messages"][0]["content"]
        .as_str()
        .expect("a user's message");
    let expected = golden_answer(golden) + "\n";
    let model = repository("assets/demo").to_string_lossy().into_owned();
    let model = model.as_str();
    let greedy = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
    ];
    for rest in [
        &[model, prompt][..],
        &[model, "-p", prompt],
        &["-m", model, prompt],
        &["-m", model, "-p", prompt],
    ] {
        let output = run(&[&greedy[..], rest].concat());
        assert_eq!(
            text(&output.stdout),
            expected,
            "{rest:?}: {}",
            text(&output.stderr)
        );
    }
    for rest in [&[][..], &[model], &[model, "-"], &["-p", "-"]] {
        assert_eq!(
            piped(&[&greedy[..], rest].concat(), &format!("{prompt}\n")),
            expected,
            "{rest:?}"
        );
    }
    let joined = result(&[&greedy[..], &[model, &format!("Be brief.\n{prompt}")]].concat());
    assert_eq!(
        piped(&[&greedy[..], &[model, prompt]].concat(), "Be brief.\n"),
        joined,
        "a pipe's text comes first"
    );
    let by_variable = folio(&[&greedy[..], &[model, prompt]].concat())
        .env("FOLIO_MODEL", "no/such/model")
        .output();
    assert_eq!(
        text(&by_variable.expect("the binary starts").stdout),
        expected,
        "an argument wins over a variable"
    );
    refusal(
        &["run", model, prompt, "--model", model],
        &["named twice", "--model"],
    );
    refusal(
        &["run", model, prompt, "--prompt", "b"],
        &["cannot be used with"],
    );
    refusal(&["run", model], &["there is no prompt", "--prompt"]);
    refusal(&["chat", model, "--model", "a/b"], &["named twice"]);
}

#[test]
fn a_file_on_stdin_is_read_and_an_open_pipe_is_not_waited_for_in_silence() {
    let fake = [
        "run",
        "--device",
        "fake",
        "--max-tokens",
        "4",
        "--verbose",
        "-p",
        "count this",
    ];
    let tokens = |stdin: Stdio| {
        let output = folio(&fake)
            .stdin(stdin)
            .output()
            .expect("the binary starts");
        let said = text(&output.stderr);
        let found = regex::Regex::new(r"(\d+) tokens in")
            .expect("it is valid")
            .captures(&said)
            .expect("it tells them");
        found[1].parse::<u32>().expect("a number")
    };
    let file = fs::File::open(repository("tests/data/gguf/README.md"))
        .expect("it is part of the repository");
    let alone = tokens(Stdio::null());
    assert!(
        tokens(file.into()) > alone + 20,
        "the file is part of the prompt, whose own tokens are {alone}"
    );

    let mut command = folio(&fake);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut process = command.spawn().expect("the binary starts");
    let mut said = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
    let first = said.next().expect("it says something").expect("a line");
    assert!(
        first.contains("stdin") && first.contains("</dev/null"),
        "{first}"
    );
    drop(process.stdin.take());
    assert!(
        said.any(|line| line.is_ok_and(|line| line.starts_with(&format!("{alone} tokens in"))))
    );
    assert!(process.wait().expect("it ends").success());
}

#[test]
fn a_system_message_precedes_a_prompt() {
    let golden = &demo_golden()[4];
    let [system, user] = [0, 1].map(|index| {
        golden["messages"][index]["content"]
            .as_str()
            .expect("a text")
    });
    let greedy = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
    ];
    let output = run(&[&greedy[..], &["--verbose", "--system", system, "-p", user]].concat());
    assert_eq!(text(&output.stdout), golden_answer(golden) + "\n");
    assert!(
        text(&output.stderr).contains(" tokens/s"),
        "{}",
        text(&output.stderr)
    );
    refusal(
        &[&greedy[..], &["--system", system, "--raw", "-p", "a"]].concat(),
        &["cannot be used with"],
    );
}
