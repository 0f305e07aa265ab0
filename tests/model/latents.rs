//! Latent attention (MLA): golden logits and tokens on every backend, files of both kinds, mistakes planted in the
//! reference, and what is kept of a token.

use super::converted::{Checkpoint, F32, open};
use super::today::{Mistake, prove_list, routers, show};
use super::{
    CPU, Device, LOGITS_F16, REFERENCE, WGPU, WHOLE, adapters, compare, cpus, golden, golden_cases,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::model::{Model, ModelSpec};
use folio::plan::{AttendPaged, KvFormat, Plan, RopeStoreLatent, Step, Storage};
use folio::platform::block_on;

/// Golden folders, and maximum |Δ logit| with f16 keys and values.
pub(super) const LATENTS: [(&str, f32); 3] =
    [("deepseek_v2", LOGITS_F16), ("deepseek_v3", LOGITS_F16), ("glm4_moe_lite", LOGITS_F16)];

#[test]
fn the_reference_reproduces_golden_logits_and_tokens() {
    prove_list(&LATENTS, &REFERENCE, &mut ReferenceBackend::new(), &[KvFormat::F32, KvFormat::F16]);
}

#[test]
fn every_instruction_set_reproduces_golden_logits_and_tokens() {
    cpus().for_each(|mut cpu| prove_list(&LATENTS, &CPU, &mut cpu, &[KvFormat::F32, KvFormat::F16]));
}

#[test]
fn every_adapter_reproduces_golden_logits_and_tokens() {
    for adapter in adapters() {
        let options = WgpuOptions { adapter: Some(adapter), ..WgpuOptions::default() };
        let mut backend = block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_list(&LATENTS, &WGPU, &mut backend, &[KvFormat::F32, KvFormat::F16]);
    }
}

/// Files whose product for keys and values is one tensor, as those of older converters, and files where it is two.
#[test]
fn files_of_both_kinds_are_the_golden_model() {
    let mut backend = ReferenceBackend::new();
    for (family, _) in LATENTS {
        let files = [Checkpoint::read(family).convert(F32), Checkpoint::read(family).convert_older()];
        for (kind, file) in ["newer", "older"].into_iter().zip(files) {
            let case = golden_cases(family).remove(2);
            let mut device = Device::new(&mut backend, &open(&file), KvFormat::F32);
            let run = device.generate(std::slice::from_ref(&case), WHOLE, false).remove(0);
            compare(&format!("{family} in a {kind} file"), &case, &run, REFERENCE.logits_f32);
        }
    }
}

/// One latent and what is rotated, once for all heads and without values.
#[test]
fn a_token_takes_one_row_per_layer() {
    let plan = Model::open(&golden("deepseek_v3")).expect("the golden model loads").record(Storage::F32);
    assert_eq!(plan.block_bytes(0, 16, KvFormat::F16), 3 * 16 * 40 * 2);
    let spec = ModelSpec::named("deepseek-v3").expect("a known shape");
    let plan = Model::random(spec, 0).record(Storage::F32);
    for (format, bytes) in [(KvFormat::F32, 4 * 576), (KvFormat::F16, 2 * 576), (KvFormat::Q8, 576 + 4)] {
        assert_eq!(plan.token_kv_bytes(1, format), 61 * bytes, "{format}");
    }
}

fn stores(plan: &mut Plan, change: impl Fn(&mut RopeStoreLatent)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::RopeStoreLatent(step) = step {
            change(step);
        }
    });
}

fn attends(plan: &mut Plan, change: impl Fn(&mut AttendPaged)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::AttendPaged(step) = step {
            change(step);
        }
    });
}

/// Families, what is wrong with their plans, and the change that makes it so.
const MISTAKES: &[(&str, &str, Mistake)] = &[
    ("deepseek_v2", "halves rotate instead of pairs", |plan| stores(plan, |step| step.rope.interleaved = false)),
    ("glm4_moe_lite", "halves rotate instead of pairs", |plan| stores(plan, |step| step.rope.interleaved = false)),
    ("deepseek_v2", "scores without YaRN's factor", |plan| attends(plan, |step| step.scale = 24_f32.sqrt().recip())),
    ("deepseek_v3", "scores without YaRN's factor", |plan| attends(plan, |step| step.scale = 24_f32.sqrt().recip())),
    ("glm4_moe_lite", "scores for the size of a latent", |plan| {
        attends(plan, |step| step.scale = 40_f32.sqrt().recip());
    }),
    ("deepseek_v3", "cosines times YaRN's factor", |plan| stores(plan, |step| step.rope.scale = 1.37)),
    ("deepseek_v3", "experts of all groups", |plan| routers(plan, |routing| routing.groups = None)),
    ("glm4_moe_lite", "experts are chosen without the bias", |plan| routers(plan, |routing| routing.bias = None)),
    ("deepseek_v2", "weights are normalized", |plan| routers(plan, |routing| routing.renormalize = true)),
];

#[test]
fn planted_mistakes_show_in_the_logits() {
    show(MISTAKES);
}
