//! Families of 2026 that share the kernels of those in `main`: golden logits and tokens on every backend.

use super::today::prove_list;
use super::{CPU, LOGITS_F16, REFERENCE, WGPU, adapters, cpus, golden};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::model::Model;
use folio::plan::KvFormat;
use folio::platform::block_on;

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
