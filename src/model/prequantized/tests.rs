//! Tests of prequantized.

use super::*;
use crate::platform::block_on;
use half::{bf16, f16};
use serde_json::{Value, json};

#[derive(Default)]
struct Memory {
    infos: BTreeMap<String, TensorInfo>,
    data: BTreeMap<String, Bytes>,
}

impl Memory {
    fn add(&mut self, name: &str, shape: &[usize], element: &str, data: Vec<u8>) {
        let element = match element {
            "F16" => Element::Float(WeightFormat::F16),
            "F32" => Element::Float(WeightFormat::F32),
            "BF16" => Element::Float(WeightFormat::Bf16),
            other => Element::Other(other.into()),
        };
        let shape = shape.iter().map(|size| *size as u64).collect();
        self.infos.insert(
            name.into(),
            TensorInfo {
                file: "m".into(),
                shape,
                element,
            },
        );
        self.data.insert(name.into(), data.into());
    }
}

impl TensorSource for Memory {
    fn name(&self) -> &str {
        "m"
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.infos
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let part = self.data[tensor].slice(bytes.start as usize..bytes.end as usize);
        Box::pin(std::future::ready(Ok(part)))
    }
}

fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let step = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(step).take(count).collect()
}

fn halves(count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|i| f16::from_f32(0.01 + (i * 7 % 31) as f32 / 100.0).to_le_bytes())
        .collect()
}

fn half(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(*bytes[4 * index..].first_chunk().expect("a word"))
}

/// A checkpoint whose config has this quantization.
fn opened(files: Memory, quantization: &Value) -> Result<Prequantized, LoadError> {
    let config = json!({"quantization_config": quantization}).to_string();
    let method = config::method("config.json", config.as_bytes())?.expect("it is quantized");
    block_on(Prequantized::new(Box::new(files), &method))
}

fn refusal(files: Memory, quantization: &Value) -> String {
    let refused = opened(files, quantization).err();
    refused.expect("refused").to_string()
}

/// Compares every weight of `tensor` with `expected(row, column)`, read in two pieces.
fn compare(
    source: &Prequantized,
    tensor: &str,
    allowed: f32,
    expected: impl Fn(usize, usize) -> f32,
) {
    let info = &source.tensors()[tensor];
    let Element::Float(format) = info.element else {
        panic!("{tensor} can be read")
    };
    let columns = *info.shape.last().expect("a matrix") as usize;
    let rows = info.shape.iter().product::<u64>() as usize / columns;
    let row_bytes = format.row_bytes(columns as u32) as usize;
    let half = rows / 2;
    for part in [0..half, half..rows] {
        let range = (part.start * row_bytes) as u64..(part.end * row_bytes) as u64;
        let bytes = block_on(source.read(tensor, range)).expect("it is read");
        for (row, bytes) in part.zip(bytes.chunks_exact(row_bytes)) {
            for column in 0..columns {
                let (found, expected) =
                    (format.decode(bytes, columns, column), expected(row, column));
                assert!(
                    (found - expected).abs() <= allowed,
                    "{tensor}[{row}][{column}]: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn gptq_is_scale_times_code_less_zero() {
    let (rows, columns) = (24, 128);
    for (group, act_order, zero_offset) in [
        (32, false, 1),
        (64, false, 0),
        (128, false, 1),
        (32, true, 1),
    ] {
        let groups = columns / group;
        let mut files = Memory::default();
        let codes = noise(columns / 8 * rows * 4, 1);
        let (scales, zeros) = (halves(groups * rows), noise(groups * rows / 8 * 4, 2));
        let of_column = |column: usize| {
            if act_order {
                column * 5 % groups
            } else {
                column / group
            }
        };
        let g_idx = (0..columns)
            .flat_map(|column| (of_column(column) as u32).to_le_bytes())
            .collect();
        files.add("a.qweight", &[columns / 8, rows], "I32", codes.clone());
        files.add("a.scales", &[groups, rows], "F16", scales.clone());
        files.add("a.qzeros", &[groups, rows / 8], "I32", zeros.clone());
        files.add("a.g_idx", &[columns], "I32", g_idx);
        let version = ["gptq_v2", "gptq"][usize::from(zero_offset == 1)];
        let config = json!({
            "quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": act_order,
            "checkpoint_format": version,
        });
        let source = opened(files, &config).expect("it opens");
        let value = |row: usize, column: usize| {
            let at = of_column(column);
            let code = word(&codes, column / 8 * rows + row) >> (4 * (column % 8)) & 15;
            let zero = (word(&zeros, at * rows / 8 + row / 8) >> (4 * (row % 8)) & 15) as i16
                + zero_offset;
            half(&scales, at * rows + row) * (code as f32 - f32::from(zero))
        };
        // Where columns change groups: half a step of 1/127 of the largest possible weight.
        let allowed = if act_order {
            0.51 * 16.0 * 0.32 / 127.0
        } else {
            0.0
        };
        compare(&source, "a.weight", allowed, value);
    }
}

#[test]
fn awq_packs_outputs_in_its_own_order() {
    let (rows, columns, group) = (16, 96, 32);
    let mut files = Memory::default();
    let codes = noise(columns * rows / 8 * 4, 3);
    let (scales, zeros) = (
        halves(columns / group * rows),
        noise(columns / group * rows / 8 * 4, 4),
    );
    files.add("a.qweight", &[columns, rows / 8], "I32", codes.clone());
    files.add("a.scales", &[columns / group, rows], "F16", scales.clone());
    files.add(
        "a.qzeros",
        &[columns / group, rows / 8],
        "I32",
        zeros.clone(),
    );
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": group});
    let source = opened(files, &config).expect("it opens");
    // Nibble i of a word is output [0, 2, 4, 6, 1, 3, 5, 7][i] of its eight.
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    compare(&source, "a.weight", 0.0, |row, column| {
        let place = order
            .iter()
            .position(|output| *output == row % 8)
            .expect("one of eight");
        let code = word(&codes, column * rows / 8 + row / 8) >> (4 * place) & 15;
        let zero = word(&zeros, column / group * rows / 8 + row / 8) >> (4 * place) & 15;
        half(&scales, column / group * rows + row) * (code as f32 - zero as f32)
    });
}

#[test]
fn fp8_scales_are_of_a_tensor_a_row_or_a_block() {
    let (rows, columns) = (130, 264);
    let codes: Vec<u8> = noise(rows * columns, 5)
        .into_iter()
        .map(|code| code & 0xfe)
        .collect();
    let scale = |index: usize| 0.5 + index as f32 / 8.0;
    type At = fn(usize, usize) -> usize;
    let table: [(&str, &[usize], At); 4] = [
        ("_scale", &[], |_, _| 0),
        ("_scale", &[1], |_, _| 0),
        ("_scale", &[130, 1], |row, _| row),
        ("_scale_inv", &[2, 3], |row, column| {
            row / 128 * 3 + column / 128
        }),
    ];
    for (suffix, shape, at) in table {
        for element in ["F32", "BF16"] {
            let count = shape.iter().product::<usize>();
            let bytes = |index| match element {
                "F32" => scale(index).to_le_bytes().to_vec(),
                _ => bf16::from_f32(scale(index)).to_le_bytes().to_vec(),
            };
            let mut files = Memory::default();
            files.add("a.weight", &[rows, columns], "F8_E4M3", codes.clone());
            files.add(
                &format!("a.weight{suffix}"),
                shape,
                element,
                (0..count).flat_map(bytes).collect(),
            );
            let source = opened(files, &json!({"quant_method": "fp8"})).expect("it opens");
            compare(&source, "a.weight", 0.0, |row, column| {
                let scale = scale(at(row, column));
                let scale = if element == "F32" {
                    scale
                } else {
                    bf16::from_f32(scale).to_f32()
                };
                scale * crate::plan::format::decode_e4m3(codes[row * columns + column])
            });
        }
    }
}

#[test]
fn mxfp4_pairs_neighbours() {
    let (experts, rows, groups) = (2, 6, 3);
    let mut files = Memory::default();
    let codes = noise(experts * rows * groups * 16, 6);
    let scales: Vec<u8> = (0..experts * rows * groups)
        .map(|i| 120 + (i % 9) as u8)
        .collect();
    files.add(
        "e.gate_up_proj_blocks",
        &[experts, rows, groups, 16],
        "U8",
        codes.clone(),
    );
    files.add(
        "e.gate_up_proj_scales",
        &[experts, rows, groups],
        "U8",
        scales.clone(),
    );
    let source = opened(files, &json!({"quant_method": "mxfp4"})).expect("it opens");
    assert_eq!(source.tensors()["e.gate_up_proj"].shape, [2, 6, 96]);
    let levels = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    compare(&source, "e.gate_up_proj", 0.0, |row, column| {
        let code = codes[(row * groups * 32 + column) / 2] >> (4 * (column % 2)) & 15;
        let sign = if code < 8 { 1.0 } else { -1.0 };
        sign * levels[usize::from(code & 7)]
            * 2f32.powi(i32::from(scales[row * groups + column / 32]) - 127)
    });
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let check = |scales: &[usize], expected: &str| {
        let mut files = Memory::default();
        files.add("a.qweight", &[8, 16], "I32", vec![0; 512]);
        files.add("a.qzeros", &[2, 2], "I32", vec![0; 16]);
        if !scales.is_empty() {
            files.add(
                "a.scales",
                scales,
                "F16",
                vec![0; 2 * scales.iter().product::<usize>()],
            );
        }
        let config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
        let message = refusal(files, &config);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    };
    check(&[], "\"a.scales\" is missing");
    check(&[1, 16], "\"a.scales\" has shape [1, 16]");
}

/// A matrix of MLX with columns of 4 bits in groups of 32.
fn mlx(scale: f32, stored: &str) -> Memory {
    let mut files = Memory::default();
    files.add("a.weight", &[8, 8], "U32", noise(256, 7));
    let scales = |value: f32| match stored {
        "F32" => value.to_le_bytes().repeat(16),
        _ => bf16::from_f32(value).to_le_bytes().repeat(16),
    };
    files.add("a.scales", &[8, 2], stored, scales(scale));
    files.add("a.biases", &[8, 2], stored, scales(-1.0));
    files
}

const MLX: fn() -> Value = || json!({"group_size": 32, "bits": 4});

#[test]
fn scales_keep_their_numbers_or_are_widened_or_refused() {
    let format = |stored: &str| {
        let source = opened(mlx(0.5, stored), &MLX()).expect("it opens");
        source.tensors()["a.weight"].element.clone()
    };
    assert_eq!(format("BF16"), Element::Float(WeightFormat::Q4));
    // A half does not hold any f32.
    assert_eq!(format("F32"), Element::Float(WeightFormat::F32));
    for (scale, expected) in [
        (f32::NAN, "not finite"),
        (f32::INFINITY, "not finite"),
        (1e6, "a half cannot hold"),
    ] {
        let source = opened(mlx(scale, "BF16"), &MLX()).expect("it opens");
        let bytes = 8 * WeightFormat::Q4.row_bytes(64);
        let message = block_on(source.read("a.weight", 0..bytes))
            .expect_err("refused")
            .to_string();
        assert!(
            message.contains("a.weight") && message.contains(expected),
            "{message}"
        );
    }
}

#[test]
fn experts_of_mlx_become_matrices_of_their_own() {
    let mut files = Memory::default();
    let codes = noise(3 * 8 * 8 * 4, 9);
    let half_of = |index: usize| f16::from_f32(0.25 + index as f32 / 64.0);
    let scales: Vec<u8> = (0..48)
        .flat_map(|index| half_of(index).to_le_bytes())
        .collect();
    files.add(
        "m.switch_mlp.up_proj.weight",
        &[3, 8, 8],
        "U32",
        codes.clone(),
    );
    files.add(
        "m.switch_mlp.up_proj.scales",
        &[3, 8, 2],
        "F16",
        scales.clone(),
    );
    files.add(
        "m.switch_mlp.up_proj.biases",
        &[3, 8, 2],
        "F16",
        scales.clone(),
    );
    let source = opened(files, &MLX()).expect("it opens");
    for expert in 0..3 {
        let name = format!("m.experts.{expert}.up_proj.weight");
        compare(&source, &name, 0.0, |row, column| {
            let row = 8 * expert + row;
            let code = word(&codes, row * 8 + column / 8) >> (4 * (column % 8)) & 15;
            let scale = half(&scales, 2 * row + column / 32);
            scale * code as f32 + scale
        });
    }
}

#[test]
fn what_is_not_read_is_named() {
    for (config, expected) in [
        (json!({"quant_method": "hqq"}), "hqq"),
        (json!({"quant_method": "exl3"}), "exl3"),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "marlin"}),
            "marlin",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 100}),
            "group_size",
        ),
        (
            json!({"quant_method": "gptq", "bits": 9, "group_size": 128}),
            "bits",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}),
            "marlin",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24"}),
            "marlin-24",
        ),
        (
            json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}),
            "sparse-24",
        ),
        (
            json!({"quant_method": "compressed-tensors", "transform_config": {"r1": {}}}),
            "rotations",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}),
            "W4A16_AWQ",
        ),
        (
            json!({"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:x"}),
            "auto_round:x",
        ),
    ] {
        let message = refusal(Memory::default(), &config);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}

/// A state of bitsandbytes whose sizes no matrix has costs no memory.
#[test]
fn hostile_states_of_bitsandbytes_are_refused() {
    for (state, expected) in [
        (
            r#"{"blocksize": 64, "shape": [4294967295, 4294967295]}"#,
            "shape",
        ),
        (r#"{"blocksize": 0, "shape": [8, 64]}"#, "block size"),
        (r#"{"blocksize": 64, "shape": [8, 64, 1]}"#, "two sizes"),
        (r#"{"blocksize": 64, "shape": [8, 65]}"#, "has 256 bytes"),
        (
            r#"{"blocksize": 64, "shape": [8, 64], "nested_blocksize": 0}"#,
            "nested",
        ),
        ("not JSON", "is not its JSON"),
    ] {
        let mut files = Memory::default();
        files.add("a.weight", &[256, 1], "U8", noise(256, 3));
        files.add("a.weight.absmax", &[8], "F32", vec![0; 32]);
        let map = crate::plan::format::NF4_LEVELS
            .map(f32::to_le_bytes)
            .concat();
        files.add("a.weight.quant_map", &[16], "F32", map);
        let name = "a.weight.quant_state.bitsandbytes__nf4";
        files.add(name, &[state.len()], "U8", state.into());
        let message = refusal(files, &json!({"quant_method": "bitsandbytes"}));
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}
