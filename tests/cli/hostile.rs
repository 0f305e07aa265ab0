//! Invalid GGUF files, through the binary: each gives a one-line error with file and field, within 6 GiB of address
//! space and 20 seconds of CPU time. Chat templates that ask for much: each gives a one-line error, within 1.5 GiB of
//! address space (most of it is reserved and never used) and 10 seconds.

use super::{folio, packed, text};
use crate::builder::{Builder, Item};
use crate::models;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a model that must be refused, with resource limits.
fn refused(file: &Path, words: &[&str]) {
    let command = folio(&[]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -v 6291456; ulimit -t 20; exec \"$0\" \"$@\""])
        .arg(command.get_program());
    for (name, _) in command.get_envs() {
        limited.env_remove(name);
    }
    limited
        .args([
            "run",
            "--device",
            "cpu",
            "--max-tokens",
            "1",
            "--prompt",
            "a",
            "--model",
        ])
        .arg(file);
    let output = limited
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    let message = text(&output.stderr);
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| code == 1 || code == 2),
        "{words:?}: {:?} {message}",
        output.status
    );
    assert_eq!(text(&output.stdout), "", "{words:?}: stdout is for results");
    let errors: Vec<&str> = message
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(
        errors.len(),
        1,
        "{words:?}: one line tells the error: {message}"
    );
    let name = file
        .file_name()
        .expect("a file has a name")
        .to_string_lossy();
    for word in words.iter().copied().chain([&*name]) {
        assert!(errors[0].contains(word), "{word:?} is not in {message}");
    }
}

/// Writes `value` over the bytes `skip` after the end of the first `place`.
fn patched(mut bytes: Vec<u8>, place: &str, skip: usize, value: &[u8]) -> Vec<u8> {
    let at = bytes
        .windows(place.len())
        .position(|window| window == place.as_bytes())
        .expect("the place is there");
    let at = at + place.len() + skip;
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

#[test]
fn damaged_heads_are_refused_within_limits() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("damaged.gguf");
    let good = models::small().bytes();
    let with = |at: usize, value: &[u8]| [&good[..at], value, &good[at + value.len()..]].concat();
    let (huge, beyond) = (u64::MAX.to_le_bytes(), (good.len() as u64).to_le_bytes());
    let key = "llama.block_count";
    let name = "blk.0.ffn_gate.weight";
    let mut table = vec![
        (with(0, b"GGML"), vec!["not a GGUF file"]),
        (with(4, &0_u32.to_le_bytes()), vec!["version 0"]),
        (with(4, &1_u32.to_le_bytes()), vec!["version 1"]),
        (with(4, &99_u32.to_le_bytes()), vec!["version 99"]),
        (with(4, &3_u32.to_be_bytes()), vec!["big-endian"]),
        (with(8, &huge), vec!["tensor_count"]),
        (with(8, &beyond), vec!["tensor_count"]),
        (with(16, &huge), vec!["metadata_kv_count"]),
        (with(16, &beyond), vec!["metadata_kv_count"]),
        (with(24, &huge), vec!["metadata[0]"]),
        (with(24, &beyond), vec!["metadata[0]"]),
        (
            patched(good.clone(), "general.architecture", 4, &huge),
            vec!["general.architecture"],
        ),
        (
            patched(good.clone(), "tokenizer.ggml.tokens", 8, &huge),
            vec!["tokenizer.ggml.tokens"],
        ),
        (
            patched(good.clone(), "tokenizer.ggml.tokens", 16, &huge),
            vec!["tokenizer.ggml.tokens"],
        ),
        (
            patched(
                good.clone(),
                "tokenizer.ggml.tokens",
                4,
                &9_u32.to_le_bytes(),
            ),
            vec!["list of lists"],
        ),
        (
            patched(good.clone(), key, 0, &77_u32.to_le_bytes()),
            vec![key, "unknown type 77"],
        ),
        (
            patched(good.clone(), name, 0, &0_u32.to_le_bytes()),
            vec![name, "0 dimensions"],
        ),
        (
            patched(good.clone(), name, 0, &5_u32.to_le_bytes()),
            vec![name, "5 dimensions"],
        ),
        (
            patched(good.clone(), name, 0, &u32::MAX.to_le_bytes()),
            vec![name, "4294967295 dimensions"],
        ),
        (
            patched(good.clone(), name, 4, &0_u64.to_le_bytes()),
            vec![name, "impossible shape"],
        ),
        (
            patched(good.clone(), name, 4, &huge),
            vec![name, "impossible shape"],
        ),
        (
            patched(good.clone(), name, 4, &(1_u64 << 40).to_le_bytes()),
            vec![name],
        ),
        (
            patched(good.clone(), name, 12, &(1_u64 << 40).to_le_bytes()),
            vec![name],
        ),
        (
            patched(good.clone(), name, 20, &4_u32.to_le_bytes()),
            vec![name, "type 4"],
        ),
        (
            patched(good.clone(), name, 24, &(1_u64 << 40).to_le_bytes()),
            vec![name, "truncated"],
        ),
        (
            patched(good.clone(), name, 24, &(u64::MAX - 31).to_le_bytes()),
            vec![name],
        ),
        (
            patched(good.clone(), name, 24, &1_u64.to_le_bytes()),
            vec![name, "not a multiple of 32"],
        ),
        (
            patched(good.clone(), name, 24, &0_u64.to_le_bytes()),
            vec!["overlaps"],
        ),
    ];
    table.extend(
        [0, 1, 3, 4, 7, 8, 15, 16, 23, 24, 31, 32].map(|length| (good[..length].to_vec(), vec![])),
    );
    for (bytes, words) in table {
        fs::write(&file, bytes).expect("the folder takes files");
        refused(&file, &words);
    }
}

#[test]
fn wrong_metadata_is_refused_within_limits() {
    type Change = fn(&mut Builder);
    let table: [(Change, &[&str]); 23] = [
        (
            |file| file.set("general.architecture", Item::Text("mamba".into())),
            &["mamba", "gpt-oss"],
        ),
        (
            |file| file.set("general.alignment", Item::U32(0)),
            &["general.alignment is 0"],
        ),
        (
            |file| file.set("general.alignment", Item::U32(3)),
            &["general.alignment is 3"],
        ),
        (
            |file| file.set("general.alignment", Item::U64(1 << 63)),
            &["general.alignment"],
        ),
        (
            |file| file.set("llama.attention.head_count", Item::U32(3)),
            &["head_count"],
        ),
        (
            |file| file.set("llama.attention.head_count", Item::U64(1 << 40)),
            &["head_count"],
        ),
        (
            |file| file.set("llama.block_count", Item::U32(2)),
            &["model.layers.1."],
        ),
        (
            |file| file.set("llama.block_count", Item::U32(u32::MAX)),
            &["block_count"],
        ),
        (
            |file| file.set("llama.embedding_length", Item::U32(64)),
            &["embed_tokens"],
        ),
        (
            |file| file.set("llama.feed_forward_length", Item::U32(1 << 20)),
            &["mlp"],
        ),
        (
            |file| file.set("llama.context_length", Item::U32(0)),
            &["context_length"],
        ),
        (
            |file| file.set("llama.rope.freq_base", Item::F32(f32::INFINITY)),
            &["rope.freq_base"],
        ),
        (
            |file| file.set("llama.rope.dimension_count", Item::U32(1 << 20)),
            &["partial_rotary_factor"],
        ),
        (
            |file| {
                file.set(
                    "tokenizer.ggml.scores",
                    Item::Raw([9_u32, 1, 4, 0, 0].map(u32::to_le_bytes).concat()),
                );
            },
            &["scores"],
        ),
        (
            |file| file.set("tokenizer.ggml.scores", Item::F32s(vec![1.0])),
            &["scores has 1 entries"],
        ),
        (
            |file| file.set("tokenizer.ggml.tokens", Item::F32s(vec![1.0; 4])),
            &["tokenizer.ggml.tokens"],
        ),
        (
            |file| file.set("tokenizer.ggml.model", Item::Text("klingon".into())),
            &["tokenizer.ggml.model", "klingon"],
        ),
        (|file| file.set("split.count", Item::U16(2)), &["split.no"]),
        (
            |file| {
                file.set("split.count", Item::U16(u16::MAX));
                file.set("split.no", Item::U16(0));
            },
            &["65535"],
        ),
        (
            |file| file.tensors[1].name = file.tensors[0].name.clone(),
            &["token_embd.weight", "duplicate"],
        ),
        (
            |file| file.tensors[0].dimensions = vec![32, 3],
            &["tokenizer.ggml.tokens has 4 entries", "3 rows"],
        ),
        (
            |file| file.tensors[4].dimensions = vec![32, 16],
            &["q_proj", "[16, 32]"],
        ),
        (
            |file| file.tensors[4].dimensions = vec![16, 64],
            &["blk.0.attn_q.weight", "block size 32"],
        ),
    ];
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("wrong.gguf");
    for (change, words) in table {
        let mut wrong = models::small();
        change(&mut wrong);
        fs::write(&file, wrong.bytes()).expect("the folder takes files");
        refused(&file, words);
    }
}

/// The files of the golden tests, each without its last byte.
#[test]
fn files_one_byte_short_are_refused_within_limits() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let mut count = 0;
    for entry in fs::read_dir(packed::model("gguf")).expect("the folder lists") {
        let path = entry.expect("the folder lists").path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        count += 1;
        let bytes = fs::read(&path).expect("the file reads");
        let short = folder
            .path()
            .join(path.file_name().expect("a file has a name"));
        fs::write(&short, &bytes[..bytes.len() - 1]).expect("the folder takes files");
        refused(&short, &["truncated: 1 bytes"]);
    }
    assert!(count >= 5, "only {count} files");
}

/// Sixty lists in lists; each has the one before twice, so as text the last one has 2^60 items.
const SHARED: &str = "{% set ns = namespace(a=['x']) %}{% for i in range(60) %}{% set ns.a = \
    [ns.a, ns.a] %}{% endfor %}";
/// A text of 4 MiB.
const LONG: &str = "{% set ns = namespace(s='x') %}{% for i in range(22) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
/// Two lists like that, which are equal and share nothing.
const EQUAL: &str = "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}\
    {% set ns.b = [ns.b, ns.b] %}{% endfor %}";
/// Lists in lists, a hundred thousand deep.
const DEEP: &str = "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [[[ns.a]]] %}{% endfor %}";

#[test]
fn hostile_templates_are_refused_within_limits() {
    let templates = [
        ("", "{{ '%1000000000d'|format(1) }}"),
        ("", "{{ '%1000000000d' % 1 }}"),
        ("", "{{ '%*d' % (1000000000, 1) }}"),
        ("", "{{ 'x'.ljust(1000000000) }}"),
        ("", "{{ 'x'.zfill(1000000000) }}"),
        ("", "{{ 'x' * 1000000000 }}"),
        ("", "{{ '{:1000000000}'.format(1) }}"),
        ("", "{{ '{:1000000000}'.format(1) }}"),
        ("", "{{ 'a' * 1000000000 }}"),
        ("", "{{ 'a\nb'|indent(1000000000) }}"),
        (
            "",
            "{{ range(100000)|list|tojson(separators=('x' * 100000, ':')) }}",
        ),
        (
            "",
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        ),
        ("", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        (SHARED, "{{ ns.a }}"),
        (SHARED, "{% set x %}{{ ns.a }}{% endset %}"),
        (
            SHARED,
            "{% macro m() %}{{ ns.a }}{% endmacro %}{% set x = m() %}",
        ),
        (SHARED, "{{ ns.a|tojson }}"),
        (SHARED, "{{ ns.a|string|length }}"),
        (SHARED, "{{ ns.a|upper|length }}"),
        (SHARED, "{{ [ns.a]|join('')|length }}"),
        (SHARED, "{{ ''.join([ns.a])|length }}"),
        (SHARED, "{{ '{}'.format(ns.a)|length }}"),
        (SHARED, "{{ ns.a|indent|length }}"),
        (SHARED, "{{ [ns.a]|map('string')|list|length }}"),
        (SHARED, "{{ raise_exception(ns.a) }}"),
        (SHARED, "{{ strftime_now(ns.a) }}"),
        (LONG, "{{ ns.s.replace('x', ns.s)|length }}"),
        (LONG, "{{ ns.s|replace('x', ns.s)|length }}"),
        (LONG, "{{ ns.s.join(ns.s)|length }}"),
        (LONG, "{{ ''.join([ns.s] * 1000)|length }}"),
        (LONG, "{{ ns.s.split('x')|length }}"),
        (LONG, "{{ raise_exception(ns.s) }}"),
        (
            LONG,
            "{% for i in range(100000) %}{{ ns.s.count('y') }}{% endfor %}",
        ),
        (EQUAL, "{{ ns.a is eq(ns.b) }}"),
        (EQUAL, "{{ [ns.a]|select('lessthan', ns.b)|list|length }}"),
        (EQUAL, "{{ ns.a is in([ns.b]) }}"),
        (EQUAL, "{{ [ns.a].count(ns.b) }}"),
        (SHARED, "{{ {'x': 1}.get(ns.a) }}"),
        (DEEP, ""),
        (DEEP, "{{ ns.a }}"),
        (DEEP, "{{ ns.a|tojson }}"),
    ];
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("template.jinja");
    for (start, end) in templates {
        fs::write(&file, format!("{start}{end}")).expect("the folder takes files");
        let command = folio(&[]);
        let mut limited = Command::new("sh");
        limited
            .args(["-c", "ulimit -v 1572864; ulimit -t 10; exec \"$0\" \"$@\""])
            .arg(command.get_program());
        for (name, _) in command.get_envs() {
            limited.env_remove(name);
        }
        limited
            .args([
                "run",
                "--device",
                "cpu",
                "--max-tokens",
                "1",
                "--prompt",
                "a",
                "--chat-template",
            ])
            .arg(&file);
        let output = limited
            .stdin(Stdio::null())
            .output()
            .expect("the binary starts");
        let message = text(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{end}: {:?} {message}",
            output.status
        );
        let errors: Vec<&str> = message
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert_eq!(
            errors.len(),
            1,
            "{end}: one line tells the error: {message}"
        );
        assert!(errors[0].len() < 1000, "{end}: {} bytes", errors[0].len());
    }
}
