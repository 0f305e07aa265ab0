//! Mistakes that are no change of a plan, planted in what the reference is given: in the tensors of a file, or in the
//! weights of a device. Each shows in golden logits.

use super::converted::{self, Checkpoint, F32};
use super::{
    Case, Device, REFERENCE, Sizes, WHOLE, compare, golden_cases, largest_difference, open_golden,
};
use bytes::Bytes;
use folio::backend::Inspect as _;
use folio::backend::reference::ReferenceBackend;
use folio::model::Model;
use folio::plan::{KvFormat, Plan, RouteExperts, Step, Storage, WeightId};
use folio::platform::block_on;
use std::convert::Infallible;

/// Gemma 4's layers whose values are keys, in a file that has the product for values as a tensor of its own. If that
/// is the one for keys, the file is the golden model. If its rows are also multiplied as the norm of keys multiplies
/// them, values are keys after their norm: values have a norm of their own, which undoes the rest of it.
#[test]
fn values_are_keys_before_their_norm() {
    for family in ["gemma4-dense", "gemma4-moe", "gemma4-unified"] {
        for after_norm in [false, true] {
            let mut checkpoint = Checkpoint::read(family);
            assert_eq!(checkpoint.config["attention_k_eq_v"], true, "{family}");
            let layers = checkpoint.config["layer_types"]
                .as_array()
                .expect("a list")
                .clone();
            for (layer, _) in layers
                .iter()
                .enumerate()
                .filter(|(_, kind)| *kind == "full_attention")
            {
                let tensor = |name: &str| format!("model.layers.{layer}.self_attn.{name}.weight");
                let norm = checkpoint.tensors[&tensor("k_norm")].1.clone();
                let (shape, mut rows) = checkpoint.tensors[&tensor("k_proj")].clone();
                if after_norm {
                    for (row, values) in rows.chunks_exact_mut(shape[1]).enumerate() {
                        values
                            .iter_mut()
                            .for_each(|value| *value *= norm[row % norm.len()]);
                    }
                }
                let earlier = checkpoint.tensors.insert(tensor("v_proj"), (shape, rows));
                assert!(
                    earlier.is_none(),
                    "{family}: layer {layer} has no values of its own"
                );
            }
            let model = converted::open(&checkpoint.convert(F32));
            let case = golden_cases(family).pop().expect("the longest case");
            let mut backend = ReferenceBackend::new();
            let mut device = Device::new(&mut backend, &model, KvFormat::F32);
            let run = device
                .generate(std::slice::from_ref(&case), WHOLE, false)
                .remove(0);
            if after_norm {
                let difference = largest_difference(&case.logits, &run.logits[0]);
                println!(
                    "{family}, values are keys after the norm: logits differ by {difference:.2}"
                );
                assert!(
                    difference > 20.0 * REFERENCE.logits_f32,
                    "{family}: only {difference}"
                );
            } else {
                compare(
                    &format!("{family} with values of its own"),
                    &case,
                    &run,
                    REFERENCE.logits_f32,
                );
            }
        }
    }
}

/// Experts that are weighed by their scores with the biases that choose them. For one token, these weights are those
/// of other logits: a bias of the router's product makes them, in the first layer with experts.
#[test]
fn biases_choose_experts_but_do_not_weigh_them() {
    for family in ["glm4_moe", "glm4_moe_lite", "nemotron_h-moe"] {
        let model = open_golden(family);
        let case = Case {
            greedy: vec![0],
            ..golden_cases(family).remove(0)
        };
        let plan = model.record(Storage::F32);
        let (at, router) = first_router(&plan);
        let bias = router.routing.bias.expect("the router has biases");
        let (logits, right) = routes(&model, &plan, at, &case, |_, rows| rows);

        // Scores with biases, and what makes logits whose sigmoids are in proportion to them.
        let biases = vector(&model, &plan, bias);
        let scores = logits
            .iter()
            .zip(biases)
            .map(|(logit, bias)| 1.0 / (1.0 + (-logit).exp()) + bias);
        let inverse = |score: f32| (score / (1.0 - score)).ln();
        let moves = scores
            .zip(&logits)
            .map(|(score, logit)| inverse((score / 4.0).max(1e-9)) - logit);
        let moves: Bytes = moves.flat_map(f32::to_le_bytes).collect();
        let change = |id, rows| if id == bias { moves.clone() } else { rows };
        let mut wrong = plan.clone();
        for step in &mut wrong.body[..=at] {
            match step {
                Step::MatMul(step) if step.out == router.logits => step.bias = Some(bias),
                Step::RouteExperts(step) => step.routing.bias = None,
                _ => {}
            }
        }
        let (_, found) = routes(&model, &wrong, at, &case, change);
        let ids = |routes: &[f32]| routes.iter().step_by(2).copied().collect::<Vec<_>>();
        assert_eq!(ids(&found), ids(&right), "{family}: the same experts");
        assert_ne!(found, right, "{family}: other weights");

        let mut backend = ReferenceBackend::new();
        let sizes = Sizes::default();
        let mut device =
            Device::of_weights(&mut backend, &model, wrong, KvFormat::F32, sizes, change);
        let run = device
            .generate(std::slice::from_ref(&case), WHOLE, false)
            .remove(0);
        let difference = largest_difference(&case.logits, &run.logits[0]);
        println!("{family}, biases weigh experts: logits differ by {difference:.4}");
        assert!(
            difference > REFERENCE.logits_f32,
            "{family}: only {difference}"
        );
    }
}

/// The first router of a plan, and its place.
fn first_router(plan: &Plan) -> (usize, RouteExperts) {
    let router = |step: &Step| {
        if let Step::RouteExperts(step) = step {
            Some(*step)
        } else {
            None
        }
    };
    plan.body
        .iter()
        .enumerate()
        .find_map(|(at, step)| Some((at, router(step)?)))
        .expect("the plan has a router")
}

/// A vector of a model.
fn vector(model: &Model, plan: &Plan, vector: WeightId) -> Vec<f32> {
    let mut values = Vec::new();
    let upload = model.upload(plan, |id, _, rows| -> Result<(), Infallible> {
        if id == vector {
            values = rows
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four")))
                .collect();
        }
        Ok(())
    });
    block_on(upload).expect("the weights are read");
    values
}

/// The logits of the router at a place of a plan, and its routes, for a prompt of one token.
fn routes(
    model: &Model,
    plan: &Plan,
    at: usize,
    case: &Case,
    change: impl Fn(WeightId, Bytes) -> Bytes,
) -> (Vec<f32>, Vec<f32>) {
    let mut plan = plan.clone();
    plan.body.truncate(at + 1);
    let router = first_router(&plan).1;
    let rows = plan.buffer_spec(router.routes).rows.count(1, 0);
    let mut backend = ReferenceBackend::new();
    let mut device = Device::of_weights(
        &mut backend,
        model,
        plan,
        KvFormat::F32,
        Sizes::default(),
        change,
    );
    device.generate(std::slice::from_ref(case), WHOLE, false);
    let mut read =
        |buffer, rows| block_on(device.backend.read_buffer(buffer, rows)).expect("rows are read");
    (read(router.logits, 1), read(router.routes, rows))
}
