//! Damaged and hostile files, and what their errors name.

use super::*;

/// The pre-tokenizers of today's families split as those of their checkpoints.
/// Damage to the head of a file, and what the error must contain.
#[test]
fn hostile_heads_are_named() {
    let good = demo().bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let huge = u64::MAX.to_le_bytes();
    let mut table: Vec<(Vec<u8>, &str)> = vec![
        (with(0, b"GGUX"), "not a GGUF file"),
        (with(4, &0u32.to_le_bytes()), "version 0"),
        (with(4, &1u32.to_le_bytes()), "version 1"),
        (with(4, &99u32.to_le_bytes()), "version 99"),
        (with(4, &3u32.to_be_bytes()), "big-endian"),
        (with(8, &huge), "tensor_count"),
        (with(16, &huge), "metadata_kv_count"),
        (with(24, &huge), "metadata[0]"),
        (with(24, &0u64.to_le_bytes()), "metadata[0]"),
        (good[..good.len() - 1].to_vec(), "truncated: 1 bytes"),
    ];
    table.extend((0..33).map(|length| (good[..length].to_vec(), "x.gguf")));
    for (bytes, expected) in table {
        let message = open(bytes).expect_err(expected).to_string();
        assert!(
            message.contains(expected) && message.starts_with("x.gguf: "),
            "{message:?} lacks {expected:?}"
        );
        assert!(!message.contains('\n'), "{message:?} is one line");
    }
}

/// Invalid metadata and tensors: the change, and what the error must contain.
#[test]
fn hostile_entries_are_named() {
    type Change = fn(&mut Builder);
    let table: [(Change, &str); 25] = [
        (
            |file| file.set("general.architecture", Item::Text("mamba".into())),
            "\"mamba\" is not supported; expected",
        ),
        (
            |file| {
                file.set("general.architecture", Item::Text("qwen3ssm".into()));
                file.set("qwen3ssm.ssm.state_size", Item::U32(128));
            },
            "the nearest supported one is qwen3; ssm.state_size means layers with a recurrent state of another form",
        ),
        (
            |file| file.pairs.retain(|(key, _)| key != "general.architecture"),
            "general.architecture is missing",
        ),
        (
            |file| file.set("general.alignment", Item::U32(0)),
            "general.alignment is 0",
        ),
        (
            |file| file.set("general.alignment", Item::U32(3)),
            "general.alignment is 3",
        ),
        (
            |file| file.set("general.alignment", Item::U64(1 << 63)),
            "general.alignment is 9223372036854775808",
        ),
        (
            |file| file.set("general.alignment", Item::Text("32".into())),
            "general.alignment is not an integer",
        ),
        (
            |file| file.set("qwen3.block_count", Item::U32(0)),
            "qwen3.block_count is 0",
        ),
        (
            |file| file.set("qwen3.block_count", Item::Text("6".into())),
            "qwen3.block_count is not an integer",
        ),
        (
            |file| file.set("qwen3.attention.head_count", Item::U32(3)),
            "num_attention_heads",
        ),
        (
            |file| file.set("qwen3.embedding_length", Item::U32(512)),
            "embed_tokens",
        ),
        (
            |file| file.set("qwen3.rope.freq_base", Item::F32(f32::NAN)),
            "rope.freq_base is not a finite number",
        ),
        (
            |file| file.set("tokenizer.ggml.tokens", Item::I32s(vec![1])),
            "tokenizer.ggml.tokens is not a list",
        ),
        (
            |file| file.set("tokenizer.ggml.token_type", Item::I32s(vec![1])),
            "token_type has 1 entries",
        ),
        (
            |file| file.set("tokenizer.ggml.merges", Item::Texts(vec!["xyzzy".into()])),
            "has the merge \"xyzzy\"",
        ),
        (
            |file| file.set("tokenizer.ggml.pre", Item::Text("klingon".into())),
            "tokenizer.ggml.pre is \"klingon\"",
        ),
        (
            |file| {
                file.set(
                    "x",
                    Item::Raw([9u32, 9, 0, 0].map(u32::to_le_bytes).concat()),
                );
            },
            "x is a list of lists",
        ),
        (
            |file| {
                file.set(
                    "x",
                    Item::Raw(
                        [9u32, 10, u32::MAX, u32::MAX]
                            .map(u32::to_le_bytes)
                            .concat(),
                    ),
                );
            },
            "x is 18446",
        ),
        (
            |file| file.set("x", Item::Raw(77u32.to_le_bytes().into())),
            "x has a value of unknown type 77",
        ),
        (
            |file| file.pairs.push(("qwen3.block_count".into(), Item::U32(6))),
            "qwen3.block_count is a duplicate",
        ),
        (
            |file| file.tensors[1].dimensions = vec![],
            "has 0 dimensions",
        ),
        (
            |file| file.tensors[1].dimensions = vec![1 << 40, 1 << 40],
            "impossible shape",
        ),
        (|file| file.tensors[1].kind = 99, "has type 99"),
        (|file| file.tensors[1].offset += 8, "not a multiple of 32"),
        (
            |file| file.tensors[1].name = file.tensors[0].name.clone(),
            "is a duplicate",
        ),
    ];
    for (change, expected) in table {
        let mut file = demo();
        change(&mut file);
        let read = |gguf: Gguf| {
            gguf.texts().vocabulary()?;
            Model::from_gguf(gguf)
        };
        let message = open(file.bytes())
            .and_then(read)
            .err()
            .unwrap_or_else(|| panic!("{expected} is refused"))
            .to_string();
        assert!(
            message.contains(expected) && message.starts_with("x.gguf: "),
            "{message:?} lacks {expected:?}"
        );
    }
}
