//! Faults of files are one line with file and field.

use super::*;

#[test]
fn faults_of_the_config_are_one_line_with_file_and_field() {
    for (changes, expected) in CONFIG_FAULTS {
        let folder = Folder::copy("llama");
        folder.edit(
            "config.json",
            &serde_json::from_str(changes).expect("the changes are JSON"),
        );
        let (error, expected) = (folder.error(), format!("config.json: {expected}"));
        let agree = expected
            .strip_suffix('…')
            .map_or(error == expected, |start| error.starts_with(start));
        assert!(agree, "{changes}: {error}, not {expected}");
    }
}

#[test]
fn faults_of_windows_and_generation_name_their_fields() {
    let folder = Folder::copy("mistral-window");
    folder.edit("config.json", &json!({"sliding_window": 0}));
    assert_eq!(
        folder.error(),
        "config.json: sliding_window is 0, not an integer in 1..=4294967295"
    );
    let folder = Folder::copy("qwen3");
    folder.edit("config.json", &json!({"layer_types": ["full_attention"]}));
    assert_eq!(
        folder.error(),
        "config.json: layer_types has 1 entries, not num_hidden_layers = 2"
    );
    folder.edit(
        "config.json",
        &json!({"layer_types": ["full_attention", "linear_attention"]}),
    );
    assert_eq!(
        folder.error(),
        "config.json: layer_types has \"linear_attention\", an unknown kind of layer"
    );
    let folder = Folder::copy("gemma2");
    folder.edit("config.json", &json!({"sliding_window": null}));
    assert_eq!(
        folder.error(),
        "config.json: sliding_window is missing, but some layers have a sliding window"
    );
    folder.edit("config.json", &json!({"use_bidirectional_attention": true}));
    let expected = "config.json: use_bidirectional_attention is true: only false is supported";
    assert_eq!(folder.error(), expected);
    let folder = Folder::copy("smollm3");
    folder.edit("config.json", &json!({"no_rope_layers": [1, 2]}));
    assert_eq!(
        folder.error(),
        "config.json: no_rope_layers has 2, not 0 or 1"
    );
}

#[test]
fn numbers_that_json_lacks_are_refused_by_field() {
    let folder = Folder::copy("llama");
    let config = String::from_utf8(folder.read("config.json")).expect("UTF-8");
    folder.write("config.json", config.replace("10000.0", "NaN"));
    let expected =
        "config.json: rope_parameters.rope_theta is \"NaN\", not a number in 0.001..=1e30";
    assert_eq!(folder.error(), expected);
    // In an unused field, such values are accepted, because Python writes such files.
    folder.write(
        "config.json",
        config.replace("\"use_cache\": true", "\"use_cache\": [-Infinity, NaN]"),
    );
    assert_eq!(folder.error(), "it opened");
}

#[test]
fn missing_and_unreadable_files_are_named() {
    let folder = Folder::copy("llama");
    folder.write("config.json", "{\"vocab_size\": ");
    assert_eq!(
        folder.error(),
        "config.json: EOF while parsing a value at line 1 column 15"
    );
    folder.write("config.json", "[]");
    assert_eq!(folder.error(), "config.json: not a JSON object");
    folder.write("config.json", [0xff, 0xfe]);
    assert_eq!(
        folder.error(),
        "config.json: invalid utf-8 sequence of 1 bytes from index 0"
    );
    for file in ["config.json", "model.safetensors"] {
        let folder = Folder::copy("llama");
        fs::remove_file(folder.path(file)).expect("it goes");
        let error = folder.error().to_lowercase();
        assert!(
            error.starts_with(&format!("{file}: ")) && error.contains("no such file"),
            "{error}"
        );
        fs::create_dir(folder.path(file)).expect("a folder in its place");
        assert!(
            folder.error().starts_with(&format!("{file}: ")),
            "{}",
            folder.error()
        );
    }
}

#[test]
fn faults_of_the_tensors_are_named() {
    let folder = Folder::copy("llama");
    folder.edit("config.json", &json!({"vocab_size": 264}));
    let expected = "model.safetensors: tensor \"model.embed_tokens.weight\" has shape [256, 64], \
                    but config.json expects [264, 64]";
    assert_eq!(folder.error(), expected);
    let folder = Folder::copy("llama");
    folder.edit("config.json", &json!({"attention_bias": true}));
    let expected = "model.safetensors: tensor \"model.layers.0.self_attn.q_proj.bias\" is missing";
    assert_eq!(folder.error(), expected);
    folder.edit(
        "config.json",
        &json!({"attention_bias": false, "num_hidden_layers": 3}),
    );
    let expected = "model.safetensors: tensor \"model.layers.2.input_layernorm.weight\" is missing";
    assert_eq!(folder.error(), expected);
    let folder = Folder::copy("llama");
    folder.edit_tensor("model.norm.weight", &json!({"dtype": "I16"}));
    let expected = "model.safetensors: tensor \"model.norm.weight\" is stored as I16; expected F32, F16 or BF16";
    assert_eq!(folder.error(), expected);
    let folder = Folder::copy("llama");
    let bytes = folder.read("model.safetensors");
    folder.write("model.safetensors", &bytes[..bytes.len() - 130]);
    let expected = "model.safetensors: tensor \"model.layers.1.self_attn.v_proj.weight\" is truncated: \
                    2 bytes are missing";
    assert_eq!(folder.error(), expected);
}

#[test]
fn damaged_headers_are_refused() {
    let start = |length: u64| length.to_le_bytes().to_vec();
    let tensor = |offsets: &str, kind: &str| {
        format!("{{\"a\":{{\"dtype\":\"{kind}\",\"shape\":[2],\"data_offsets\":{offsets}}}}}")
    };
    let table = [
        (Vec::new(), "is empty"),
        (vec![1, 2, 3], "header too small"),
        (
            start(0),
            "invalid header: EOF while parsing a value at line 1 column 0",
        ),
        (start(100_000_001), "header too large"),
        (start(u64::MAX), "header too large"),
        (start(50), "invalid header length"),
        (safetensors_bytes("{\"a\"", &[]), "invalid header"),
        (
            safetensors_bytes(&tensor("[0,4]", "BF17"), &[0; 4]),
            "invalid header: unknown variant `BF17`",
        ),
        (
            safetensors_bytes(&tensor("[4,8]", "BF16"), &[0; 8]),
            "invalid header: invalid offset for tensor `a`",
        ),
        (
            safetensors_bytes(&tensor("[0,6]", "BF16"), &[0; 6]),
            "invalid header: invalid shape, data type, or offset for tensor",
        ),
        (
            safetensors_bytes(&tensor("[0,4]", "BF16"), &[0; 9]),
            "incomplete metadata, file not fully covered",
        ),
        (
            safetensors_bytes(&tensor("[0,4]", "BF16"), &[0; 3]),
            "tensor \"a\" is truncated: 1 bytes are missing",
        ),
    ];
    for (bytes, expected) in table {
        let folder = Folder::copy("llama");
        folder.write("model.safetensors", bytes);
        let error = folder.error();
        assert!(
            error.starts_with(&format!("model.safetensors: {expected}")),
            "{error} instead of {expected}"
        );
        assert!(!error.contains('\n'), "one line: {error}");
    }
    let overlapping = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\
                       \"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}";
    let folder = Folder::copy("llama");
    folder.write("model.safetensors", safetensors_bytes(overlapping, &[0; 6]));
    let expected = "model.safetensors: invalid header: invalid offset for tensor `b`";
    assert!(folder.error().starts_with(expected), "{}", folder.error());
}

#[test]
fn faults_of_the_index_are_named() {
    let index = "model.safetensors.index.json";
    let sharded = || {
        let folder = Folder::copy("llama");
        folder.shard();
        folder
    };
    for (name, shown) in [
        ("../x", "../x"),
        ("/etc/passwd", "/etc/passwd"),
        ("a/b", "a/b"),
        ("..", ".."),
        ("", ""),
    ] {
        let folder = sharded();
        folder.edit(index, &json!({"weight_map": {"lm_head.weight": name}}));
        let expected = "which is not a file of the model's folder";
        assert_eq!(
            folder.error(),
            format!("{index}: weight_map.lm_head.weight names {shown:?}, {expected}")
        );
    }
    let folder = sharded();
    folder.edit(
        index,
        &json!({"weight_map": {"lm_head.weight": shard_file(1)}}),
    );
    assert_eq!(
        folder.error(),
        format!("{}: tensor \"lm_head.weight\" is missing", shard_file(1))
    );
    let folder = sharded();
    folder.write(index, "{}");
    assert_eq!(folder.error(), format!("{index}: weight_map is missing"));
    let folder = sharded();
    folder.edit(index, &json!({"weight_map": {"lm_head.weight": 1}}));
    assert_eq!(
        folder.error(),
        format!("{index}: weight_map.lm_head.weight is 1, not a string")
    );
    let folder = sharded();
    fs::remove_file(folder.path(shard_file(0))).expect("it goes");
    assert!(
        folder
            .error()
            .starts_with(&format!("{}: No such file", shard_file(0))),
        "{}",
        folder.error()
    );
}

/// Whatever bytes a folder contains, opening it gives a model or a one-line error.
#[test]
fn layers_with_many_kinds_of_heads_are_refused() {
    let folder = Folder::copy("llama");
    fs::copy(
        golden("gemma4-dense").join("config.json"),
        folder.path("config.json"),
    )
    .expect("a golden file copies");
    folder.edit(
        "config.json",
        &json!({"per_layer_config": {"0": {"head_dim": 8}}}),
    );
    let error = folder.error();
    assert!(
        error.contains("per_layer_config") && error.contains("kinds of heads; at most 2"),
        "{error}"
    );
}

#[test]
fn damaged_bytes_never_panic() {
    let folder = Folder::copy("qwen3");
    let originals = ["config.json", "model.safetensors"].map(|file| (file, folder.read(file)));
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut refused = 0;
    for _ in 0..600 {
        let (file, original) = &originals[random(2)];
        let mut bytes = original.clone();
        // Damages only the start, where the header is. Damage to weights only gives different weights.
        let end = bytes.len().min(3000);
        for _ in 0..=random(3) {
            let alphabet = b"0123456789-.eE\"{}[],: nullNaN\\\0\xff";
            bytes[random(end)] = alphabet[random(alphabet.len())];
        }
        if random(4) == 0 {
            bytes.truncate(random(bytes.len()));
        }
        folder.write(file, &bytes);
        match folder.open() {
            Ok(model) => drop(upload(&model)),
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().contains('\n'), "one line: {error}");
            }
        }
        folder.write(file, original);
    }
    assert!(refused > 200, "much damage is noticed: {refused} of 600");
}
