//! Tests of `backend/wgpu/spirv.rs`.

use super::*;
use crate::backend::wgpu::variants;

/// The module of a kernel with matrices.
fn kernel() -> Vec<u32> {
    let variants = variants();
    let variant = variants
        .iter()
        .find(|variant| variant.matrices())
        .expect("some kernels have matrices");
    translate(&variant.text().unwrap()).unwrap()
}

/// What `share_memory` adds is there, and nothing else is different.
#[test]
fn shared_memory_is_not_private_and_barriers_make_it_visible() {
    let words = kernel();
    let instructions = instructions(&words[HEADER_WORDS..]).unwrap();
    let constant = |id: u32| {
        let found = instructions
            .iter()
            .find(|(opcode, words)| *opcode == OP_CONSTANT && words[2] == id);
        found.expect("it is a constant").1[3]
    };
    let mut pointers = Pointers::default();
    let mut counts = [0; 4];
    for (opcode, words) in &instructions {
        pointers.note(*opcode, words);
        let (kind, pointer, operands) = match *opcode {
            OP_LOAD => (0, words[3], words.get(4)),
            OP_STORE => (1, words[1], words.get(3)),
            OP_COOPERATIVE_MATRIX_LOAD => (2, words[3], words.get(6)),
            OP_COOPERATIVE_MATRIX_STORE => (3, words[1], words.get(5)),
            OP_CONTROL_BARRIER => {
                assert_eq!(
                    constant(words[3]) & MAKE_AVAILABLE_AND_VISIBLE,
                    MAKE_AVAILABLE_AND_VISIBLE
                );
                continue;
            }
            _ => continue,
        };
        let is_shared = pointers.are_shared(pointer);
        assert_eq!(
            operands,
            is_shared.then_some(&NON_PRIVATE_POINTER),
            "{words:?}"
        );
        counts[kind] += u32::from(is_shared);
    }
    assert!(
        counts.iter().all(|count| *count > 0),
        "every kind of access to shared memory is there: {counts:?}"
    );
}

#[test]
fn modules_that_are_cut_are_refused() {
    let words = kernel();
    assert!(share_memory(&words[..3]).is_err());
    assert!(share_memory(&words[..HEADER_WORDS]).is_err());
    assert!(
        share_memory(&words[..words.len() - 1]).is_ok(),
        "the last instruction, a single word, may be missing"
    );
    let long = (HEADER_WORDS + 1..words.len())
        .find(|end| words[*end - 1] >> 16 > 1 && share_memory(&words[..*end]).is_err());
    assert!(long.is_some(), "half an instruction");
}

/// The rows and columns of each use of matrices in a module.
fn shapes(words: &[u32]) -> std::collections::BTreeMap<u32, [u32; 2]> {
    let instructions = instructions(&words[HEADER_WORDS..]).unwrap();
    let constants: HashMap<u32, u32> = instructions
        .iter()
        .filter(|(opcode, words)| *opcode == OP_CONSTANT && words.len() == 4)
        .map(|(_, words)| (words[2], words[3]))
        .collect();
    let types = instructions
        .iter()
        .filter(|(opcode, _)| *opcode == OP_TYPE_COOPERATIVE_MATRIX);
    types
        .map(|(_, words)| {
            (
                constants[&words[6]],
                [constants[&words[4]], constants[&words[5]]],
            )
        })
        .collect()
}

/// The kernels for Intel have 8 x 16 times 16 x 16, which WGSL cannot name; the others what they name.
#[test]
fn factors_and_sums_fit_each_other() {
    let mut seen = BTreeSet::new();
    for variant in variants().iter().filter(|variant| variant.matrices()) {
        let shapes = shapes(&translate(&variant.text().unwrap()).unwrap());
        let size = if variant.is_defined("SIZE_8") { 8 } else { 16 };
        let height = if variant.is_defined("SIZE_16") { 16 } else { 8 };
        let expected = [
            (MATRIX_A, [height, size]),
            (MATRIX_B, [size, size]),
            (MATRIX_SUM, [height, size]),
        ];
        assert_eq!(shapes, expected.into(), "{}", variant.name());
        seen.insert((height, size));
    }
    assert_eq!(seen, [(8, 8), (8, 16), (16, 16)].into());
}
