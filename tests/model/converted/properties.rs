//! Properties that a file has by its architecture alone.

use super::*;

/// Some properties are given only by the architecture's name, not by a key, so a wrong name gives another model.
#[test]
fn what_a_file_says_is_heard() {
    type Change = fn(&mut Builder);
    let table: [(&str, Change); 28] = [
        ("mistral-window", |file| {
            file.set("llama.attention.sliding_window", Item::U32(25));
        }),
        ("mistral-window", |file| {
            file.pairs
                .retain(|(key, _)| key != "llama.attention.sliding_window");
        }),
        ("llama3-rope", |file| {
            file.tensors
                .retain(|tensor| tensor.name != "rope_freqs.weight");
        }),
        ("gemma2", |file| {
            file.set("gemma2.attention.sliding_window_pattern", Item::U32(4));
        }),
        ("gemma2", |file| {
            file.set("gemma2.final_logit_softcapping", Item::F32(14.0));
        }),
        ("gemma3", |file| {
            file.set("gemma3.rope.freq_base_swa", Item::F32(11_000.0));
        }),
        ("granite", |file| {
            file.set("granite.residual_scale", Item::F32(0.25));
        }),
        ("smollm3", |file| {
            file.pairs
                .retain(|(key, _)| key != "smollm3.attention.rope_pattern");
        }),
        ("gpt-oss", |file| {
            file.set("gpt-oss.rope.scaling.factor", Item::F32(16.0));
        }),
        ("olmo3", |file| {
            file.pairs
                .retain(|(key, _)| key != "olmo2.attention.sliding_window");
        }),
        ("granite4-dense", |file| {
            file.set("granite.rope.scaling.finetuned", Item::Boolean(false));
        }),
        ("ministral3", |file| {
            file.set("mistral3.attention.temperature_scale", Item::F32(0.2));
        }),
        ("hunyuan_v1_dense", |file| {
            file.set("hunyuan-dense.rope.freq_base", Item::F32(10_000.0));
        }),
        ("glm4_moe", |file| {
            file.set("glm4moe.expert_weights_scale", Item::F32(1.5));
        }),
        ("glm4_moe", |file| {
            file.set("glm4moe.expert_weights_norm", Item::Boolean(false));
        }),
        ("deepseek_v3", |file| {
            file.set("deepseek2.rope.scaling.yarn_log_multiplier", Item::F32(0.2));
        }),
        ("deepseek_v3", |file| {
            file.set("deepseek2.expert_group_used_count", Item::U32(4));
        }),
        ("glm4_moe_lite", |file| {
            file.set("deepseek2.expert_weights_scale", Item::F32(1.5));
        }),
        ("qwen2_moe", |file| {
            file.set("qwen2moe.expert_weights_norm", Item::Boolean(true));
        }),
        ("cohere2", |file| {
            file.set("cohere2.logit_scale", Item::F32(0.3));
        }),
        ("granite4-h-dense", |file| {
            file.set("granitehybrid.rope.scaling.finetuned", Item::Boolean(true));
        }),
        ("granite4-h-moe", |file| {
            file.set("granitehybrid.residual_scale", Item::F32(0.25));
        }),
        ("nemotron_h-moe", |file| {
            file.set("nemotron_h_moe.expert_weights_scale", Item::F32(1.5));
        }),
        ("qwen3_5", |file| {
            file.set("qwen35.rope.dimension_count", Item::U32(16));
        }),
        ("apertus", |file| {
            file.set("xielu.alpha_p", Item::F32s(vec![2.0, 2.0]));
        }),
        ("gemma4-e", |file| {
            file.tensors
                .retain(|tensor| tensor.name != "rope_freqs.weight");
        }),
        ("gemma4-e", |file| {
            file.set("gemma4.rope.freq_base_swa", Item::F32(11_000.0));
        }),
        ("gemma4-dense", |file| {
            file.set("gemma4.final_logit_softcapping", Item::F32(14.0));
        }),
    ];
    let mut backend = ReferenceBackend::new();
    for (index, (family, change)) in table.into_iter().enumerate() {
        let mut file = Checkpoint::read(family).convert(F32);
        change(&mut file);
        file.pack();
        let case = golden_cases(family).remove(3);
        let one = Case {
            greedy: vec![0],
            ..case
        };
        let mut device = Device::new(&mut backend, &open(&file), KvFormat::F32);
        let found = device
            .generate(std::slice::from_ref(&one), WHOLE, false)
            .remove(0)
            .logits
            .remove(0);
        let difference = largest_difference(&one.logits, &found);
        assert!(
            difference > 2.0 * REFERENCE.logits_f32,
            "change {index}, of {family}: only {difference}"
        );
    }
}

/// Codes and scales of MXFP4 have their published meaning: experts in MXFP4 give the same results as the same numbers
/// in f32.
#[test]
fn experts_in_mxfp4_are_the_numbers_they_stand_for() {
    let (plain, packed) = mxfp4_experts();
    let mut backend = ReferenceBackend::new();
    let (expected, found) = (logits(&plain, &mut backend), logits(&packed, &mut backend));
    let difference = largest_difference(&expected, &found);
    assert!(difference <= 1e-4, "logits differ by {difference}");
    let golden = &golden_cases("gpt-oss")[2].logits;
    assert!(
        largest_difference(golden, &found) > 0.1,
        "the experts are others than the golden ones"
    );
}
