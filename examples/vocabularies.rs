//! Checks tokenizers and chat templates against the test data in llama.cpp's source, which is too large for this
//! repository: `cargo run --example vocabularies -- FOLDER [OUT]`. FOLDER is `models/` in a checkout of llama.cpp (the
//! source package of llama-cpp-python on PyPI has it as `vendor/llama.cpp/models`).
//!
//! A vocabulary `x.gguf` passes if every text of `x.gguf.inp` becomes the ids of `x.gguf.out`. A template in
//! `templates/` passes if it renders a conversation; the result is written to OUT, if given. Prints two tables, and
//! fails if any row does.

use bytes::Bytes;
use folio::model::{LoadError, Texts};
use folio::platform::ModelFile;
use folio::text::{ChatInput, TextModel, Tokenizer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Separator of the texts in an `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(folder) = arguments.next() else {
        eprintln!("usage: vocabularies FOLDER [OUT]");
        return ExitCode::from(2);
    };
    let out = arguments.next();
    let vocabularies = files(&folder, "gguf");
    let templates = files(&folder.join("templates"), "jinja");
    println!("| vocabulary | result |\n|---|---|");
    let mut failed = 0;
    for file in &vocabularies {
        let result = vocabulary(file);
        failed += usize::from(result.is_err());
        println!(
            "| {} | {} |",
            stem(file),
            result.unwrap_or_else(|message| message)
        );
    }
    println!("\n| template | result |\n|---|---|");
    for file in &templates {
        let result = template(file, out.as_deref());
        failed += usize::from(result.is_err());
        println!(
            "| {} | {} |",
            stem(file),
            result.unwrap_or_else(|message| message)
        );
    }
    let total = vocabularies.len() + templates.len();
    println!("\n{} of {total} pass", total - failed);
    if failed == 0 && total > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|own| own == extension))
        .collect();
    files.sort();
    files
}

fn stem(file: &Path) -> String {
    file.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn beside(file: &Path, extension: &str) -> Result<String, String> {
    let name = format!("{}.{extension}", file.display());
    std::fs::read_to_string(&name).map_err(|error| format!("no .{extension}: {error}"))
}

fn vocabulary(file: &Path) -> Result<String, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let name = file.display().to_string();
    let without_name = |error: LoadError| error.to_string().replace(&name, "");
    let texts =
        Texts::from_gguf(&name, ModelFile::in_memory(Bytes::from(bytes))).map_err(without_name)?;
    let vocabulary = texts
        .vocabulary()
        .map_err(without_name)?
        .ok_or("has no vocabulary")?;
    let tokens = vocabulary
        .tokens
        .iter()
        .map(|(text, id)| (text.as_ref(), *id));
    let tokenizer = Tokenizer::from_tables(&vocabulary.tokenizer_json, tokens, &vocabulary.merges);
    let tokenizer = tokenizer.map_err(|error| error.to_string())?;
    let (Ok(inputs), Ok(outputs)) = (beside(file, "inp"), beside(file, "out")) else {
        return Ok(format!(
            "loads, {} tokens (no expected ids)",
            tokenizer.vocabulary()
        ));
    };
    let (mut exact, mut first) = (0, String::new());
    let pairs: Vec<(&str, &str)> = inputs.split(SEPARATOR).zip(outputs.lines()).collect();
    for (text, expected) in &pairs {
        let expected: Vec<u32> = expected
            .split_whitespace()
            .filter_map(|id| id.parse().ok())
            .collect();
        let found = tokenizer
            .encode(text, false)
            .map_err(|error| error.to_string())?;
        if found == expected {
            exact += 1;
        } else if first.is_empty() {
            first = format!(", first {text:?}: got {found:?}, expected {expected:?}");
        }
    }
    let result = format!("{exact} of {} exact{first}", pairs.len());
    if exact == pairs.len() {
        Ok(result)
    } else {
        Err(result)
    }
}

/// Three conversations: with a system message; without it, since some templates reject one; and with content as parts.
fn conversations() -> [Value; 3] {
    let turns = json!([
        {"role": "user", "content": "Hello, who are you?"},
        {"role": "assistant", "content": "I am a model."},
        {"role": "user", "content": "Tell me a \"joke\"."},
    ]);
    let mut with_system = turns.clone();
    if let Value::Array(list) = &mut with_system {
        list.insert(0, json!({"role": "system", "content": "You are helpful."}));
    }
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "Hello, who are you?"}]}]);
    [with_system, turns, parts]
}

fn template(file: &Path, out: Option<&Path>) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let config =
        json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}).to_string();
    let model = TextModel::from_parts(None, Some(config.as_bytes()), Some(&text))
        .map_err(|error| error.to_string())?;
    let mut faults = Vec::new();
    let conversations = conversations();
    let more = json!({"functions": "[]", "datetime": "2023-11-14"});
    let kinds = ["with a system message", "without one", "in parts"].map(|kind| (kind, None));
    let attempts = conversations.iter().zip(kinds).chain([(
        &conversations[0],
        ("with variables of its own", more.as_object()),
    )]);
    for (messages, (kind, kwargs)) in attempts {
        let input = ChatInput {
            messages,
            tools: None,
            kwargs,
            add_generation_prompt: true,
            continue_final: false,
            unix_time: 1_700_000_000,
            bytes_max: 1 << 20,
        };
        match model.chat_text(&input) {
            Ok(rendered) => {
                if let Some(out) = out {
                    std::fs::write(out.join(stem(file) + ".txt"), &rendered)
                        .map_err(|error| error.to_string())?;
                }
                return Ok(format!("{kind}, {} bytes", rendered.len()));
            }
            Err(error) => faults.push(error.to_string()),
        }
    }
    Err(faults.join("; "))
}
