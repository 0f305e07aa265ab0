//! Hand-made GGUF files: valid ones give a model, tokenizer and template; hostile ones give an error that names file
//! and field.

mod hostile;

use crate::builder::{Builder, Item, Tensor};
use crate::models::{self, demo};
use bytes::Bytes;
use folio::model::rope::RopeScaling;
use folio::model::{DrawDefaults, Gguf, LoadError, Model, Texts, demo as demo_model};
use folio::plan::Storage;
use folio::platform::{ModelFile, block_on};
use folio::text::{ChatInput, TextModel, Tokenizer};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::convert::Infallible;

pub(crate) fn open(bytes: Vec<u8>) -> Result<Gguf, LoadError> {
    Gguf::from_files(vec![(
        "x.gguf".into(),
        ModelFile::in_memory(Bytes::from(bytes)),
    )])
}

fn weights(model: &Model) -> BTreeMap<(String, u32), Bytes> {
    let plan = model.record(Storage::F32);
    let mut rows = BTreeMap::new();
    let uploaded = block_on(
        model.upload(&plan, |id, row, bytes| -> Result<(), Infallible> {
            rows.insert((plan.weight_spec(id).name.clone(), row), bytes);
            Ok(())
        }),
    );
    uploaded.expect("the model uploads");
    rows
}

/// The file's tokenizer, if it has a vocabulary.
pub(crate) fn tokenizer(texts: &Texts) -> Option<Tokenizer> {
    let vocabulary = texts.vocabulary().expect("the vocabulary is right")?;
    let tokens = vocabulary
        .tokens
        .iter()
        .map(|(text, id)| (text.as_ref(), *id));
    let tokenizer = Tokenizer::from_tables(&vocabulary.tokenizer_json, tokens, &vocabulary.merges);
    Some(tokenizer.expect("it is a tokenizer"))
}

#[test]
fn the_demo_model_is_itself_in_gguf() {
    for version in [2, 3] {
        let mut file = demo();
        file.version = version;
        let gguf = open(file.bytes()).expect("it opens");
        let texts = gguf.texts();
        let model = Model::from_gguf(gguf).expect("it loads");
        let original = Model::demo();
        assert_eq!(
            model.record(Storage::F32).to_string(),
            original.record(Storage::F32).to_string()
        );
        assert!(
            weights(&model) == weights(&original),
            "the same bytes for the same weights"
        );
        let eos = &model.generation().eos_token_ids;
        assert!(
            original
                .generation()
                .eos_token_ids
                .iter()
                .all(|id| eos.contains(id)),
            "{eos:?}"
        );

        let config = texts
            .tokenizer_config_json()
            .expect("the metadata is right");
        let text = TextModel::with_tokenizer(tokenizer(&texts), Some(&config), None)
            .expect("text is right");
        assert!(text.template.is_some(), "the file has a chat template");
        let found = text.tokenizer.expect("the file has a vocabulary");
        let expected =
            Tokenizer::from_json(demo_model::TOKENIZER_JSON).expect("the demo's tokenizer");
        for sample in [
            "Once upon a time, there",
            " a  b\n\n\n12345 it's",
            "<|im_start|>user\nhé 😀<|im_end|>",
            "",
        ] {
            let ids = expected.encode(sample, true).expect("it encodes");
            assert_eq!(
                found.encode(sample, true).expect("it encodes"),
                ids,
                "{sample:?}"
            );
            let bytes = |tokenizer: &Tokenizer| {
                ids.iter()
                    .flat_map(|id| tokenizer.token_bytes(*id, None))
                    .collect()
            };
            let (found, expected): (Vec<u8>, Vec<u8>) = (bytes(&found), bytes(&expected));
            assert_eq!(found, expected, "{sample:?}");
        }
    }
}

/// With Llama 3 and Tekken, a text starts with a BOS unless the file says otherwise; with Qwen it does not.
#[test]
fn the_way_to_split_text_decides_about_a_bos() {
    for (pre, flag, begins) in [
        ("llama-bpe", None, true),
        ("tekken", None, true),
        ("qwen2", None, false),
        ("llama-bpe", Some(false), false),
        ("qwen2", Some(true), true),
    ] {
        let mut file = demo();
        file.set("tokenizer.ggml.pre", Item::Text(pre.into()));
        file.set("tokenizer.ggml.bos_token_id", Item::U32(5));
        if let Some(flag) = flag {
            file.set("tokenizer.ggml.add_bos_token", Item::Boolean(flag));
        }
        let texts = Texts::from_gguf("x.gguf", ModelFile::in_memory(Bytes::from(file.bytes())))
            .expect("it reads");
        let tokenizer = tokenizer(&texts).expect("there is a vocabulary");
        let ids = tokenizer.encode("Once upon", true).expect("it encodes");
        assert_eq!(ids[0] == 5, begins, "{pre} {flag:?}: {ids:?}");
        assert_ne!(
            tokenizer.encode("Once upon", false).expect("it encodes")[0],
            5,
            "{pre} {flag:?}"
        );
    }
}

/// The error for a rotation that lacks something names the key or the tensor.
#[test]
fn rotations_that_lack_something_are_refused() {
    for (name, kind, expected) in [
        (
            "rope_factors_long.weight",
            0,
            "llama.rope.scaling.original_context_length is missing",
        ),
        (
            "rope_freqs.weight",
            1,
            "rope_freqs.weight\" has type F16, not F32",
        ),
        ("rope_freqs.weight", 0, "rope_freqs.weight has 3 numbers"),
    ] {
        let mut file = models::small();
        let data = vec![0; if kind == 0 { 12 } else { 6 }];
        file.tensors.push(Tensor {
            name: name.into(),
            dimensions: vec![3],
            kind,
            offset: 0,
            data,
        });
        file.pack();
        let message = open(file.bytes())
            .and_then(Model::from_gguf)
            .err()
            .expect("it is refused")
            .to_string();
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}

/// All experts' copies of a matrix are in one tensor. The number of experts is checked before a name is created for
/// each.
#[test]
fn absurd_numbers_of_experts_are_refused() {
    let mut file = models::small();
    let count = 1 << 19;
    let name = "blk.0.ffn_gate_exps.weight".into();
    let tensor = Tensor {
        name,
        dimensions: vec![1, 1, count],
        kind: 0,
        offset: 0,
        data: vec![0; 4 << 19],
    };
    file.tensors.push(tensor);
    file.pack();
    let message = open(file.bytes()).expect_err("too many").to_string();
    assert!(
        message.contains("blk.0.ffn_gate_exps.weight") && message.contains("exceeds the limit"),
        "{message}"
    );
}

#[test]
fn a_file_without_vocabulary_has_no_tokenizer() {
    let mut file = demo();
    file.pairs.retain(|(key, _)| !key.starts_with("tokenizer."));
    let gguf = open(file.bytes()).expect("it opens");
    assert_eq!(gguf.texts().vocabulary(), Ok(None));
    assert!(Model::from_gguf(gguf).is_ok(), "it still serves token ids");
}

/// Tokens by score: merges in SentencePiece's order, bytes where no token fits, a leading space.
#[test]
fn scores_merge_as_sentence_piece_does() {
    let mut texts: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    texts.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let mut kinds: Vec<u32> = [vec![2, 3, 3], vec![6; 256]].concat();
    let mut scores = vec![0.0; texts.len()];
    let words = [
        ("\u{2581}", -9.0),
        ("a", -9.0),
        ("b", -9.0),
        ("c", -9.0),
        ("ab", -3.0),
        ("bc", -2.0),
    ];
    for (text, score) in words
        .into_iter()
        .chain([("\u{2581}a", -4.0), ("abc", -1.0)])
    {
        texts.push(text.into());
        kinds.push(1);
        scores.push(score);
    }
    let mut file = demo();
    file.pairs.retain(|(key, _)| !key.starts_with("tokenizer."));
    file.set("tokenizer.ggml.model", Item::Text("llama".into()));
    file.set("tokenizer.ggml.tokens", Item::Texts(texts.clone()));
    file.set("tokenizer.ggml.token_type", Item::I32s(kinds));
    file.set("tokenizer.ggml.scores", Item::F32s(scores));
    file.set("tokenizer.ggml.bos_token_id", Item::U32(1));
    let tokenizer =
        tokenizer(&open(file.bytes()).expect("it opens").texts()).expect("there is a vocabulary");
    let tokens = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode(text, true).expect("it encodes");
        ids.into_iter()
            .map(|id| texts[id as usize].clone())
            .collect()
    };
    // "bc" scores higher than "ab" and "▁a"; then "a" joins it, and nothing joins "▁" with the whole.
    assert_eq!(tokens("abc"), ["<s>", "\u{2581}", "abc"]);
    assert_eq!(tokens("ab"), ["<s>", "\u{2581}", "ab"]);
    assert_eq!(
        tokens("babc a"),
        ["<s>", "\u{2581}", "b", "abc", "\u{2581}a"]
    );
    assert_eq!(tokens("é"), ["<s>", "\u{2581}", "<0xC3>", "<0xA9>"]);
    let ids = tokenizer.encode("é", false).expect("it encodes");
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|id| tokenizer.token_bytes(*id, None))
        .collect();
    assert_eq!(String::from_utf8(bytes).expect("whole characters"), " é");
}

/// As with the runs of spaces of Mistral 7B, which all have one score.
#[test]
fn of_equal_scores_the_leftmost_pair_merges_first() {
    let runs = (1..=16)
        .rev()
        .filter(|length| *length != 15)
        .map(|length| "a".repeat(length));
    let texts: Vec<String> = std::iter::once("<unk>".to_owned()).chain(runs).collect();
    let mut file = demo();
    file.pairs.retain(|(key, _)| !key.starts_with("tokenizer."));
    file.set("tokenizer.ggml.model", Item::Text("llama".into()));
    file.set(
        "tokenizer.ggml.token_type",
        Item::I32s([vec![2], vec![1; texts.len() - 1]].concat()),
    );
    file.set("tokenizer.ggml.scores", Item::F32s(vec![-1e9; texts.len()]));
    file.set("tokenizer.ggml.tokens", Item::Texts(texts.clone()));
    file.set("tokenizer.ggml.add_space_prefix", Item::Boolean(false));
    let tokenizer =
        tokenizer(&open(file.bytes()).expect("it opens").texts()).expect("there is a vocabulary");
    for (length, expected) in [
        (16, vec![16]),
        (17, vec![16, 1]),
        (32, vec![16, 16]),
        (41, vec![16, 16, 9]),
    ] {
        let ids = tokenizer
            .encode(&"a".repeat(length), false)
            .expect("it encodes");
        let lengths: Vec<usize> = ids.iter().map(|id| texts[*id as usize].len()).collect();
        assert_eq!(lengths, expected, "a run of {length}");
    }
}

/// A SentencePiece file with Phi-3's special tokens.
fn phi3(name: &str) -> (Tokenizer, Vec<String>) {
    let texts = [
        "<unk>",
        "<s>",
        "<|user|>",
        "<|end|>",
        "\u{2581}",
        "\n",
        "H",
        "\u{2581}H",
    ]
    .map(String::from);
    let mut file = demo();
    file.pairs.retain(|(key, _)| !key.starts_with("tokenizer."));
    file.set("general.name", Item::Text(name.into()));
    file.set("tokenizer.ggml.model", Item::Text("llama".into()));
    file.set("tokenizer.ggml.tokens", Item::Texts(texts.to_vec()));
    file.set(
        "tokenizer.ggml.token_type",
        Item::I32s(vec![2, 3, 3, 3, 1, 1, 1, 1]),
    );
    file.set("tokenizer.ggml.scores", Item::F32s(vec![0.0; 8]));
    file.set("tokenizer.ggml.add_bos_token", Item::Boolean(false));
    let tokenizer =
        tokenizer(&open(file.bytes()).expect("it opens").texts()).expect("there is a vocabulary");
    (tokenizer, texts.to_vec())
}

/// Its tokenizer.json says so, but a GGUF file has no field for it.
#[test]
fn special_tokens_of_phi_3_take_the_white_space_behind_them() {
    for (name, expected) in [
        (
            "Phi 3",
            &[
                "<|user|>", "\u{2581}", "\n", "H", "<|end|>", "\u{2581}", "\n",
            ][..],
        ),
        (
            "Phi-3.5-mini-instruct",
            &["<|user|>", "\u{2581}H", "<|end|>"],
        ),
    ] {
        let (tokenizer, texts) = phi3(name);
        let ids = tokenizer
            .encode("<|user|>\nH<|end|>\n", false)
            .expect("it encodes");
        let tokens: Vec<&str> = ids.iter().map(|id| texts[*id as usize].as_str()).collect();
        assert_eq!(tokens, expected, "{name}");
    }
}

#[test]
fn the_unknown_token_of_a_file_is_a_special_token() {
    let (tokenizer, _) = phi3("any");
    assert_eq!(
        tokenizer.encode("<unk>H", false).expect("it encodes"),
        [0, 7]
    );
    assert!(tokenizer.is_special(0));
}

#[test]
fn a_whole_text_has_no_space_that_the_tokenizer_put_before_it() {
    let (tokenizer, _) = phi3("any");
    assert_eq!(tokenizer.whole_text(" H"), "H");
    assert_eq!(tokenizer.whole_text("  H"), " H");
    assert_eq!(tokenizer.whole_text("<s> H"), "<s> H");
    let byte_level =
        Tokenizer::from_json(demo_model::TOKENIZER_JSON).expect("the demo's tokenizer");
    assert_eq!(byte_level.whole_text(" H"), " H");
}

#[test]
fn named_templates_of_a_file_are_those_of_its_folder() {
    let mut file = demo();
    file.set("tokenizer.chat_template", Item::Text("plain".into()));
    file.set(
        "tokenizer.chat_template.tool_use",
        Item::Text("tools".into()),
    );
    file.set(
        "tokenizer.chat_templates",
        Item::Texts(vec!["default".into(), "tool_use".into()]),
    );
    let texts = open(file.bytes()).expect("it opens").texts();
    let config = texts
        .tokenizer_config_json()
        .expect("the metadata is right");
    let text = TextModel::with_tokenizer(None, Some(&config), None).expect("text is right");
    let (messages, tools) = (serde_json::json!([]), serde_json::json!([{}]));
    for (tools, expected) in [(None, "plain"), (Some(&tools), "tools")] {
        let input = ChatInput {
            messages: &messages,
            tools,
            kwargs: None,
            add_generation_prompt: true,
            continue_final: false,
            unix_time: 0,
            bytes_max: 1000,
        };
        assert_eq!(text.chat_text(&input).expect("it renders"), expected);
    }
}

/// The one-layer model of architecture llama with these keys.
fn llama(keys: &[(&str, Item)]) -> Result<Model, LoadError> {
    let mut file = models::small();
    keys.iter()
        .for_each(|(key, item)| file.set(key, item.clone()));
    Model::from_gguf(open(file.bytes())?)
}

/// As llama.cpp reads them.
#[test]
fn every_key_that_scales_rotations_counts() {
    let scaling = |keys: &[(&str, Item)]| llama(keys).expect("it loads").spec().ropes[0].scaling;
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(
        scaling(&[("llama.rope.scale_linear", Item::F32(4.0))]),
        linear
    );
    assert_eq!(
        scaling(&[("llama.rope.scaling.factor", Item::F32(4.0))]),
        linear
    );
    let none = ("llama.rope.scaling.type", Item::Text("none".into()));
    assert_eq!(
        scaling(&[none, ("llama.rope.scaling.factor", Item::F32(4.0))]),
        RopeScaling::None
    );
    let yarn = [
        ("llama.rope.scaling.type", Item::Text("yarn".into())),
        ("llama.rope.scaling.factor", Item::F32(4.0)),
        ("llama.rope.scaling.original_context_length", Item::U32(16)),
    ];
    let factor = |scaling| match scaling {
        RopeScaling::Yarn {
            attention_factor, ..
        } => attention_factor,
        other => panic!("{other:?}"),
    };
    let plain = factor(scaling(&yarn));
    let times = factor(scaling(
        &[
            &yarn[..],
            &[("llama.rope.scaling.attn_factor", Item::F32(1.5))],
        ]
        .concat(),
    ));
    assert!(
        (times - 1.5 * plain).abs() < 1e-6,
        "{times} is not 1.5 times {plain}"
    );
}

#[test]
fn sampling_defaults_are_those_of_the_file() {
    let draw = |keys: &[(&str, Item)]| llama(keys).expect("it loads").generation().draw;
    assert_eq!(draw(&[]), DrawDefaults::default());
    let keys = [
        ("general.sampling.temp", Item::F32(0.25)),
        ("general.sampling.top_k", Item::U32(20)),
        ("general.sampling.top_p", Item::F32(1.0)),
        ("general.sampling.min_p", Item::F32(7.0)),
        ("general.sampling.penalty_repeat", Item::Text("much".into())),
    ];
    let expected = DrawDefaults {
        temperature: Some(0.25),
        top_k: Some(20),
        top_p: Some(1.0),
        ..DrawDefaults::default()
    };
    assert_eq!(draw(&keys), expected, "what no request may have is ignored");
}

#[test]
fn what_changes_the_results_and_is_not_supported_is_refused_by_name() {
    for (key, item) in [
        ("llama.attention.causal", Item::Boolean(false)),
        ("llama.use_parallel_residual", Item::Boolean(true)),
        ("llama.attention.clamp_kqv", Item::F32(8.0)),
        ("llama.attention.max_alibi_bias", Item::F32(8.0)),
        ("general.type", Item::Text("adapter".into())),
    ] {
        let error = llama(&[(key, item)])
            .err()
            .expect("it is refused")
            .to_string();
        assert!(error.starts_with(&format!("x.gguf: {key} is ")), "{error}");
    }
    for (key, item) in [
        ("llama.attention.causal", Item::Boolean(true)),
        ("general.type", Item::Text("model".into())),
    ] {
        llama(&[(key, item)]).expect("this is as usual");
    }
}

/// As in llama.cpp, files may have keys of other architectures; who loads such a file is told.
#[test]
fn keys_that_nothing_reads_are_told() {
    let unread = |items: &[(&str, Item)]| {
        let mut file = models::small();
        items
            .iter()
            .for_each(|(key, item)| file.set(key, item.clone()));
        open(file.bytes()).expect("it opens").unread_keys()
    };
    assert_eq!(unread(&[]), [""; 0]);
    for key in [
        "llama.logit_scale",
        "llama.attn_logit_softcapping",
        "llama.rope.scaling.yarn_ext_factor",
        "llama.something_new",
    ] {
        assert_eq!(unread(&[(key, Item::F32(0.5))]), [key]);
    }
    assert_eq!(unread(&[("other.logit_scale", Item::F32(0.5))]), [""; 0]);
}

fn vector(name: &str, elements: usize) -> Tensor {
    Tensor {
        name: name.into(),
        dimensions: vec![elements as u64],
        kind: 0,
        offset: 0,
        data: vec![0; 4 * elements],
    }
}

/// As in llama.cpp: a tensor that nothing reads would have changed the results.
#[test]
fn a_tensor_that_nothing_reads_is_refused_by_name() {
    let with = |name: &str, elements: usize| {
        let mut file = models::small();
        file.tensors.push(vector(name, elements));
        file.pack();
        open(file.bytes()).and_then(Model::from_gguf)
    };
    for name in [
        "blk.0.attn_q_norm.weight",
        "blk.0.mystery.weight",
        "output_norm.bias",
        "extra",
    ] {
        let error = with(name, 32).err().expect("it is refused").to_string();
        assert!(
            error.contains(&format!(
                "tensor {name:?} is not a part of this architecture"
            )),
            "{error}"
        );
    }
    for name in ["blk.0.attn_rot_embd.weight", "blk.1.nextn.enorm.weight"] {
        with(name, 32).expect("it is known to be of no use");
    }
}

#[test]
fn biases_are_applied_where_a_file_has_them() {
    for names in [
        &["attn_output"][..],
        &["attn_q", "attn_k", "attn_v"],
        &["attn_q", "attn_k", "attn_v", "attn_output"],
    ] {
        let mut file = models::small();
        file.tensors.extend(
            names
                .iter()
                .map(|name| vector(&format!("blk.0.{name}.bias"), 32)),
        );
        file.pack();
        let model = open(file.bytes())
            .and_then(Model::from_gguf)
            .expect("it loads");
        let attention = model.spec().attention;
        let found = (attention.qkv_bias, attention.output_bias);
        assert_eq!(
            found,
            (names.contains(&"attn_q"), names.contains(&"attn_output")),
            "{names:?}"
        );
    }
}

/// Gemma 4's vocabulary: merges by a list, bytes where no token fits, no leading space, a BOS.
#[test]
fn gemma4_merges_by_its_list() {
    let mut texts: Vec<String> = vec!["<unk>".into(), "<bos>".into()];
    texts.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    texts.extend(["\u{2581}", "a", "b", "c", "bc", "\u{2581}a", "abc"].map(String::from));
    let kinds: Vec<u32> = [vec![2, 3], vec![6; 256], vec![1; 7]].concat();
    let mut file = demo();
    file.pairs.retain(|(key, _)| !key.starts_with("tokenizer."));
    file.set("tokenizer.ggml.model", Item::Text("gemma4".into()));
    file.set("tokenizer.ggml.tokens", Item::Texts(texts.clone()));
    file.set("tokenizer.ggml.token_type", Item::I32s(kinds));
    file.set(
        "tokenizer.ggml.merges",
        Item::Texts(["b c", "a bc", "\u{2581} a"].map(String::from).into()),
    );
    file.set("tokenizer.ggml.bos_token_id", Item::U32(1));
    // Published files say so, but the model expects its BOS.
    file.set("tokenizer.ggml.add_bos_token", Item::Boolean(false));
    let tokenizer =
        tokenizer(&open(file.bytes()).expect("it opens").texts()).expect("there is a vocabulary");
    let ids = tokenizer.encode("babc a\u{e9}", true).expect("it encodes");
    let tokens: Vec<&str> = ids.iter().map(|id| texts[*id as usize].as_str()).collect();
    assert_eq!(
        tokens,
        ["<bos>", "b", "abc", "\u{2581}a", "<0xC3>", "<0xA9>"]
    );
    let bytes: Vec<u8> = ids[1..]
        .iter()
        .flat_map(|id| tokenizer.token_bytes(*id, None))
        .collect();
    assert_eq!(
        String::from_utf8(bytes).expect("whole characters"),
        "babc a\u{e9}"
    );
}

#[test]
fn tensors_may_neither_overlap_nor_leave_the_file() {
    let mut file = demo();
    file.tensors[2].offset = file.tensors[1].offset;
    let message = open(file.bytes())
        .expect_err("two tensors in one place")
        .to_string();
    assert!(message.contains("overlaps"), "{message}");
    for offset in [1 << 40, u64::MAX - 31] {
        let mut file = demo();
        file.tensors[2].offset = offset;
        let message = open(file.bytes()).expect_err("beyond the file").to_string();
        assert!(message.contains(&file.tensors[2].name), "{message}");
    }
}

#[test]
fn split_files_are_one_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = demo();
    let (mut first, mut second) = (whole.clone(), whole.clone());
    second.pairs.clear();
    second.tensors = first.tensors.split_off(20);
    for (number, part) in [&mut first, &mut second].into_iter().enumerate() {
        part.set("split.no", Item::U16(number as u16));
        part.set("split.count", Item::U16(2));
        part.pack();
        let name = format!("m-{:05}-of-00002.gguf", number + 1);
        std::fs::write(folder.path().join(name), part.bytes()).expect("it is written");
    }
    let open = |name: &str| Gguf::open(&folder.path().join(name)).and_then(Model::from_gguf);
    let model = open("m-00001-of-00002.gguf").expect("both halves load");
    assert!(
        weights(&model) == weights(&Model::demo()),
        "the same bytes for the same weights"
    );
    assert!(
        open("m-00002-of-00002.gguf")
            .err()
            .expect("refused")
            .to_string()
            .contains("give the first")
    );
    std::fs::remove_file(folder.path().join("m-00002-of-00002.gguf")).expect("it is removed");
    assert!(
        open("m-00001-of-00002.gguf")
            .err()
            .expect("refused")
            .to_string()
            .contains("m-00002-of-00002.gguf")
    );
}

/// Writes a file as three parts: the first has the metadata, the others only say which part they are.
fn write_split(whole: &Builder, folder: &std::path::Path) {
    let count = whole.tensors.len().div_ceil(3);
    for (number, tensors) in whole.tensors.chunks(count).enumerate() {
        let pairs = if number == 0 {
            whole.pairs.clone()
        } else {
            Vec::new()
        };
        let mut part = Builder {
            version: whole.version,
            pairs,
            tensors: tensors.to_vec(),
        };
        part.set("split.no", Item::U16(number as u16));
        part.set("split.count", Item::U16(3));
        part.pack();
        let name = format!("m-{:05}-of-00003.gguf", number + 1);
        std::fs::write(folder.join(name), part.bytes()).expect("it is written");
    }
}

#[test]
fn split_files_of_every_family_are_one_model() {
    for (family, whole) in crate::converted::files() {
        let folder = tempfile::tempdir().expect("a folder");
        write_split(&whole, folder.path());
        let split =
            Gguf::open(&folder.path().join("m-00001-of-00003.gguf")).and_then(Model::from_gguf);
        let split = split.unwrap_or_else(|error| panic!("{family}: {error}"));
        let whole = open(whole.bytes())
            .and_then(Model::from_gguf)
            .expect("one file loads");
        assert!(
            weights(&split) == weights(&whole),
            "{family}: the same bytes for the same weights"
        );
    }
}

/// The demo with the names and types of these tokens at the end of its vocabulary; the id of the first.
fn with_last_tokens(tokens: &[(&str, u32)]) -> (Builder, u32) {
    let mut file = demo();
    let mut lists = file
        .pairs
        .iter()
        .filter_map(|(key, item)| match (key.as_str(), item) {
            ("tokenizer.ggml.tokens", Item::Texts(texts)) => Some(texts.clone()),
            _ => None,
        });
    let mut texts = lists.next().expect("the demo has a vocabulary");
    let mut kinds = vec![1; texts.len()];
    let first = texts.len() - tokens.len();
    // The demo has ends of its own.
    texts
        .iter_mut()
        .filter(|text| tokens.iter().any(|(name, _)| text == name))
        .for_each(String::clear);
    for (at, (text, kind)) in (first..).zip(tokens) {
        texts[at] = (*text).to_owned();
        kinds[at] = *kind;
    }
    file.set("tokenizer.ggml.tokens", Item::Texts(texts));
    file.set("tokenizer.ggml.merges", Item::Texts(Vec::new()));
    file.set("tokenizer.ggml.token_type", Item::I32s(kinds));
    file.set("tokenizer.ggml.eos_token_id", Item::U32(3));
    (file, first as u32)
}

/// The ends among the last tokens of [`with_last_tokens`], by name.
fn last_ends<'n>(tokens: &[(&'n str, u32)]) -> Vec<&'n str> {
    let (file, first) = with_last_tokens(tokens);
    let model = open(file.bytes())
        .and_then(Model::from_gguf)
        .expect("it loads");
    let ends = model
        .generation()
        .eos_token_ids
        .iter()
        .filter(|id| **id >= first);
    ends.map(|id| tokens[(id - first) as usize].0).collect()
}

/// Converters write tokens that end an answer as user-defined, or as normal ones; llama.cpp goes by their names.
#[test]
fn tokens_with_the_name_of_an_end_end_an_answer_whatever_their_type() {
    for name in [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
        "<eos>",
        "</s>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ] {
        for kind in [1, 3, 4] {
            let tokens = [(name, kind)];
            assert_eq!(last_ends(&tokens), [name], "type {kind}");
            let (file, id) = with_last_tokens(&tokens);
            let tokenizer =
                tokenizer(&open(file.bytes()).expect("it opens").texts()).expect("a vocabulary");
            assert!(
                tokenizer.is_special(id),
                "{name} of type {kind} is not text of an answer"
            );
        }
    }
}

#[test]
fn an_end_of_one_message_of_several_does_not_end_an_answer() {
    let harmony = [("<|return|>", 3), ("<|call|>", 3), ("<|end|>", 3)];
    assert_eq!(last_ends(&harmony), ["<|return|>", "<|call|>"]);
    assert_eq!(
        last_ends(&[("<|flush|>", 3), ("<|calls|>", 3), ("<|end|>", 4)]),
        ["<|flush|>", "<|calls|>"]
    );
    assert_eq!(
        last_ends(&[("<|tool_response>", 3), ("</s>", 4)]),
        ["<|tool_response>"]
    );
    assert_eq!(
        last_ends(&[("<end_of_turn>", 3), ("</s>", 4)]),
        ["<end_of_turn>"]
    );
}

#[test]
fn all_listed_end_tokens_end_an_answer() {
    let (mut file, first) = with_last_tokens(&[("x", 1), ("y", 1)]);
    file.set(
        "tokenizer.ggml.eos_token_ids",
        Item::I32s(vec![3, first, first + 1]),
    );
    let model = open(file.bytes())
        .and_then(Model::from_gguf)
        .expect("it loads");
    assert!(
        [3, first, first + 1]
            .iter()
            .all(|id| model.generation().eos_token_ids.contains(id))
    );
    // What is no token ends nothing, and keeps no model from being served.
    file.set("tokenizer.ggml.eos_token_ids", Item::I32s(vec![1 << 30]));
    file.set("tokenizer.ggml.eot_token_id", Item::U32(1 << 30));
    let model = open(file.bytes())
        .and_then(Model::from_gguf)
        .expect("it loads");
    assert!(!model.generation().eos_token_ids.contains(&(1 << 30)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever bytes are changed and wherever a file is cut, the result is a model or an error, never a panic.
    #[test]
    fn damaged_files_never_panic(
        changes in proptest::collection::vec((0usize..3000, any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = models::small().bytes();
        let head = bytes.len().min(3000);
        for (at, value) in changes {
            bytes[at % head] = value;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(model) = open(bytes).and_then(Model::from_gguf) {
            weights(&model);
        }
    }
}

/// The fuzzer's seeds are valid: heads of small files, and of the files of all families, which are written into the
/// folder that `FOLIO_FUZZ_SEEDS` names. The fuzzer adds tensors of the same numbers.
#[test]
fn seeds_of_the_fuzzer_are_models() {
    let read = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.expect("the folder lists").path();
        (
            path.display().to_string(),
            std::fs::read(&path).expect("the seed reads"),
        )
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/gguf");
    let small = std::fs::read_dir(folder)
        .expect("the folder lists")
        .map(read);
    let families = crate::converted::files().map(|(family, file)| (family.to_owned(), file.head()));
    let mut architectures = std::collections::BTreeSet::new();
    for (name, head) in small.chain(families) {
        let mut file = head.clone();
        file.resize(head.len() + (1 << 20), 0x3f);
        let gguf = open(file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(gguf.unread_keys(), [""; 0], "{name}");
        let model = Model::from_gguf(gguf).unwrap_or_else(|error| panic!("{name}: {error}"));
        weights(&model);
        architectures.insert(model.spec().architecture);
        if let Some(folder) = std::env::var_os("FOLIO_FUZZ_SEEDS").filter(|_| !name.contains('/')) {
            std::fs::write(std::path::Path::new(&folder).join(name), head)
                .expect("the folder is writable");
        }
    }
    assert_eq!(architectures.len(), 58, "{architectures:?}");
}
