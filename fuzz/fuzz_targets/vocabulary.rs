//! Any tokens, merges, scores and flags in a GGUF file must give a tokenizer that encodes and decodes, or an error. The
//! input is lines: model, pre-tokenizer, tokens, merges, token types, scores, flags, template, text; entries of a line
//! are separated by tabs. A template is parsed, not run: its limits protect against mistakes, not against malice
//! (`src/text/template.rs`).
#![no_main]

use bytes::Bytes;
use folio::model::Gguf;
use folio::platform::ModelFile;
use folio::text::{TextModel, Tokenizer};
use libfuzzer_sys::fuzz_target;
use std::str::from_utf8;

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.splitn(9, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let mut file = Pairs::default();
    file.text("general.architecture", b"llama");
    for (key, value) in [
        ("context_length", 64),
        ("embedding_length", 8),
        ("block_count", 1),
        ("feed_forward_length", 8),
        ("attention.head_count", 1),
    ] {
        file.integer(&format!("llama.{key}"), value);
    }
    file.float("llama.attention.layer_norm_rms_epsilon");
    file.text("tokenizer.ggml.model", line());
    file.text("tokenizer.ggml.pre", line());
    file.texts("tokenizer.ggml.tokens", line());
    file.texts("tokenizer.ggml.merges", line());
    file.numbers("tokenizer.ggml.token_type", 5, line(), |text| {
        text.parse::<i32>().ok().map(i32::to_le_bytes)
    });
    file.numbers("tokenizer.ggml.scores", 6, line(), |text| {
        text.parse::<f32>().ok().map(f32::to_le_bytes)
    });
    file.flags(line());
    file.text("tokenizer.chat_template", line());
    let text = String::from_utf8_lossy(line()).into_owned();
    let file = ModelFile::in_memory(Bytes::from(file.file()));
    let Ok(gguf) = Gguf::from_files(vec![("fuzzed.gguf".into(), file)]) else {
        return;
    };
    let texts = gguf.texts();
    let (Ok(Some(vocabulary)), Ok(config)) = (texts.vocabulary(), texts.tokenizer_config_json())
    else {
        return;
    };
    let tokens = vocabulary
        .tokens
        .iter()
        .map(|(text, id)| (text.as_ref(), *id));
    let Ok(tokenizer) =
        Tokenizer::from_tables(&vocabulary.tokenizer_json, tokens, &vocabulary.merges)
    else {
        return;
    };
    let Ok(model) = TextModel::with_tokenizer(Some(tokenizer), Some(&config), None) else {
        return;
    };
    let Some(tokenizer) = &model.tokenizer else {
        return;
    };
    for add_special in [false, true] {
        let Ok(ids) = tokenizer.encode(&text, add_special) else {
            continue;
        };
        let mut previous = None;
        for id in ids {
            tokenizer.token_bytes(id, previous);
            previous = Some(id);
        }
    }
});

/// The metadata of a file with one tensor, the embedding table.
#[derive(Default)]
struct Pairs {
    count: u64,
    bytes: Vec<u8>,
    tokens: u64,
}

impl Pairs {
    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        self.string(key.as_bytes());
        self.bytes.extend(kind.to_le_bytes());
    }

    fn string(&mut self, text: &[u8]) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text);
    }

    /// Adds a text; nothing if the line is empty.
    fn text(&mut self, key: &str, text: &[u8]) {
        if !text.is_empty() {
            self.key(key, 8);
            self.string(text);
        }
    }

    fn integer(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn float(&mut self, key: &str) {
        self.key(key, 6);
        self.bytes.extend(1e-5_f32.to_le_bytes());
    }

    fn list(&mut self, key: &str, kind: u32, count: usize) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((count as u64).to_le_bytes());
    }

    fn texts(&mut self, key: &str, line: &[u8]) {
        let entries: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
        self.tokens = self.tokens.max(entries.len() as u64);
        if !line.is_empty() {
            self.list(key, 8, entries.len());
            entries.into_iter().for_each(|entry| self.string(entry));
        }
    }

    fn numbers(
        &mut self,
        key: &str,
        kind: u32,
        line: &[u8],
        number: impl Fn(&str) -> Option<[u8; 4]>,
    ) {
        if !line.is_empty() {
            let entries = line
                .split(|byte| *byte == b'\t')
                .map(|entry| number(from_utf8(entry).unwrap_or_default()));
            let numbers: Vec<[u8; 4]> = entries.map(Option::unwrap_or_default).collect();
            self.list(key, kind, numbers.len());
            self.bytes.extend(numbers.concat());
        }
    }

    /// Three flags, then the ids of special tokens.
    fn flags(&mut self, line: &[u8]) {
        let names = ["add_bos_token", "add_eos_token", "add_space_prefix"];
        for (name, flag) in names
            .into_iter()
            .zip(line)
            .filter(|(_, flag)| **flag != b'-')
        {
            self.key(&format!("tokenizer.ggml.{name}"), 7);
            self.bytes.push(flag & 1);
        }
        let names = [
            "bos_token_id",
            "eos_token_id",
            "unknown_token_id",
            "eot_token_id",
        ];
        for (name, id) in names.into_iter().zip(line.iter().skip(3)) {
            self.integer(
                &format!("tokenizer.ggml.{name}"),
                u32::from(id.wrapping_sub(b'0')),
            );
        }
    }

    fn file(self) -> Vec<u8> {
        let mut file = [
            b"GGUF".as_slice(),
            &3_u32.to_le_bytes(),
            &1_u64.to_le_bytes(),
        ]
        .concat();
        file.extend(self.count.to_le_bytes());
        file.extend(self.bytes);
        let name = b"token_embd.weight";
        file.extend((name.len() as u64).to_le_bytes());
        file.extend(name);
        file.extend(2_u32.to_le_bytes());
        file.extend([8, self.tokens].map(u64::to_le_bytes).concat());
        file.extend([0; 4 + 8]);
        file.resize(
            file.len().next_multiple_of(32) + 32 * self.tokens as usize,
            0,
        );
        file
    }
}
