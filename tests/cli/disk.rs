//! `--kv-disk`: processes that are killed while they write, and processes that share a folder. No answer changes.

use super::{folio, refusal, result, run, text};
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
        let prompt: Vec<u32> =
            (0..240).map(|place| (place + if place < shared { 0 } else { index * 31 }) % 400 + 20).collect();
        json!({"prompt_token_ids": prompt, "temperature": 0, "max_tokens": 8}).to_string()
    };
    let lines: Vec<_> = (0..6).map(line).collect();
    fs::write(path, lines.join("\n")).expect("the folder takes files");
}

/// A run that answers the prompts, with files of KV blocks in `disk`.
fn start(prompts: &Path, disk: Option<&Path>) -> Child {
    let prompts = prompts.to_str().expect("the path is UTF-8");
    let mut command = folio(&["run", "--device", "cpu", "--block-size", "16", "--input", prompts]);
    if let Some(disk) = disk {
        command.arg("--kv-disk").arg(disk).args(["--kv-disk-bytes", "64MiB"]);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

/// The answers without their usage, which tells what was cached.
fn answers(child: Child) -> Vec<Value> {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer = |line: &str| serde_json::from_str::<Value>(line).expect("a line is JSON")["outputs"].clone();
    let answers: Vec<Value> = text(&output.stdout).lines().map(answer).collect();
    assert!(answers.len() == 6 && answers.iter().all(|answer| answer[0]["text"].is_string()), "{answers:?}");
    answers
}

/// Files of blocks in a folder, in all folders of forms.
fn files(disk: &Path) -> Vec<std::path::PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = entries(disk).flat_map(|folder| entries(&folder).collect::<Vec<_>>());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "kv")).collect()
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
    assert_eq!(answers(start(&prompts, Some(&disk))), expected, "with files");
    let kills = std::env::var("FOLIO_DISK_KILLS").map_or(KILLS_DEFAULT, |count| count.parse().expect("a number"));
    let (mut random, mut partial) = (1_u64, 0);
    for kill in 0..kills {
        // Some blocks must be written again.
        for path in files(&disk) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
        assert_eq!(answers(start(&prompts, Some(&disk))), expected, "after kill {kill}");
        assert_eq!(files(&disk).len(), all, "after kill {kill}, what was missing is written");
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
        children.into_iter().for_each(|child| assert_eq!(answers(child), expected));
    }
    let long_after = Duration::from_secs(60);
    let age = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).expect("it is there").elapsed();
    assert!(files(&disk).iter().all(|path| age(path).is_ok_and(|age| age < long_after)), "files are marked as used");
}

#[test]
fn a_prompt_of_one_device_is_imported_on_another() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = |name: &str| folder.path().join(name).to_str().expect("the path is UTF-8").to_owned();
    let (prompt, out, disk) = (path("prompt"), path("blocks.kv"), path("disk"));
    let question = "What can one see in a museum of clocks? ".repeat(8);
    let request = json!({"messages": [{"role": "user", "content": question}]});
    fs::write(&prompt, request.to_string()).expect("the folder takes files");
    let export = ["cache", "export", "--device", "cpu", "--block-size", "16"];
    let output = run(&[&export[..], &[&prompt, &out]].concat());
    let (exported, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && exported.contains(" blocks of ") && exported.contains(&out), "{exported}{said}");
    assert!(!said.contains("KV blocks") && !said.contains(".tmp-"), "its own folder concerns nobody: {said}");
    let imported = result(&["cache", "import", &out, "--kv-disk", &disk]);
    assert!(imported.contains(" blocks are in "), "{imported}");
    let ask = |more: &[&str]| {
        let engine = ["--device", "reference", "--block-size", "16"];
        let run = ["run", "--json", "--temperature", "0", "--max-tokens", "12", "--prompt", &question];
        serde_json::from_str::<Value>(&result(&[&run, &engine[..], more].concat())).expect("a response is JSON")
    };
    let (plain, read) = (ask(&[]), ask(&["--kv-disk", &disk, "--kv-disk-bytes", "1GiB"]));
    assert_eq!(read["choices"], plain["choices"]);
    let found = &read["usage"]["prompt_tokens_details"];
    assert!(found["disk_cached_tokens"].as_u64() >= Some(48), "{found}");
    assert_eq!(found["disk_cached_tokens"], found["cached_tokens"]);
    let left: Vec<_> = fs::read_dir(folder.path()).expect("it can be listed").flatten().collect();
    assert_eq!(left.len(), 3, "nothing temporary stays: {left:?}");
}

#[test]
fn what_is_no_file_of_blocks_is_refused() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = |name: &str| folder.path().join(name).to_str().expect("the path is UTF-8").to_owned();
    let (prompt, out, disk) = (path("prompt"), path("out"), path("disk"));
    fs::write(&prompt, r#"{"prompt": "Hi"}"#).expect("the folder takes files");
    let export = ["cache", "export", "--device", "reference", &prompt, &out];
    refusal(&export, &["the prompt is shorter than a block"]);
    refusal(&["cache", "import", &prompt, "--kv-disk", &disk], &["prompt: it is not a file of KV blocks"]);
    refusal(&["cache", "import", &out, "--kv-disk", &disk], &["out: "]);
    fs::write(&prompt, r#"{"prompt": "Hi", "cache_salt": "a"}"#).expect("the folder takes files");
    refusal(&export, &["`cache_salt`"]);
}

#[test]
fn the_disk_tier_has_a_folder_and_a_size() {
    let serve = ["serve", "--port", "0", "--device", "fake"];
    refusal(&[&serve[..], &["--kv-disk", "somewhere"]].concat(), &["--kv-disk-bytes"]);
    refusal(&[&serve[..], &["--kv-disk-bytes", "1GiB"]].concat(), &["--kv-disk"]);
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("a file");
    fs::write(&file, "").expect("the folder takes files");
    let file = file.to_str().expect("the path is UTF-8");
    let disk = ["--kv-disk", file, "--kv-disk-bytes", "1GiB"];
    refusal(&[&["run", "--prompt", "a", "--device", "fake"][..], &disk].concat(), &["--kv-disk", "a file: "]);
}
