//! How the vocabularies of GGUF files split texts before they merge.

use crate::builder::Item;
use crate::gguf_reader::{open, tokenizer};
use crate::models::demo;

#[test]
fn the_names_of_ways_to_split_are_those_of_llama_cpp() {
    let numbers = |pre: &str, text: &str| {
        let mut file = demo();
        file.set("tokenizer.ggml.pre", Item::Text(pre.into()));
        let tokenizer = tokenizer(&open(file.bytes()).expect("it opens").texts())
            .expect("there is a vocabulary");
        let ids = tokenizer.encode(text, false).expect("it encodes");
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| tokenizer.token_bytes(*id, None))
            .collect();
        assert_eq!(
            String::from_utf8(bytes).expect("whole characters"),
            text,
            "{pre}"
        );
    };
    for pre in [
        "deepseek-llm",
        "deepseek-coder",
        "kimi-k2",
        "poro-chat",
        "viking",
        "superbpe",
        "a.x-4.0",
        "mellum",
        "gigachat",
        "f2llmv2",
        "glm5",
        "talkie",
        "minicpm5",
        "youtu",
    ] {
        numbers(pre, "Hello wörld, 1234567 你好 it's\n\n  x");
    }
}

/// The characters that stand for bytes in the vocabularies of byte-level models.
fn byte_characters(text: &str) -> Vec<char> {
    let is_itself = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others: Vec<u8> = (0..=255).filter(|byte| !is_itself(*byte)).collect();
    let character = |byte: u8| match others.iter().position(|other| *other == byte) {
        Some(index) => char::from_u32(256 + index as u32).expect("a character"),
        None => char::from(byte),
    };
    text.bytes().map(character).collect()
}

/// The parts that a text is split into. Every piece of the text is a token, so each part becomes a single one.
fn parts(pre: &str, text: &str) -> Vec<String> {
    let characters = byte_characters(text);
    let (mut tokens, mut merges) = (Vec::new(), Vec::new());
    for len in 1..=characters.len() {
        for piece in characters.windows(len) {
            let token: String = piece.iter().collect();
            if tokens.contains(&token) {
                continue;
            }
            if let [start @ .., last] = piece
                && len > 1
            {
                merges.push(format!("{} {last}", start.iter().collect::<String>()));
            }
            tokens.push(token);
        }
    }
    let mut file = demo();
    file.pairs.retain(|(key, _)| !key.starts_with("tokenizer."));
    file.set("tokenizer.ggml.model", Item::Text("gpt2".into()));
    file.set("tokenizer.ggml.pre", Item::Text(pre.into()));
    file.set(
        "tokenizer.ggml.token_type",
        Item::I32s(vec![1; tokens.len()]),
    );
    file.set("tokenizer.ggml.tokens", Item::Texts(tokens));
    file.set("tokenizer.ggml.merges", Item::Texts(merges));
    let tokenizer =
        tokenizer(&open(file.bytes()).expect("it opens").texts()).expect("there is a vocabulary");
    let ids = tokenizer.encode(text, false).expect("it encodes");
    ids.iter()
        .map(|id| String::from_utf8(tokenizer.token_bytes(*id, None)).expect("whole characters"))
        .collect()
}

/// As the expressions of llama.cpp split.
#[test]
fn texts_of_minicpm5_and_youtu_are_split_like_those_of_llama_cpp() {
    assert_eq!(
        parts("minicpm5", "It'S HereNow 1234!\n"),
        ["It", "'S", " HereNow", " ", "123", "4", "!\n"]
    );
    assert_eq!(
        parts("youtu", "It'S HereNow 12!\n"),
        ["It'S", " Here", "Now", " ", "1", "2", "!\n"]
    );
    assert_eq!(
        parts("youtu", "杜甫 한글、a"),
        ["杜甫", " ", "한글", "、", "a"]
    );
}

#[test]
fn pre_tokenizers_split_digits_words_and_lines() {
    let text = "Ab 12345 x?\n\nd\u{4e00}\u{3042}";
    let expected: [(&str, &[&str]); 4] = [
        (
            "glm4",
            &["Ab", " ", "123", "45", " x", "?\n\n", "d\u{4e00}\u{3042}"],
        ),
        (
            "seed-coder",
            &[
                "Ab",
                " ",
                "1",
                "2",
                "3",
                "4",
                "5",
                " x",
                "?",
                "\n\n",
                "d\u{4e00}\u{3042}",
            ],
        ),
        (
            "hunyuan-dense",
            &[
                "Ab",
                " ",
                "123",
                "45",
                " x",
                "?\n\n",
                "d",
                "\u{4e00}\u{3042}",
            ],
        ),
        (
            "exaone4",
            &["Ab", " 12345", " x", "?", "\n", "\n", "d\u{4e00}\u{3042}"],
        ),
    ];
    for (name, parts) in expected {
        let mut file = demo();
        file.set("tokenizer.ggml.pre", Item::Text(name.into()));
        let tokenizer = tokenizer(&open(file.bytes()).expect("it opens").texts())
            .expect("there is a vocabulary");
        let of = |text: &str| tokenizer.encode(text, false).expect("it encodes");
        let apart: Vec<u32> = parts.iter().flat_map(|part| of(part)).collect();
        assert_eq!(of(text), apart, "{name}");
    }
}
