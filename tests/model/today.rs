//! Families that share the kernels of those in `main`, with options of their own: golden logits and tokens on every
//! backend, in one KV format each, and mistakes that a decoder of these families could make, planted in the reference.

use super::{
    CHUNK, CPU, Device, LOGITS_F16, REFERENCE, Target, WGPU, WHOLE, adapters, compare, cpus, golden, golden_cases,
    largest_difference, support,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::Model;
use folio::plan::{KvFormat, Plan, Rope, Step};
use folio::platform::block_on;

/// Golden folders, and maximum |Δ logit| with f16 keys and values.
pub(super) const TODAY: [(&str, f32); 9] = [
    ("olmo3", LOGITS_F16),
    ("exaone4", LOGITS_F16),
    ("exaone4-full", LOGITS_F16),
    ("seed_oss", LOGITS_F16),
    ("ernie4_5", LOGITS_F16),
    ("glm4", LOGITS_F16),
    ("gemma", LOGITS_F16),
    ("granitemoe", LOGITS_F16),
    ("granite4-dense", LOGITS_F16),
];

#[test]
fn the_reference_reproduces_golden_logits_and_tokens() {
    prove(&REFERENCE, &mut ReferenceBackend::new(), &[KvFormat::F32, KvFormat::F16]);
}

#[test]
fn every_instruction_set_reproduces_golden_logits_and_tokens() {
    cpus().for_each(|mut cpu| prove(&CPU, &mut cpu, &[KvFormat::F32]));
}

#[test]
fn every_adapter_reproduces_golden_logits_and_tokens() {
    for adapter in adapters() {
        let options = WgpuOptions { adapter: Some(adapter), ..WgpuOptions::default() };
        let mut backend = block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove(&WGPU, &mut backend, &[KvFormat::F32]);
    }
}

/// All cases as one batch in chunks, whose tokens are fed on the device; on a device that promises the same bits, also
/// each case alone.
pub(super) fn prove<B: Backend + Inspect>(target: &Target, backend: &mut B, formats: &[KvFormat]) {
    for (family, logits_f16) in TODAY {
        let cases = golden_cases(family);
        let model = Model::open(&golden(family)).expect("the golden model loads");
        for &format in formats {
            let tolerance = if format == KvFormat::F32 { target.logits_f32 } else { logits_f16 };
            let mut device = Device::new(backend, &model, format);
            let mut worst = 0.0_f32;
            for (case, run) in cases.iter().zip(device.generate(&cases, CHUNK, true)) {
                let place = format!("{family} on {}, {format:?}, prompt of {}", target.name, case.prompt.len());
                worst = worst.max(compare(&place, case, &run, tolerance));
                if target.bit_exact {
                    let alone = device.generate(std::slice::from_ref(case), WHOLE, false).remove(0);
                    assert!(alone == run, "{place}: a batch is its members, bit for bit");
                }
            }
            println!("{family} on {}, {format:?}: logits differ by at most {worst:.1e}", target.name);
        }
        support::ran("families", family, "safetensors", target.name);
    }
}

/// Changes the rotations of a plan.
fn ropes(plan: &mut Plan, mut change: impl FnMut(usize, &mut Option<Rope>)) {
    let stores = plan.body.iter_mut().filter_map(|step| match step {
        Step::RopeStoreKv(step) => Some(&mut step.rope),
        _ => None,
    });
    stores.enumerate().for_each(|(layer, rope)| change(layer, rope));
}

fn rotates_halves(plan: &mut Plan) {
    ropes(plan, |_, rope| rope.iter_mut().for_each(|rope| rope.interleaved = false));
}

#[test]
fn planted_mistakes_show_in_the_logits() {
    type Mistake = fn(&mut Plan);
    let table: &[(&str, &str, Mistake)] = &[
        ("ernie4_5", "halves rotate instead of pairs", rotates_halves),
        ("glm4", "halves rotate instead of pairs", rotates_halves),
        ("exaone4", "the layer without a window rotates", |plan| {
            let mut first = None;
            ropes(plan, |_, rope| {
                first = first.or(*rope);
                *rope = first;
            });
        }),
        ("olmo3", "YaRN in layers with a window", |plan| {
            let mut scaled = None;
            ropes(plan, |layer, rope| scaled = if layer == 3 { *rope } else { scaled });
            ropes(plan, |_, rope| *rope = scaled);
        }),
    ];
    for (family, what, mistake) in table {
        let model = Model::open(&golden(family)).expect("the golden model loads");
        let case = golden_cases(family).pop().expect("the longest case");
        let mut plan = model.record(folio::plan::Storage::F32);
        mistake(&mut plan);
        let mut backend = ReferenceBackend::new();
        let mut device = Device::of_plan(&mut backend, &model, plan, KvFormat::F32, super::Sizes::default());
        let run = device.generate(std::slice::from_ref(&case), WHOLE, false).remove(0);
        let difference = largest_difference(&case.logits, &run.logits[0]);
        println!("{family}, {what}: logits differ by {difference:.2}");
        assert!(difference > 20.0 * REFERENCE.logits_f32, "{family}, {what}: only {difference}");
    }
}
