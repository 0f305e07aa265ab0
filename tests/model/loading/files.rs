//! Files that are not what they should be, or hold less or more than the config says.

use super::{Folder, upload};
use folio::model::Quantization;
use serde_json::{Map, json};

const PROJECTION: &str = "model.layers.0.self_attn.q_proj.weight";

/// As Qwen3-Embedding 8B is published: it serves embeddings, and no answers.
#[test]
fn a_model_without_a_head_loads_but_cannot_answer() {
    let folder = Folder::copy("qwen3");
    assert!(folder.open().expect("it opens").has_head());
    folder.edit("config.json", &json!({"tie_word_embeddings": false}));
    assert!(!folder.open().expect("it opens").has_head());
    let quantized = folder
        .open()
        .expect("it opens")
        .quantized(Quantization::Q8)
        .expect("it quantizes");
    assert!(!quantized.has_head());
}

/// Renames tensors, and drops those whose name becomes empty.
fn renamed(folder: &Folder, name: impl Fn(&str) -> String) {
    let (header, data) = folder.tensors();
    let named = header
        .iter()
        .map(|(own, info)| (name(own), info.clone()))
        .filter(|(name, _)| !name.is_empty());
    folder.write_tensors("model.safetensors", &named.collect(), &data);
}

/// safetensors' save_model keeps one name of tied weights, which may be the head's.
#[test]
fn a_tied_table_may_have_the_heads_name() {
    let folder = Folder::copy("qwen3");
    let expected = upload(&folder.open().expect("it opens"));
    folder.edit("config.json", &json!({"tie_word_embeddings": true}));
    renamed(&folder, |own| own.replace("model.embed_tokens", "lm_head"));
    assert_eq!(upload(&folder.open().expect("it opens")), expected);
}

/// As in transformers 5: what the file has counts.
#[test]
fn a_head_that_is_not_the_embedding_is_kept_whatever_the_config_says() {
    let folder = Folder::copy("llama");
    let expected = upload(&folder.open().expect("it opens"));
    assert!(
        expected.contains_key("head"),
        "the golden model has a head of its own"
    );
    folder.edit("config.json", &json!({"tie_word_embeddings": true}));
    assert_eq!(upload(&folder.open().expect("it opens")), expected);
}

#[test]
fn files_that_are_something_else_say_what_they_are() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    for (content, part) in [
        (pointer, "pointer of Git LFS"),
        ("<!DOCTYPE html>\n<html>", "HTML page"),
        ("", "is empty"),
    ] {
        for file in ["model.safetensors", "config.json"] {
            let folder = Folder::copy("llama");
            folder.write(file, content.as_bytes());
            let error = folder.error();
            assert!(
                error.starts_with(file) && error.contains(part),
                "{file} with {content:?}: {error}"
            );
        }
    }
}

#[test]
fn a_folder_without_safetensors_says_what_it_has_instead() {
    for (name, part) in [
        (
            "pytorch_model.bin",
            "pytorch_model.bin, a format that is not supported",
        ),
        (
            "pytorch_model-00001-of-00002.bin",
            "pytorch_model-00001-of-00002.bin, a format that is not supported",
        ),
        (
            "consolidated.safetensors",
            "consolidated.safetensors, in Mistral's or Meta's own format",
        ),
        (
            "adapter_model.safetensors",
            "adapter_model.safetensors, an adapter without its model",
        ),
        (
            "model-00001-of-00002.safetensors",
            "but no model.safetensors.index.json",
        ),
    ] {
        let folder = Folder::copy("llama");
        std::fs::remove_file(folder.path("model.safetensors")).expect("it is removed");
        folder.write(name, b"x");
        assert!(folder.error().contains(part), "{}", folder.error());
    }
}

#[test]
fn quantized_weights_that_are_not_supported_are_named() {
    for (config, message) in [
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24"}),
            "format is \"marlin-24\"",
        ),
        (
            json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}),
            "sparsity_config.format is \"sparse-24\"",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}),
            "quant_algo is \"W4A16_AWQ\"",
        ),
    ] {
        let folder = Folder::copy("llama");
        folder.edit("config.json", &json!({"quantization_config": config}));
        assert!(folder.error().contains(message), "{}", folder.error());
    }
    for (name, kind, part) in [
        (
            "model.layers.0.self_attn.q_proj.qweight",
            "I32",
            "GPTQ or AWQ",
        ),
        (
            "model.layers.0.self_attn.q_proj.weight.absmax",
            "F32",
            "bitsandbytes",
        ),
        (PROJECTION, "I8", "signed bytes"),
        (PROJECTION, "F8_E4M3", "FP8"),
    ] {
        let folder = Folder::copy("llama");
        let bytes = if matches!(kind, "I32" | "F32") { 4 } else { 1 };
        let (header, mut data) = folder.tensors();
        let other = |own: &String| {
            if own == PROJECTION {
                "unused.weight".to_owned()
            } else {
                own.clone()
            }
        };
        let mut header: Map<_, _> = header
            .iter()
            .map(|(own, info)| (other(own), info.clone()))
            .collect();
        header.insert(
            name.into(),
            json!({"dtype": kind, "shape": [8], "data_offsets": [data.len(), data.len() + 8 * bytes]}),
        );
        data.extend(vec![0; 8 * bytes]);
        folder.write_tensors("model.safetensors", &header, &data);
        let error = folder.error();
        assert!(
            error.contains("quantization_config is missing") && error.contains(part),
            "{error}"
        );
    }
}

/// Defaults that no request could have do not keep a model from being served.
#[test]
fn values_that_a_model_does_not_need_are_ignored() {
    let folder = Folder::copy("llama");
    let expected = folder.open().expect("it opens").generation().draw;
    for wrong in [
        json!({"top_p": 0.0, "temperature": 2.5, "repetition_penalty": 2.5}),
        json!({"top_p": 1.5, "temperature": -1, "repetition_penalty": 0.0, "top_k": "all", "min_p": 2}),
    ] {
        folder.edit("generation_config.json", &wrong);
        assert_eq!(
            folder.open().expect("it opens").generation().draw,
            expected,
            "{wrong}"
        );
    }
    for ids in [json!(-1), json!([2, 256]), json!("2"), json!(1e9)] {
        let folder = Folder::copy("llama");
        folder.edit("config.json", &json!({"eos_token_id": ids}));
        folder.edit("generation_config.json", &json!({"eos_token_id": ids}));
        let found = folder
            .open()
            .expect("it opens")
            .generation()
            .eos_token_ids
            .clone();
        assert!(found.iter().all(|id| *id == 2), "{ids}: {found:?}");
    }
    folder.edit("config.json", &json!({"eos_token_id": 7.0}));
    assert!(
        folder
            .open()
            .expect("it opens")
            .generation()
            .eos_token_ids
            .contains(&7)
    );
}
