//! Families of 2026 that share the kernels of those in `main`: golden logits and tokens on every backend.

use super::today::prove_list;
use super::{CPU, LOGITS_F16, REFERENCE, WGPU, adapters, cpus, golden, read_json};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::model::{Model, ModelSpec};
use folio::plan::KvFormat;
use folio::platform::block_on;
use serde_json::json;

/// Golden folders, and maximum |Δ logit| with f16 keys and values.
pub(super) const NEWER: [(&str, f32); 27] = [
    ("mixtral", LOGITS_F16),
    ("olmoe", LOGITS_F16),
    ("mellum", LOGITS_F16),
    ("granitemoeshared", LOGITS_F16),
    ("glm", LOGITS_F16),
    ("solar_open", LOGITS_F16),
    ("hy_v3", LOGITS_F16),
    ("exaone", LOGITS_F16),
    ("exaone_moe", LOGITS_F16),
    ("hunyuan_v1_moe", LOGITS_F16),
    ("qwen3_vl", LOGITS_F16),
    ("qwen3_vl_moe", LOGITS_F16),
    ("qwen2_5_vl", LOGITS_F16),
    ("minimax_m2", LOGITS_F16),
    ("phi", LOGITS_F16),
    ("cohere", LOGITS_F16),
    ("afmoe", LOGITS_F16),
    ("minicpm3", LOGITS_F16),
    ("muse_glimmer", LOGITS_F16),
    ("cohere2_moe", LOGITS_F16),
    ("ernie4_5_moe", LOGITS_F16),
    ("llama4", LOGITS_F16),
    ("laguna", LOGITS_F16),
    ("phimoe", LOGITS_F16),
    ("step3p5", LOGITS_F16),
    ("step3p7", LOGITS_F16),
    ("mistral4", LOGITS_F16),
];

const FORMATS: [KvFormat; 2] = [KvFormat::F32, KvFormat::F16];

#[test]
fn the_reference_reproduces_golden_logits_and_tokens() {
    prove_list(&NEWER, &REFERENCE, &mut ReferenceBackend::new(), &FORMATS);
}

#[test]
fn every_instruction_set_reproduces_golden_logits_and_tokens() {
    cpus().for_each(|mut cpu| prove_list(&NEWER, &CPU, &mut cpu, &FORMATS));
}

#[test]
fn every_adapter_reproduces_golden_logits_and_tokens() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let mut backend =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_list(&NEWER, &WGPU, &mut backend, &FORMATS);
    }
}

/// Families whose golden models are there, but whose layers compute what is not supported.
const REFUSED: [(&str, &str); 1] = [("mimo_v2_flash", "MiMoV2FlashForCausalLM")];

#[test]
fn families_that_are_not_supported_are_refused_by_name() {
    for (family, name) in REFUSED {
        let error = Model::open(&golden(family))
            .err()
            .unwrap_or_else(|| panic!("{family} is refused"))
            .to_string();
        assert!(error.contains(name), "{family}: {error}");
    }
}

#[test]
fn fields_of_newer_families_with_an_impossible_value_are_refused_by_name() {
    let table = [
        ("laguna", "gating", json!("diagonal")),
        ("laguna", "moe_apply_router_weight_on_input", json!(true)),
        ("laguna", "num_attention_heads_per_layer", json!([4, 6])),
        ("laguna", "num_attention_heads_per_layer", json!([4, 0, 8])),
        ("laguna", "sliding_window", json!(null)),
        ("llama4", "attention_chunk_size", json!(0)),
        ("llama4", "attention_chunk_size", json!(null)),
        ("llama4", "moe_layers", json!([1, 99])),
        ("mistral4", "n_group", json!(2)),
        ("phimoe", "router_jitter_noise", json!(-0.1)),
        ("step3p5", "hidden_act", json!("gelu")),
        ("step3p5", "moe_layers_enum", json!("1,x")),
        ("step3p5", "partial_rotary_factors", json!([0.5, 1.0])),
        ("step3p5", "rope_theta", json!([1e4, 1e4, 1e5, 1e4])),
        ("step3p5", "swiglu_limits", json!([0.0, 0.0, 0.0, -1.0])),
        ("step3p5", "swiglu_limits_shared", json!([0.0])),
    ];
    for (family, field, value) in table {
        let mut config = read_json(&golden(family).join("config.json"));
        config[field] = value;
        let error = ModelSpec::from_json("config.json", config.to_string().as_bytes())
            .expect_err(field)
            .to_string();
        assert!(error.contains("config.json"), "{family}: {error}");
        assert!(error.contains(field), "{family}: {error}");
    }
}
