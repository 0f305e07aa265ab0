//! Models that tests write as GGUF files.

use super::builder::{Builder, Item, Tensor};
use folio::model::demo as demo_model;
use serde_json::Value;

/// The demo model in bf16, with its vocabulary and template.
#[allow(dead_code, reason = "not every test needs both models")]
pub(crate) fn demo() -> Builder {
    let config = json(demo_model::CONFIG_JSON);
    let mut file = Builder {
        version: 3,
        pairs: Vec::new(),
        tensors: Vec::new(),
    };
    file.set("general.architecture", Item::Text("qwen3".into()));
    for (key, field) in [
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
    ] {
        file.set(
            &format!("qwen3.{key}"),
            Item::U32(config[field].as_u64().expect("a number") as u32),
        );
    }
    let number = |field: &Value| field.as_f64().expect("a number") as f32;
    file.set(
        "qwen3.attention.layer_norm_rms_epsilon",
        Item::F32(number(&config["rms_norm_eps"])),
    );
    let theta = config
        .get("rope_theta")
        .unwrap_or(&config["rope_parameters"]["rope_theta"]);
    file.set("qwen3.rope.freq_base", Item::F32(number(theta)));
    vocabulary(&mut file);
    let bytes = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/assets/demo/model.safetensors"
    ));
    let bytes = bytes.expect("the demo's weights");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("the demo's weights");
    let mut named: Vec<_> = tensors.tensors();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, tensor) in named {
        let dimensions = tensor
            .shape()
            .iter()
            .rev()
            .map(|size| *size as u64)
            .collect();
        let data = tensor.data().to_vec();
        file.tensors.push(Tensor {
            name: own_name(&name),
            dimensions,
            kind: 30,
            offset: 0,
            data,
        });
    }
    file.pack();
    file
}

/// A model with one layer and four tokens, small enough to damage each of its bytes in a test.
#[allow(dead_code, reason = "not every test needs both models")]
pub(crate) fn small() -> Builder {
    let mut file = Builder {
        version: 3,
        pairs: Vec::new(),
        tensors: Vec::new(),
    };
    file.set("general.architecture", Item::Text("llama".into()));
    for (key, value) in [
        ("context_length", 64),
        ("embedding_length", 32),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
    ] {
        file.set(&format!("llama.{key}"), Item::U32(value));
    }
    file.set("llama.attention.layer_norm_rms_epsilon", Item::F32(1e-5));
    file.set("tokenizer.ggml.model", Item::Text("llama".into()));
    file.set(
        "tokenizer.ggml.tokens",
        Item::Texts(["<unk>", "a", "b", "ab"].map(String::from).into()),
    );
    file.set(
        "tokenizer.ggml.scores",
        Item::F32s(vec![0.0, -1.0, -2.0, -3.0]),
    );
    file.set("tokenizer.ggml.add_bos_token", Item::Boolean(false));
    let mut add = |name: &str, dimensions: &[u64], kind: u32, bytes: u64| {
        let length = dimensions.iter().product::<u64>() / 32 * bytes;
        let tensor = Tensor {
            name: format!("{name}.weight"),
            dimensions: dimensions.into(),
            kind,
            offset: 0,
            data: vec![0x11; length as usize],
        };
        file.tensors.push(tensor);
    };
    add("token_embd", &[32, 4], 8, 34);
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        add(name, &[32], 0, 128);
    }
    for name in [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ] {
        add(&format!("blk.0.{name}"), &[32, 32], 2, 18);
    }
    file.pack();
    file
}

/// A vocabulary of single bytes, for engines that open no file without one.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn bytes_vocabulary(file: &mut Builder, count: u32) {
    file.set("tokenizer.ggml.model", Item::Text("llama".into()));
    let texts = (0..count).map(|id| {
        if id == 0 {
            "<unk>".into()
        } else {
            format!("<0x{:02X}>", id % 256)
        }
    });
    file.set("tokenizer.ggml.tokens", Item::Texts(texts.collect()));
    file.set(
        "tokenizer.ggml.scores",
        Item::F32s(vec![0.0; count as usize]),
    );
    file.set(
        "tokenizer.ggml.token_type",
        Item::I32s((0..count).map(|id| if id == 0 { 2 } else { 6 }).collect()),
    );
    file.set("tokenizer.ggml.add_bos_token", Item::Boolean(false));
}

fn vocabulary(file: &mut Builder) {
    let (tokenizer, config) = (
        json(demo_model::TOKENIZER_JSON),
        json(demo_model::TOKENIZER_CONFIG_JSON),
    );
    let vocabulary = tokenizer["model"]["vocab"]
        .as_object()
        .expect("a vocabulary");
    let added = tokenizer["added_tokens"].as_array().expect("added tokens");
    let count = 1 + added
        .iter()
        .map(|token| id(&token["id"]))
        .chain(vocabulary.values().map(id))
        .max()
        .unwrap_or(0);
    let (mut texts, mut kinds) = (vec![String::new(); count], vec![1; count]);
    for (token, number) in vocabulary {
        texts[id(number)] = token.clone();
    }
    for token in added {
        texts[id(&token["id"])] = token["content"].as_str().expect("a text").into();
        kinds[id(&token["id"])] = if token["special"] == true { 3 } else { 4 };
    }
    let merge = |merge: &Value| match merge {
        Value::String(merge) => merge.clone(),
        pair => format!(
            "{} {}",
            pair[0].as_str().expect("a text"),
            pair[1].as_str().expect("a text")
        ),
    };
    let merges = tokenizer["model"]["merges"]
        .as_array()
        .expect("merges")
        .iter()
        .map(merge)
        .collect();
    let eos = texts
        .iter()
        .position(|text| *text == config["eos_token"].as_str().expect("a text"));
    file.set("tokenizer.ggml.model", Item::Text("gpt2".into()));
    file.set("tokenizer.ggml.pre", Item::Text("qwen2".into()));
    file.set(
        "tokenizer.ggml.eos_token_id",
        Item::U32(eos.expect("an end token") as u32),
    );
    file.set("tokenizer.ggml.tokens", Item::Texts(texts));
    file.set("tokenizer.ggml.token_type", Item::I32s(kinds));
    file.set("tokenizer.ggml.merges", Item::Texts(merges));
    let template = config["chat_template"].as_str().expect("a template");
    file.set("tokenizer.chat_template", Item::Text(template.into()));
}

fn id(value: &Value) -> usize {
    value.as_u64().expect("an id") as usize
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("the demo's files are JSON")
}

fn own_name(name: &str) -> String {
    let mut own = name.replace("model.layers.", "blk.");
    for (theirs, ours) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ] {
        own = own.replace(theirs, ours);
    }
    own
}
