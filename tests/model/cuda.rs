//! The CUDA backend with whole models: its kernels emulated on the host, and on an NVIDIA device if there is one.
//!
//! With f32 activations, it must meet the tolerances of other devices. With bfloat16, its default, the logprobs of the
//! five most likely tokens must stay within [`LOGPROB_BF16`], and the held-out loss within [`LOSS_BF16`].

#[cfg(unix)]
use super::emulator::emulated;
use super::latents::LATENTS;
use super::newer::NEWER;
use super::quantized::{held_out, loss};
use super::states::STATES;
use super::today::TODAY;
use super::{
    Case, Device, FAMILIES, Target, WGPU, WHOLE, compare, golden_cases, open_golden, prove,
    prove_demo,
};
use folio::backend::cuda::{CudaBackend, CudaOptions};
use folio::backend::reference::ReferenceBackend;
use folio::backend::{Backend, Inspect};
use folio::model::Model;
use folio::plan::{KvFormat, Storage};

const CUDA: Target = Target {
    name: "cuda",
    ..WGPU
};
/// Maximum |Δ logprob| of the five most likely tokens with bfloat16 activations.
const LOGPROB_BF16: f32 = 0.1;
/// Maximum relative change of the loss.
const LOSS_BF16: f64 = 0.005;
/// Tokens per prompt chunk on the host, where each thread runs as a fiber.
const HOST_CHUNK: u32 = 19;

/// Tokens that are generated on the host, of the golden 24.
const HOST_TOKENS: usize = 3;

/// An NVIDIA device, or `None` if there is none; then `FOLIO_REQUIRE_CUDA=1` makes the test fail.
fn device(activations: Storage) -> Option<CudaBackend> {
    if let Some(obstacle) = CudaBackend::survey().obstacle {
        let required = std::env::var("FOLIO_REQUIRE_CUDA").is_ok_and(|value| value == "1");
        assert!(!required, "FOLIO_REQUIRE_CUDA=1, but {obstacle}");
        println!("SKIPPED: {obstacle}");
        return None;
    }
    Some(
        CudaBackend::open(&CudaOptions {
            activations,
            ..CudaOptions::default()
        })
        .expect("a listed device opens"),
    )
}

// Every family, in chunks and as a batch whose tokens are fed on the device. A device is emulated by one thread, so
// three tests take as long as the longest of them.

#[cfg(unix)]
#[test]
fn kernels_on_the_host_reproduce_golden_logits_and_tokens() {
    on_the_host(FAMILIES);
}

#[cfg(unix)]
#[test]
fn kernels_on_the_host_reproduce_families_of_today() {
    on_the_host(TODAY);
}

#[cfg(unix)]
#[test]
fn kernels_on_the_host_reproduce_newer_families() {
    on_the_host(NEWER);
}

#[cfg(unix)]
#[test]
fn kernels_on_the_host_reproduce_latents_states_and_longrope() {
    on_the_host(LATENTS.into_iter().chain(STATES));
    if let Some(mut backend) = emulated(Storage::F32, (8, 0)) {
        super::longrope::prove(&CUDA, &mut backend, &[KvFormat::F32], HOST_TOKENS);
    }
}

/// Checks families.
#[cfg(unix)]
fn on_the_host(families: impl IntoIterator<Item = (&'static str, f32)>) {
    let Some(mut backend) = emulated(Storage::F32, (8, 0)) else {
        return;
    };
    for (family, tolerance) in super::selected(families) {
        let mut cases = golden_cases(family);
        cases
            .iter_mut()
            .for_each(|case| case.greedy.truncate(HOST_TOKENS));
        let model = open_golden(family);
        let mut device = Device::new(&mut backend, &model, KvFormat::F16);
        for (case, run) in cases.iter().zip(device.generate(&cases, HOST_CHUNK, true)) {
            let place = format!("{family} on the host, batched {}", case.prompt.len());
            let difference = compare(&place, case, &run, tolerance);
            println!("{place}: logits differ by at most {difference:.1e}");
        }
        super::support::ran("families", family, "safetensors", CUDA.name);
    }
}

/// Bfloat16 activations, with the tensor-core kernels.
#[cfg(unix)]
#[test]
fn bfloat16_on_the_host_keeps_logprobs_and_loss() {
    let Some(mut backend) = emulated(Storage::Bf16, (8, 0)) else {
        return;
    };
    prove_bf16(&mut backend, 1);
}

#[test]
fn an_nvidia_device_reproduces_golden_logits_and_tokens() {
    let Some(mut backend) = device(Storage::F32) else {
        return;
    };
    prove(&CUDA, &mut backend);
    prove_demo(&CUDA, &mut backend);
    drop(backend);
    prove_bf16(
        &mut device(Storage::Bf16).expect("it was there"),
        usize::MAX,
    );
}

/// Checks the most likely tokens for the demo model's golden prompts, and the loss on some held-out conversations.
fn prove_bf16<B: Backend + Inspect>(backend: &mut B, texts: usize) {
    let model = Model::demo();
    let texts: Vec<_> = held_out().into_iter().take(texts).collect();
    let (expected, _) = loss(&mut ReferenceBackend::new(), &model, KvFormat::F16, &texts);
    let (found, tokens) = loss(backend, &model, KvFormat::F16, &texts);
    println!("held-out loss of {tokens} tokens: {found:.4}, on the REFERENCE {expected:.4}");
    assert!(
        (found - expected).abs() <= LOSS_BF16 * expected,
        "{found} is not {expected}"
    );

    // One token is generated, whatever it is.
    let case = |ids: &Vec<u32>| Case {
        prompt: ids[..ids.len().min(60)].to_vec(),
        greedy: vec![0],
        logits: Vec::new(),
    };
    let cases: Vec<Case> = texts.iter().take(4).map(|(ids, _)| case(ids)).collect();
    let mut cpu = ReferenceBackend::new();
    let expected = Device::new(&mut cpu, &model, KvFormat::F16).generate(&cases, WHOLE, false);
    let found = Device::new(backend, &model, KvFormat::F16).generate(&cases, WHOLE, false);
    for (expected, found) in expected.iter().zip(&found) {
        let (expected, found) = (&expected.steps[0].top, &found.steps[0].top);
        for ((id, logprob), (_, other)) in expected.iter().zip(found) {
            let allowed = LOGPROB_BF16 * logprob.abs().max(1.0);
            assert!(
                (logprob - other).abs() <= allowed,
                "token {id}: {other}, not {logprob}"
            );
        }
    }
}
