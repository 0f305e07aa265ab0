//! Checkpoints with more tensors, or others, than those of `tests/data`.

use serde_json::{Map, Value, json};
use std::path::Path;

/// A tensor of f32: name, shape, elements.
pub(crate) type Tensor<'a> = (&'a str, &'a [usize], Vec<f32>);

/// The bytes of a safetensors file with more tensors; one of a name that is there replaces it.
pub(crate) fn with_tensors(file: &[u8], more: &[Tensor<'_>]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header = serde_json::from_slice(&file[8..8 + length]).expect("the header is JSON");
    let (old, mut header): (Map<String, Value>, _) = (header, Map::new());
    let (data, mut out) = (&file[8 + length..], Vec::new());
    let is_replaced = |name: &String| more.iter().any(|(other, ..)| name == other);
    for (name, tensor) in old {
        if name == "__metadata__" || is_replaced(&name) {
            continue;
        }
        let offset = |index: usize| tensor["data_offsets"][index].as_u64().expect("a number");
        let start = out.len();
        out.extend(&data[offset(0) as usize..offset(1) as usize]);
        let mut tensor = tensor.clone();
        tensor["data_offsets"] = json!([start, out.len()]);
        header.insert(name, tensor);
    }
    for (name, shape, values) in more {
        let start = out.len();
        out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, out.len()]});
        header.insert((*name).to_owned(), entry);
    }
    let header = Value::from(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(out);
    bytes
}

/// Copies a model's files into an empty folder, with these fields of its config and these tensors.
pub(crate) fn changed_model(from: &Path, to: &Path, fields: &Value, more: &[Tensor<'_>]) {
    for entry in std::fs::read_dir(from).expect("it is a folder") {
        let path = entry.expect("an entry is read").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            std::fs::create_dir(&target).expect("a folder is made");
            changed_model(&path, &target, &json!({}), &[]);
        } else {
            std::fs::copy(&path, target).expect("a file is copied");
        }
    }
    let (config, weights) = (to.join("config.json"), to.join("model.safetensors"));
    let json = std::fs::read(&config).expect("it is there");
    let mut json: Value = serde_json::from_slice(&json).expect("it is JSON");
    for (name, value) in fields.as_object().expect("fields") {
        json[name] = value.clone();
    }
    std::fs::write(config, json.to_string()).expect("it is written");
    if !more.is_empty() {
        let bytes = std::fs::read(&weights).expect("it is there");
        std::fs::write(weights, with_tensors(&bytes, more)).expect("it is written");
    }
}

/// Numbers that repeat nothing, between -1 and 1.
pub(crate) fn some_numbers(count: usize, seed: f32) -> Vec<f32> {
    let number = |index: usize| (index as f32).mul_add(12.9898, seed * 78.233).sin();
    (0..count).map(number).collect()
}
