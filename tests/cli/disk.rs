//! `--kv-disk`: processes that are killed while they write, and processes that share a folder. No answer changes.

use super::{Server, folio, packed, refusal, result, run, text};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Times that a process is killed; CI is content with few.
const KILLS_DEFAULT: u32 = 3;
/// Timeout of a wait for a file, ample even on a busy machine, and how often the folder is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// Prompts that share a beginning, and one that does not, of several blocks each.
fn write_prompts(path: &Path) {
    let line = |index: u32| {
        let shared = if index == 5 { 0 } else { 200 };
        let prompt: Vec<u32> = (0..240)
            .map(|place| (place + if place < shared { 0 } else { index * 31 }) % 400 + 20)
            .collect();
        json!({"prompt_token_ids": prompt, "temperature": 0, "max_tokens": 8}).to_string()
    };
    let lines: Vec<_> = (0..6).map(line).collect();
    fs::write(path, lines.join("\n")).expect("the folder takes files");
}

/// A run that answers the prompts, with files of KV blocks in `disk`.
fn start(prompts: &Path, disk: Option<&Path>) -> Child {
    let prompts = prompts.to_str().expect("the path is UTF-8");
    let mut command = folio(&[
        "run",
        "--device",
        "cpu",
        "--block-size",
        "16",
        "--input",
        prompts,
    ]);
    if let Some(disk) = disk {
        command
            .arg("--kv-disk")
            .arg(disk)
            .args(["--kv-disk-bytes", "64MiB"]);
    }
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

/// The answers without their usage, which tells what was cached.
fn answers(child: Child) -> Vec<Value> {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer = |line: &str| {
        serde_json::from_str::<Value>(line).expect("a line is JSON")["outputs"].clone()
    };
    let answers: Vec<Value> = text(&output.stdout).lines().map(answer).collect();
    assert!(
        answers.len() == 6 && answers.iter().all(|answer| answer[0]["text"].is_string()),
        "{answers:?}"
    );
    answers
}

/// Files of blocks in a folder, in all folders of forms.
fn files(disk: &Path) -> Vec<std::path::PathBuf> {
    let entries = |folder: &Path| {
        fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let all = entries(disk).flat_map(|folder| entries(&folder).collect::<Vec<_>>());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "kv"))
        .collect()
}

fn wait_for_more_than(count: usize, disk: &Path) {
    let begin = Instant::now();
    while files(disk).len() <= count {
        assert!(begin.elapsed() < PATIENCE, "no file is written");
        std::thread::sleep(POLL);
    }
}

#[test]
fn a_process_may_be_killed_at_any_moment() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let (prompts, disk) = (folder.path().join("prompts"), folder.path().join("disk"));
    write_prompts(&prompts);
    let expected = answers(start(&prompts, None));
    let child = start(&prompts, Some(&disk));
    wait_for_more_than(0, &disk);
    let begin = Instant::now();
    assert_eq!(answers(child), expected, "with an empty folder");
    let writing = begin.elapsed();
    let all = files(&disk).len();
    assert!(all >= 6 * 15 - 5 * 12, "every block has a file: {all}");
    assert_eq!(
        answers(start(&prompts, Some(&disk))),
        expected,
        "with files"
    );
    let kills = std::env::var("FOLIO_DISK_KILLS")
        .map_or(KILLS_DEFAULT, |count| count.parse().expect("a number"));
    let (mut random, mut partial) = (1_u64, 0);
    for kill in 0..kills {
        // Some blocks must be written again.
        for path in files(&disk) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            if random >> 63 == 0 {
                fs::remove_file(path).expect("nothing uses it");
            }
        }
        if let (Some(last), true) = (files(&disk).pop(), files(&disk).len() == all) {
            fs::remove_file(last).expect("nothing uses it");
        }
        let before = files(&disk).len();
        let mut child = start(&prompts, Some(&disk));
        // A kill before the first file would prove nothing.
        wait_for_more_than(before, &disk);
        std::thread::sleep(writing.mul_f64((random >> 32 & 0xffff) as f64 / 65_536.0));
        child.kill().expect("it can be killed");
        child.wait().expect("it has ended");
        let after = files(&disk).len();
        assert!(after > before, "the file that was waited for stays");
        partial += u32::from(before < after && after < all);
        assert_eq!(
            answers(start(&prompts, Some(&disk))),
            expected,
            "after kill {kill}"
        );
        assert_eq!(
            files(&disk).len(),
            all,
            "after kill {kill}, what was missing is written"
        );
    }
    println!("{kills} kills, {partial} of them with a part of the files written");
}

#[test]
fn processes_share_a_folder() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let (prompts, disk) = (folder.path().join("prompts"), folder.path().join("disk"));
    write_prompts(&prompts);
    let expected = answers(start(&prompts, None));
    for _ in 0..2 {
        let children: [Child; 2] = std::array::from_fn(|_| start(&prompts, Some(&disk)));
        children
            .into_iter()
            .for_each(|child| assert_eq!(answers(child), expected));
    }
    let long_after = Duration::from_secs(60);
    let age = |path: &Path| {
        fs::metadata(path)
            .and_then(|found| found.modified())
            .expect("it is there")
            .elapsed()
    };
    assert!(
        files(&disk)
            .iter()
            .all(|path| age(path).is_ok_and(|age| age < long_after)),
        "files are marked as used"
    );
}

#[test]
fn a_prompt_of_one_device_is_imported_on_another() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = |name: &str| {
        folder
            .path()
            .join(name)
            .to_str()
            .expect("the path is UTF-8")
            .to_owned()
    };
    let (prompt, out, disk) = (path("prompt"), path("blocks.kv"), path("disk"));
    let question = "What can one see in a museum of clocks? ".repeat(8);
    let request = json!({"messages": [{"role": "user", "content": question}]});
    fs::write(&prompt, request.to_string()).expect("the folder takes files");
    let export = ["cache", "export", "--device", "cpu", "--block-size", "16"];
    let output = run(&[&export[..], &[&prompt, &out]].concat());
    let (exported, said) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && exported.contains(" blocks of ") && exported.contains(&out),
        "{exported}{said}"
    );
    assert!(
        !said.contains("KV blocks") && !said.contains(".tmp-"),
        "its own folder concerns nobody: {said}"
    );
    let output = run(&["cache", "import", &out, "--kv-disk", &disk]);
    let (imported, said) = (text(&output.stdout), text(&output.stderr));
    assert!(imported.contains(" blocks are in "), "{imported}{said}");
    let who = "a server with several API keys finds these blocks with --share-prefixes only";
    assert!(said.contains(who), "{said}");
    let ask = |more: &[&str]| {
        let engine = ["--device", "reference", "--block-size", "16"];
        let run = [
            "run",
            "--json",
            "--temperature",
            "0",
            "--max-tokens",
            "12",
            "--prompt",
            &question,
        ];
        serde_json::from_str::<Value>(&result(&[&run, &engine[..], more].concat()))
            .expect("a response is JSON")
    };
    let (plain, read) = (
        ask(&[]),
        ask(&["--kv-disk", &disk, "--kv-disk-bytes", "1GiB"]),
    );
    assert_eq!(read["choices"], plain["choices"]);
    let found = &read["usage"]["prompt_tokens_details"];
    assert!(found["disk_cached_tokens"].as_u64() >= Some(48), "{found}");
    assert_eq!(found["disk_cached_tokens"], found["cached_tokens"]);
    let left: Vec<_> = fs::read_dir(folder.path())
        .expect("it can be listed")
        .flatten()
        .collect();
    assert_eq!(left.len(), 3, "nothing temporary stays: {left:?}");
}

/// A model that keeps a recurrent state, with a tokenizer of single bytes and a chat template.
fn hybrid(folder: &Path) -> String {
    let golden = packed::model("golden/qwen3_5");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden.join(name), folder.join(name)).expect("the folder takes files");
    }
    // The bytes that stand for themselves, and names of the others.
    let mut others = (0x100..).filter_map(char::from_u32);
    let name = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().expect("there are more"),
    };
    let vocab: Value = (0..=255)
        .map(name)
        .map(String::from)
        .zip((0..=255).map(Value::from))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "truncation": null,
        "padding": null, "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let template =
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
    for (name, content) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json!({"chat_template": template})),
    ] {
        fs::write(folder.join(name), content.to_string()).expect("the folder takes files");
    }
    folder.to_str().expect("the path is UTF-8").to_owned()
}

/// Whatever follows a system message that was exported, the state after its last whole block is found.
#[test]
fn a_system_message_is_imported_with_its_states() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let model = tempfile::tempdir().expect("a folder for this test");
    let path = |name: &str| {
        folder
            .path()
            .join(name)
            .to_str()
            .expect("the path is UTF-8")
            .to_owned()
    };
    let (prompt, out) = (path("prompt"), path("blocks.kv"));
    let system = "You are the guide of a small museum. ".repeat(4);
    fs::write(&prompt, &system).expect("the folder takes files");
    let model = hybrid(model.path());
    let engine = [
        "--model",
        &model,
        "--block-size",
        "16",
        "--max-model-len",
        "256",
    ];
    let export = [&["cache", "export", "--device", "cpu"], &engine[..]].concat();
    let exported = result(&[&export[..], &[&prompt, &out]].concat());
    assert!(
        exported.contains(" blocks of ")
            && exported.contains(", with ")
            && exported.contains(" states,")
    );
    refusal(
        &[
            &export[..],
            &["--state-snapshots", "0", &prompt, &path("none")],
        ]
        .concat(),
        &["--state-snapshots"],
    );
    let ask = |device: &str, more: &[&str]| {
        let run = [
            "run",
            "--json",
            "--temperature",
            "0",
            "--max-tokens",
            "12",
            "--device",
            device,
        ];
        let talk = [
            "--system",
            &system,
            "--prompt",
            "Which clock is the oldest?",
        ];
        let output = result(&[&run[..], &talk, &engine, more].concat());
        serde_json::from_str::<Value>(&output).expect("a response is JSON")
    };
    for device in ["reference", "cpu"] {
        let disk = path(device);
        result(&["cache", "import", &out, "--kv-disk", &disk]);
        let tier = ["--kv-disk", &disk, "--kv-disk-bytes", "1GiB"];
        let (plain, read) = (ask(device, &[]), ask(device, &tier));
        assert_eq!(read["choices"], plain["choices"], "on {device}");
        let found = &read["usage"]["prompt_tokens_details"];
        // The prompt's next bytes are those of its question.
        let shared = "system: ".len() + system.len() + "\nuser: ".len();
        assert_eq!(
            found["disk_cached_tokens"],
            shared / 16 * 16,
            "on {device}: {found}"
        );
    }
}

/// A file that an older version has written is refused by its version.
#[test]
fn a_file_of_another_version_is_refused() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = |name: &str| {
        folder
            .path()
            .join(name)
            .to_str()
            .expect("the path is UTF-8")
            .to_owned()
    };
    let (old, disk) = (path("old.kv"), path("disk"));
    fs::write(
        &old,
        [&b"folio-kv"[..], &1_u32.to_le_bytes(), &[0; 200]].concat(),
    )
    .expect("the folder takes files");
    let words = ["old.kv: it has version 1 of its form, and this program reads version 2"];
    refusal(&["cache", "import", &old, "--kv-disk", &disk], &words);
}

#[test]
fn what_is_no_file_of_blocks_is_refused() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = |name: &str| {
        folder
            .path()
            .join(name)
            .to_str()
            .expect("the path is UTF-8")
            .to_owned()
    };
    let (prompt, out, disk) = (path("prompt"), path("out"), path("disk"));
    fs::write(&prompt, r#"{"prompt": "Hi"}"#).expect("the folder takes files");
    let export = ["cache", "export", "--device", "reference", &prompt, &out];
    refusal(&export, &["the prompt is shorter than a block"]);
    refusal(
        &["cache", "import", &prompt, "--kv-disk", &disk],
        &["prompt: it is not a file of KV blocks"],
    );
    refusal(&["cache", "import", &out, "--kv-disk", &disk], &["out: "]);
    fs::write(&prompt, r#"{"prompt": "Hi", "cache_salt": "a"}"#).expect("the folder takes files");
    refusal(&export, &["`cache_salt`"]);
}

#[test]
fn the_disk_tier_has_a_folder_and_a_size() {
    let serve = ["serve", "--port", "0", "--device", "fake"];
    refusal(
        &[&serve[..], &["--kv-disk", "somewhere"]].concat(),
        &["--kv-disk-bytes"],
    );
    refusal(
        &[&serve[..], &["--kv-disk-bytes", "1GiB"]].concat(),
        &["--kv-disk"],
    );
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("a file");
    fs::write(&file, "").expect("the folder takes files");
    let file = file.to_str().expect("the path is UTF-8");
    let disk = ["--kv-disk", file, "--kv-disk-bytes", "1GiB"];
    refusal(
        &[&["run", "--prompt", "a", "--device", "fake"][..], &disk].concat(),
        &["--kv-disk", "a file: "],
    );
}

/// Whoever reads the key could plant blocks, and one that is cut would hide them.
#[test]
fn a_wrong_key_of_a_folder_is_named_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = folder.path().to_str().expect("the path is UTF-8");
    let key = folder.path().join("key");
    let run = [
        "run",
        "--prompt",
        "a",
        "--device",
        "fake",
        "--kv-disk",
        path,
        "--kv-disk-bytes",
        "1GiB",
    ];
    fs::write(&key, "short").expect("the folder takes files");
    refusal(&run, &["--kv-disk", "/key: ", "5 bytes"]);
    fs::write(&key, [7; 32]).expect("the folder takes files");
    #[cfg(unix)]
    {
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&key, mode(0o644)).expect("it is ours");
        refusal(&run, &["--kv-disk", "/key: ", "chmod 600"]);
        fs::set_permissions(&key, mode(0o600)).expect("it is ours");
    }
    result(&run);
    assert_eq!(fs::read(&key).expect("it is there"), [7; 32], "it stays");
}

/// Blocks that were imported belong to no key.
#[test]
fn a_server_with_several_keys_says_that_it_does_not_find_imported_blocks() {
    let sentence = "blocks of `cache import` are found with --share-prefixes only";
    let server = ["--device", "fake", "--api-key", "sesame"];
    let cases: [(&[&str], bool); 3] = [
        (&[], false),
        (&["--api-key", "another"], true),
        (&["--api-key", "another", "--share-prefixes"], false),
    ];
    for (more, says) in cases {
        let greeting = Server::with(&[&server[..], more].concat()).greeting.clone();
        assert_eq!(greeting.contains(sentence), says, "{more:?}: {greeting}");
    }
}

/// What is written is for this user, whatever the shell says of new files.
#[cfg(unix)]
#[test]
fn files_are_for_their_user_whatever_the_umask() {
    use super::program;
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder for this test");
    let [prompt, out, disk] = ["prompt", "blocks.kv", "disk"].map(|name| {
        let path = folder.path().join(name);
        path.to_str().expect("the path is UTF-8").to_owned()
    });
    let request = json!({"prompt": "A clock ticks. ".repeat(20)});
    fs::write(&prompt, request.to_string()).expect("the folder takes files");
    let shell = [
        "-c",
        "umask 0; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_folio"),
    ];
    let export = ["cache", "export", "--device", "cpu", &prompt, &out];
    let import = ["cache", "import", &out, "--kv-disk", &disk];
    for arguments in [&export[..], &import] {
        let output = program("sh", &[&shell[..], arguments].concat()).output();
        let output = output.expect("the shell starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let mut written = files(Path::new(&disk));
    assert!(!written.is_empty(), "blocks were imported");
    written.push(out.into());
    for path in written {
        let permissions = fs::metadata(&path).expect("it is there").permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600, "{}", path.display());
    }
}
