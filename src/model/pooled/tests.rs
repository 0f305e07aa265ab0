//! Tests of `model/pooled.rs`.

use super::*;
use crate::model::safetensors::Safetensors;
use crate::platform::{ModelFile, block_on};

/// A file with tensors of f32.
fn source(tensors: &[(&str, &[usize], &[f32])]) -> Safetensors {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*name).into(), entry);
    }
    let header = serde_json::Value::from(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    let file = ModelFile::in_memory(bytes.into());
    Safetensors::from_files("head", vec![("head".into(), file)]).expect("the file is right")
}

fn names(squash: Squash) -> PooledNames {
    PooledNames {
        weight: "w".into(),
        bias: Some("b".into()),
        norm: Some(("n".into(), 1e-5)),
        squash,
        inputs: 2,
        outputs: 3,
    }
}

#[test]
fn a_layer_is_a_product_a_function_and_a_norm() {
    let source = source(&[
        ("w", &[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        ("b", &[3], &[0.0, 0.0, -1.0]),
        ("n", &[3], &[1.0, 2.0, 3.0]),
    ]);
    let read = |names: &PooledNames| block_on(PooledLayer::read(names, &source));
    let layer = read(&names(Squash::Relu)).expect("it is there");
    assert_eq!(layer.outputs(), 3);
    let found = through(&[layer], &[2.0, -1.0]);
    // Of 2, 0 and 0: the mean is 2/3, the variance 8/9.
    let scale = (8.0_f64 / 9.0 + 1e-5).sqrt().recip();
    let expected = [4.0 / 3.0 * scale, -4.0 / 3.0 * scale, -2.0 * scale];
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
    let wrong = PooledNames {
        outputs: 4,
        ..names(Squash::Relu)
    };
    assert!(matches!(
        read(&wrong),
        Err(LoadError::TensorShape { tensor, .. }) if tensor == "w"
    ));
    let missing = PooledNames {
        bias: Some("c".into()),
        ..names(Squash::Relu)
    };
    assert!(matches!(
        read(&missing),
        Err(LoadError::TensorMissing { tensor, .. }) if tensor == "c"
    ));
}

#[test]
fn functions_are_those_of_torch() {
    let table = [
        ("torch.nn.modules.linear.Identity", -0.5),
        ("torch.nn.modules.activation.Tanh", -0.462_117_157_260_009_8),
        (
            "torch.nn.modules.activation.GELU",
            -0.154_268_769_362_993_43,
        ),
        ("torch.nn.modules.activation.ReLU", 0.0),
        (
            "torch.nn.modules.activation.SiLU",
            -0.188_770_334_399_068_63,
        ),
        (
            "torch.nn.modules.activation.Sigmoid",
            0.377_540_668_798_145_4,
        ),
    ];
    for (name, expected) in table {
        let mut vector = [-0.5];
        Squash::of_torch(name)
            .expect("it is known")
            .apply(&mut vector);
        assert!((vector[0] - expected).abs() < 1e-9, "{name}: {vector:?}");
    }
    let mut vector = [1000.0, 1000.0, -1000.0];
    Squash::Softmax.apply(&mut vector);
    assert_eq!(vector, [0.5, 0.5, 0.0]);
    assert_eq!(Squash::of_torch("torch.nn.Mish"), None);
    assert_eq!(Squash::of_torch("mine.Tanh"), None, "no class of torch's");
}
