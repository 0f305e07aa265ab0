//! `folio quantize`: what it writes, how it goes on after an interruption, and what it refuses.

use super::{packed, refusal, result};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn stored() -> String {
    let path = packed::model("gguf/tiny-qwen3-F16.gguf");
    path.to_str().expect("a path is text").to_owned()
}

fn quantized(folder: &Path, kind: &str) -> String {
    let path = folder.join(format!("{kind}.gguf"));
    let path = path.to_str().expect("a path is text");
    let printed = result(&["quantize", &stored(), path, "--type", kind]);
    assert_eq!(printed.trim_end(), path);
    path.to_owned()
}

#[test]
fn a_file_is_quantized_to_what_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut last = fs::metadata(stored()).expect("it is there").len();
    for (kind, format) in [
        ("q8_0", "q8"),
        ("q6_k", "q6k"),
        ("q5_k_m", "q5k"),
        ("q4_k_m", "q4k"),
        ("q3_k_m", "q3k"),
    ] {
        let path = quantized(folder.path(), kind);
        let bytes = fs::metadata(&path).expect("it was written").len();
        assert!(bytes < last, "{kind} has {bytes} bytes, less than {last}");
        last = bytes;
        let shown = result(&["show", &path, "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
        assert!(
            shown["format"].to_string().contains(&format.to_uppercase()),
            "{kind}: {shown}"
        );
    }
    // It answers as any file does.
    let path = quantized(folder.path(), "q4_0");
    let options = [
        "--device",
        "cpu",
        "--max-tokens",
        "4",
        "--raw",
        "--prompt",
        "ab",
    ];
    let answer = result(&[&["run", "--model", &path], &options[..]].concat());
    assert!(!answer.is_empty());
}

#[test]
fn an_interrupted_file_is_continued() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = fs::read(quantized(folder.path(), "q4_k_m")).expect("it was written");
    let path = folder.path().join("again.gguf");
    let name = path.to_str().expect("a path is text");
    let partial = folder.path().join("again.gguf.partial");
    for cut in [0, 100, whole.len() / 3, whole.len() - 1, whole.len()] {
        fs::write(&partial, &whole[..cut]).expect("it is written");
        result(&["quantize", &stored(), name, "--force"]);
        assert!(
            fs::read(&path).expect("it was written") == whole,
            "cut at {cut}"
        );
        assert!(!partial.exists());
    }
    // What another file left there is not used.
    fs::write(&partial, vec![7; 1 << 20]).expect("it is written");
    result(&["quantize", &stored(), name, "--force"]);
    assert!(fs::read(&path).expect("it was written") == whole);
}

#[test]
fn what_cannot_be_quantized_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| {
        let path = folder.path().join(name);
        path.to_str().expect("a path is text").to_owned()
    };
    let small = quantized(folder.path(), "q8_0");
    refusal(
        &["quantize", &small, &path("twice.gguf")],
        &["quantized already", "--allow-requantize"],
    );
    let twice = path("twice.gguf");
    result(&["quantize", &small, &twice, "--allow-requantize"]);
    refusal(&["quantize", &stored(), &twice], &["exists", "--force"]);
    let folder_of = folder.path().to_str().expect("a path is text");
    refusal(
        &["quantize", folder_of, &path("a.gguf")],
        &["a folder", "convert_hf_to_gguf.py"],
    );
    refusal(
        &["quantize", &stored(), &path("a.gguf"), "--type", "iq9"],
        &["iq9", "q4_k_m"],
    );
    fs::write(path("no.gguf"), "no").expect("it is written");
    refusal(
        &["quantize", &path("no.gguf"), &path("a.gguf")],
        &["no.gguf"],
    );
}
