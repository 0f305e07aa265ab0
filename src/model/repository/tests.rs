//! Tests of `model/repository.rs`.

use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn gguf(all: &[&str], requested: Option<&str>) -> Vec<String> {
    match select(&names(all), requested) {
        Ok(Selection::Gguf { files, .. }) => files,
        other => panic!("{all:?} with {requested:?}: {other:?}"),
    }
}

fn refused(all: &[&str], requested: Option<&str>, part: &str) {
    let error = select(&names(all), requested)
        .expect_err("it is refused")
        .to_string();
    assert!(error.contains(part), "{error}");
}

#[test]
fn the_files_of_sentence_transformers_come_with_a_model() {
    let taken = [
        "config.json",
        "model.safetensors",
        "vocab.txt",
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ];
    let others = [
        "2_Dense/pytorch_model.bin",
        "2_Normalize/config.json",
        "Dense/config.json",
        "x_Dense/config.json",
    ];
    let Ok(Selection::Folder { files, .. }) = select(&names(&[&taken[..], &others].concat()), None)
    else {
        panic!("it is a folder");
    };
    assert_eq!(files, names(&taken));
}

#[test]
fn a_folder_takes_what_is_loaded_and_nothing_else() {
    let all = [
        ".gitattributes",
        "README.md",
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "pytorch_model.bin",
        "original/consolidated.00.pth",
        "onnx/model.onnx",
        "tf_model.h5",
        "additional_chat_templates/tool_use.jinja",
        "additional_chat_templates/README.md",
    ];
    let templates = "additional_chat_templates/tool_use.jinja";
    let expected = names(&[
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        templates,
    ]);
    assert_eq!(
        select(&names(&all), None).ok(),
        Some(Selection::Folder {
            files: expected,
            index: None
        })
    );
    let sharded = [
        "config.json",
        INDEX,
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let expected = names(&["config.json", INDEX]);
    assert_eq!(
        select(&names(&sharded), None).ok(),
        Some(Selection::Folder {
            files: expected,
            index: Some(INDEX)
        })
    );
    refused(
        &["config.json", "pytorch_model.bin"],
        None,
        "no safetensors or GGUF files found (files: config.json, py",
    );
    refused(&["model.safetensors"], None, "no config.json");
    refused(
        &["config.json", "model.safetensors"],
        Some("Q8_0"),
        "no GGUF files",
    );
    refused(&[], None, "files: none");
}

#[test]
fn an_index_names_files_that_are_there() {
    let there = names(&["a.safetensors", "b.safetensors", "c.safetensors"]);
    let check = |json: &str, part: &str| {
        let error = shards(json.as_bytes(), &there)
            .expect_err("it is refused")
            .to_string();
        assert!(error.contains(part), "{error}");
    };
    let good =
        br#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"}}"#;
    assert_eq!(
        shards(good, &there).ok(),
        Some(names(&["a.safetensors", "b.safetensors"]))
    );
    check(
        r#"{"weight_map": {"x": "../a.safetensors"}}"#,
        "invalid file name",
    );
    check(r#"{"weight_map": {"x": "d.safetensors"}}"#, "missing");
    check(r#"{"weight_map": {"x": 1}}"#, "not a string");
    check(r#"{"weight_map": {}}"#, "empty");
    check("{}", "missing");
    check("{", INDEX);
}

#[test]
fn a_quantization_is_a_word_of_the_name() {
    let all = [
        "README.md",
        "config.json",
        "m-IQ4_XS.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m-q8_0.gguf",
        "mmproj-F16.gguf",
        "imatrix.gguf",
        "BF16/m-BF16-00001-of-00002.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
    ];
    assert_eq!(gguf(&all, None), ["m-Q4_K_M.gguf"]);
    assert_eq!(gguf(&all, Some("q4_k_s")), ["m-Q4_K_S.gguf"]);
    assert_eq!(gguf(&all, Some("Q8_0")), ["m-q8_0.gguf"]);
    assert_eq!(gguf(&all, Some("m-IQ4_XS.gguf")), ["m-IQ4_XS.gguf"]);
    let parts = [
        "BF16/m-BF16-00001-of-00002.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
    ];
    assert_eq!(gguf(&all, Some("BF16")), parts);
    assert_eq!(gguf(&all, Some(parts[1])), parts, "any part selects all");
    refused(
        &all,
        Some("Q4_K"),
        "no GGUF file matches `Q4_K` (files: BF16/m-BF16-00001-of-00002.gguf (2 parts), m-IQ",
    );
    refused(
        &all,
        Some("other.gguf"),
        "no GGUF file matches `other.gguf`",
    );
    refused(
        &["a-Q4_0.gguf", "b-Q4_0.gguf"],
        Some("Q4_0"),
        "several files, choose one: a-Q4_0.gguf, b-",
    );
    refused(&["a-Q2_K.gguf", "a-Q4_0.gguf"], None, "`Q4_K_M`");
    refused(
        &["a-Q4_0-00001-of-00003.gguf", "a-Q4_0-00003-of-00003.gguf"],
        None,
        "3 parts, but only 2",
    );
    assert_eq!(gguf(&["only.gguf"], None), ["only.gguf"]);
}

#[test]
fn a_quantization_is_read_off_a_name() {
    let check = |stem: &str, found: Option<&str>| {
        assert_eq!(quantization_of(stem).as_deref(), found, "{stem}");
    };
    check("Qwen3-0.6B-Q4_K_M", Some("Q4_K_M"));
    check("model.q8_0", Some("Q8_0"));
    check("BF16/model", Some("BF16"));
    check("gpt-oss-20b-mxfp4", Some("MXFP4"));
    check("Qwen3-0.6B", None);
}
