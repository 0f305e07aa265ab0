//! Experts in all stored forms: in one tensor or one tensor each, in 16 bits or packed.

use super::{Folder, upload};
use folio::model::Quantization;
use folio::plan::{Storage, WeightFormat};
use serde_json::{Map, Value, json};

/// Number of experts per layer in the golden gpt-oss model.
const COUNT: usize = 4;
/// Matrices of an expert: name, rows, columns.
const EXPERTS: [(&str, usize, usize); 2] = [
    ("experts.gate_up_proj", 192, 64),
    ("experts.down_proj", 64, 96),
];

/// The MXFP4 code of element `index`.
fn code(index: usize) -> usize {
    (index * 7 + index / 64 * 5) % 16
}

/// The biased MXFP4 exponent of a group.
fn biased(group: usize) -> usize {
    120 + group % 9
}

/// gpt-oss stores experts transposed, with the rows of gate and up interleaved.
#[test]
fn experts_in_one_tensor_come_out_row_by_row() {
    let folder = Folder::copy("gpt-oss");
    let (header, data) = folder.tensors();
    let weights = upload(&folder.open().expect("it opens"));
    let stored = |tensor: &str, index: usize| {
        let start = header[tensor]["data_offsets"][0]
            .as_u64()
            .expect("an offset") as usize;
        WeightFormat::Bf16.decode(&data[start..], data.len() / 2, index)
    };
    let (experts, hidden, mlp) = (4, 64, 96);
    let gate_up = &weights["layers.1.expert_gate_up"];
    let bias = &weights["layers.1.expert_gate_up_bias"];
    assert_eq!(
        (gate_up.len(), bias.len()),
        (experts * 2 * mlp * hidden, experts * 2 * mlp)
    );
    for (expert, row) in [(0, 0), (2, 95), (1, 96), (3, 191)] {
        let column = if row < mlp {
            2 * row
        } else {
            2 * (row - mlp) + 1
        };
        let (found, name) = (
            &gate_up[(expert * 2 * mlp + row) * hidden..],
            "model.layers.1.mlp.experts.gate_up_proj",
        );
        for k in [0, 1, 63] {
            assert_eq!(
                found[k],
                stored(name, (expert * hidden + k) * 2 * mlp + column),
                "{expert}, {row}, {k}"
            );
        }
        assert_eq!(
            bias[expert * 2 * mlp + row],
            stored(&format!("{name}_bias"), expert * 2 * mlp + column)
        );
    }
    let down = &weights["layers.0.expert_down"];
    let name = "model.layers.0.mlp.experts.down_proj";
    assert_eq!(
        down[(3 * hidden + 5) * mlp + 7],
        stored(name, (3 * mlp + 7) * hidden + 5)
    );
}

/// In MXFP4, its experts are not transposed, but the rows of gate and up are still interleaved.
#[test]
fn experts_in_mxfp4_come_out_row_by_row() {
    let folder = Folder::copy("gpt-oss");
    let (old, old_data) = folder.tensors();
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut add = |name: String, dtype: &Value, shape: Value, bytes: &[u8]| {
        let start = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name,
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    };
    for (name, info) in old.iter().filter(|(name, _)| *name != "__metadata__") {
        let offset =
            |index: usize| info["data_offsets"][index].as_u64().expect("an offset") as usize;
        let Some((_, rows, columns)) = EXPERTS
            .into_iter()
            .find(|(tensor, ..)| name.ends_with(tensor))
        else {
            add(
                name.clone(),
                &info["dtype"],
                info["shape"].clone(),
                &old_data[offset(0)..offset(1)],
            );
            continue;
        };
        let count = COUNT * rows * columns;
        let blocks: Vec<u8> = (0..count / 2)
            .map(|pair| (code(2 * pair) | code(2 * pair + 1) << 4) as u8)
            .collect();
        let scales: Vec<u8> = (0..count / 32).map(|group| biased(group) as u8).collect();
        add(
            format!("{name}_blocks"),
            &json!("U8"),
            json!([COUNT, rows, columns / 32, 16]),
            &blocks,
        );
        add(
            format!("{name}_scales"),
            &json!("U8"),
            json!([COUNT, rows, columns / 32]),
            &scales,
        );
    }
    folder.write_tensors("model.safetensors", &header, &data);
    folder.edit(
        "config.json",
        &json!({"quantization_config": {"quant_method": "mxfp4"}}),
    );
    let model = folder.open().expect("it opens");
    let (weights, hidden, mlp) = (upload(&model), 64, 96);
    let levels = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let stored = |row: usize, columns: usize, k: usize| {
        let (index, sign) = (
            row * columns + k,
            if code(row * columns + k) < 8 {
                1.0
            } else {
                -1.0
            },
        );
        sign * levels[code(index) % 8] * 2_f32.powi(biased(index / 32) as i32 - 127)
    };
    for (expert, row) in [(0, 0), (2, 95), (1, 96), (3, 191)] {
        let from = if row < mlp {
            2 * row
        } else {
            2 * (row - mlp) + 1
        };
        let found = &weights["layers.1.expert_gate_up"][(expert * 2 * mlp + row) * hidden..];
        for (k, found) in found[..hidden].iter().enumerate() {
            assert_eq!(
                *found,
                stored(expert * 2 * mlp + from, hidden, k),
                "{expert}, {row}, {k}"
            );
        }
        let row = row % hidden;
        let found = &weights["layers.0.expert_down"][(expert * hidden + row) * mlp..];
        for (k, found) in found[..mlp].iter().enumerate() {
            assert_eq!(
                *found,
                stored(expert * hidden + row, mlp, k),
                "{expert}, {row}, {k}"
            );
        }
    }
    let plan = model.record(Storage::F32);
    let weight = plan
        .weights
        .iter()
        .find(|weight| weight.name == "layers.1.expert_gate_up")
        .expect("it is there");
    assert_eq!(
        (weight.experts, weight.format_of(5)),
        (4, WeightFormat::Mxfp4),
        "it stays packed"
    );
}

/// Experts with separate matrices are quantized on load, close to the stored values. Routers are not quantized.
#[test]
fn experts_are_quantised_on_load_and_routers_are_not() {
    for name in ["qwen3-moe", "gpt-oss"] {
        let stored = upload(&Folder::copy(name).open().expect("it opens"));
        let model = Folder::copy(name)
            .open()
            .expect("it opens")
            .quantized(Quantization::Q8)
            .expect("it is quantized");
        let plan = model.record(Storage::F32);
        let quantised = upload(&model);
        for weight in &plan.weights {
            let (found, stored) = (&quantised[&weight.name], &stored[&weight.name]);
            let is_quantised = weight.format_of(0) == WeightFormat::Q8;
            let is_router = weight.name.ends_with("router");
            let lies_by_columns = name == "gpt-oss" && weight.name.contains("expert_");
            assert_eq!(
                is_quantised,
                weight.rows > 1 && !is_router && !lies_by_columns,
                "{name}: {}",
                weight.name
            );
            let largest = stored
                .iter()
                .fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let allowed = if is_quantised {
                0.6 * largest / 127.0
            } else {
                0.0
            };
            let pairs = found.iter().zip(stored);
            let worst = pairs
                .map(|(found, stored)| (found - stored).abs())
                .fold(0.0, f32::max);
            assert!(
                worst <= allowed,
                "{name}: {} moves by {worst}, not by {allowed} at most",
                weight.name
            );
        }
    }
}
