//! Experts between two projections, which Nemotron-H may have. No golden model has them, so they are made from one
//! that has not: a rotation of each row, experts for rotated rows, and the rotation back are the golden model.

use super::converted::{self, Checkpoint, F32, Values};
use super::{CPU, Device, REFERENCE, Target, WGPU, WHOLE, compare, cpus, golden_cases, quantized};
use folio::backend::reference::ReferenceBackend;
use folio::backend::{Backend, Inspect};
use folio::model::Model;
use folio::plan::{KvFormat, Storage};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

const FAMILY: &str = "nemotron_h-moe";
const HIDDEN: usize = 32;
/// Columns between the projections: those of a row, and some that mean nothing.
const LATENT: usize = 40;

/// A reflection: it is its own inverse, and moves every element.
fn reflection(row: usize, column: usize) -> f32 {
    let element = |at: usize| 1.0 + (at % 5) as f32;
    let square: f32 = (0..HIDDEN).map(|at| element(at).powi(2)).sum();
    f32::from(row == column) - 2.0 * element(row) * element(column) / square
}

/// Numbers that would show in every logit.
fn noise(row: usize, column: usize) -> f32 {
    ((row * 7 + column * 3) as f32).sin()
}

/// The matrix of these numbers.
fn matrix(rows: usize, columns: usize, number: impl Fn(usize, usize) -> f32) -> Values {
    let number = &number;
    (
        vec![rows, columns],
        (0..rows)
            .flat_map(|row| (0..columns).map(move |column| number(row, column)))
            .collect(),
    )
}

/// The golden model with projections around its experts.
fn projected() -> Checkpoint {
    let mut checkpoint = Checkpoint::read(FAMILY);
    checkpoint.config["moe_latent_size"] = LATENT.into();
    let names: Vec<String> = checkpoint
        .tensors
        .keys()
        .filter(|name| name.contains(".experts."))
        .cloned()
        .collect();
    for name in &names {
        let (shape, old) = checkpoint.tensors[name].clone();
        let (rows, columns) = (shape[0], shape[1]);
        let changed = if name.ends_with("up_proj.weight") {
            let number = |row: usize, to: usize| {
                (0..columns)
                    .map(|from| old[row * columns + from] * reflection(from, to))
                    .sum::<f32>()
            };
            matrix(rows, LATENT, |row, to| {
                if to < HIDDEN { number(row, to) } else { 0.0 }
            })
        } else {
            let number = |to: usize, column: usize| {
                (0..rows)
                    .map(|from| reflection(to, from) * old[from * columns + column])
                    .sum::<f32>()
            };
            matrix(LATENT, columns, |to, column| {
                if to < HIDDEN { number(to, column) } else { 0.0 }
            })
        };
        checkpoint.tensors.insert(name.clone(), changed);
        let mixer = name
            .split(".experts.")
            .next()
            .expect("a name has a beginning");
        let either = |inside: bool, row, column| {
            if inside {
                reflection(row, column)
            } else {
                noise(row, column)
            }
        };
        let input = matrix(LATENT, HIDDEN, |row, column| {
            either(row < HIDDEN, row, column)
        });
        let output = matrix(HIDDEN, LATENT, |row, column| {
            either(column < HIDDEN, row, column)
        });
        checkpoint
            .tensors
            .insert(format!("{mixer}.fc1_latent_proj.weight"), input);
        checkpoint
            .tensors
            .insert(format!("{mixer}.fc2_latent_proj.weight"), output);
    }
    checkpoint
}

/// The checkpoint in a folder, and its model.
fn opened(checkpoint: &Checkpoint) -> (TempDir, Model) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bytes = |(_, values): &Values| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let stored: Vec<_> = checkpoint
        .tensors
        .iter()
        .map(|(name, values)| (name, &values.0, bytes(values)))
        .collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        (
            *name,
            TensorView::new(Dtype::F32, (*shape).clone(), bytes).expect("a tensor has its bytes"),
        )
    });
    let file = safetensors::serialize(views, None).expect("tensors are written");
    std::fs::write(folder.path().join("model.safetensors"), file).expect("the folder is writable");
    std::fs::write(
        folder.path().join("config.json"),
        checkpoint.config.to_string(),
    )
    .expect("the folder is writable");
    let model = Model::open(folder.path()).expect("the model loads");
    (folder, model)
}

#[test]
fn experts_between_projections_are_the_golden_ones() {
    let checkpoint = projected();
    let (_folder, model) = opened(&checkpoint);
    for model in [model, converted::open(&checkpoint.convert(F32))] {
        let plan = model.record(Storage::F32);
        assert!(
            plan.buffers
                .iter()
                .any(|buffer| buffer.name == "expert_input" && buffer.columns == LATENT as u32)
        );
        prove(&REFERENCE, &mut ReferenceBackend::new(), &model);
        cpus().for_each(|mut cpu| prove(&CPU, &mut cpu, &model));
        quantized::opened_adapters()
            .iter_mut()
            .for_each(|device| prove(&WGPU, device, &model));
    }
}

fn prove<B: Backend + Inspect>(target: &Target, backend: &mut B, model: &Model) {
    let cases = golden_cases(FAMILY);
    let mut device = Device::new(backend, model, KvFormat::F32);
    for (case, run) in cases.iter().zip(device.generate(&cases, WHOLE, true)) {
        compare(
            &format!("experts between projections on {}", target.name),
            case,
            &run,
            target.logits_f32,
        );
    }
}
