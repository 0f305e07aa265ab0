//! Length and width limits, and things that do not belong in a file: leftover notes, calls that panic, machine-specific
//! paths.

use super::judge;
use super::reader::{Source, code, line_of, places, root, rust, shipped_code, sources};
use std::fs;

const RUST_LINES_MAX: usize = 900;
const WGSL_LINES_MAX: usize = 250;
const CUDA_LINES_MAX: usize = 400;
const WIDTH_MAX: usize = 120;
/// Extension of the scripts in `.ci`: they have none.
const SCRIPT: &str = "";

#[test]
fn files_are_short() {
    let mut findings = Vec::new();
    for source in rust() {
        let lines = source.text.lines().count();
        if lines > RUST_LINES_MAX {
            findings.push(source.finding(
                lines,
                &format!("the file has {lines} lines of at most {RUST_LINES_MAX}"),
            ));
        }
    }
    for source in sources(&["shaders", "src"], &["wgsl", "rs"])
        .iter()
        .filter(|file| file.path.ends_with(".wgsl"))
    {
        let lines = source.text.lines().count();
        if lines > WGSL_LINES_MAX {
            findings.push(source.finding(
                lines,
                &format!("the file has {lines} lines of at most {WGSL_LINES_MAX}"),
            ));
        }
    }
    for source in sources(&["cuda"], &["cu", "cuh", "h", "cpp"]) {
        let lines = source.text.lines().count();
        if lines > CUDA_LINES_MAX && !source.path.starts_with("cuda/emulator/") {
            findings.push(source.finding(
                lines,
                &format!("the file has {lines} lines of at most {CUDA_LINES_MAX}"),
            ));
        }
    }
    judge("length", &findings);
}

#[test]
fn lines_are_narrow_and_clean() {
    let mut findings = Vec::new();
    for source in sources(
        &["src", "tests", "benches", "cuda", "shaders", "web", ".ci"],
        &[
            "rs", "cu", "cuh", "h", "cpp", "wgsl", "ts", "tsx", "mjs", "js", "css", SCRIPT,
        ],
    ) {
        for (index, line) in source.text.lines().enumerate() {
            if line.chars().count() > WIDTH_MAX {
                findings.push(source.finding(index + 1, &format!("wider than {WIDTH_MAX}")));
            }
            if line.ends_with([' ', '\t']) || line.contains('\t') {
                findings.push(source.finding(index + 1, "a tab, or space at the end"));
            }
        }
    }
    judge("width", &findings);
}

#[test]
fn nothing_is_left_undone() {
    let banned = [
        ("todo!", "build it, or refuse it by name"),
        ("unimplemented!", "build it, or refuse it by name"),
        ("dbg!", "use tracing"),
        ("#[ignore", "a test runs or does not exist"),
        (
            "#[should_panic",
            "check the message: std::panic::catch_unwind, or return an error",
        ),
    ];
    let mut findings = Vec::new();
    for source in rust() {
        let text = code(&source.text);
        for (call, instead) in banned {
            let hits = text.match_indices(call);
            findings.extend(
                hits.map(|(at, _)| {
                    source.finding(line_of(&text, at), &format!("{call}: {instead}"))
                }),
            );
        }
    }
    for source in rust().into_iter().chain(sources(&[".ci"], &[SCRIPT])) {
        for word in [
            concat!("TO", "DO"),
            concat!("FIX", "ME"),
            concat!("XX", "X"),
        ] {
            let hits = places(&source.text, word).into_iter();
            findings.extend(
                hits.map(|at| source.finding(line_of(&source.text, at), "a note left over")),
            );
        }
    }
    judge("undone", &findings);
}

#[test]
fn panics_state_the_truth_they_rest_on() {
    let mut findings = Vec::new();
    for source in sources(&["src", "web"], &["rs"]) {
        let text = shipped_code(&source);
        for (at, _) in text.match_indices(".unwrap()") {
            findings.push(source.finding(
                line_of(&text, at),
                "unwrap: return an error, or expect a stated truth",
            ));
        }
        for (at, call) in text.match_indices(".expect(") {
            let argument = source.text[at + call.len()..].trim_start();
            let words = argument
                .trim_start_matches('"')
                .split('"')
                .next()
                .unwrap_or_default()
                .split(' ')
                .count();
            if argument.starts_with('"') && words < 3 {
                findings.push(source.finding(
                    line_of(&text, at),
                    "an expect states a truth in a few words",
                ));
            }
        }
    }
    judge("panics", &findings);
}

#[test]
fn unsafe_stays_below_the_backends() {
    let mut findings = Vec::new();
    for source in sources(&["src"], &["rs"]) {
        let text = code(&source.text);
        if source.path.starts_with("src/backend/") || source.path.starts_with("src/platform/") {
            continue;
        }
        for at in places(&text, "unsafe") {
            findings
                .push(source.finding(line_of(&text, at), "unsafe is for backend/ and platform/"));
        }
    }
    judge("unsafe", &findings);
}

#[test]
fn every_module_opens_with_its_essay() {
    let open = |source: &&Source| source.text.starts_with("//!") || source.path == "src/lib.rs";
    let sources = rust();
    let findings = sources
        .iter()
        .filter(|source| !open(source))
        .map(|source| source.finding(1, "no `//!` opens it"));
    judge("essay", &findings.collect::<Vec<_>>());
}

#[test]
fn no_file_knows_a_machine() {
    let private = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/tm", "p/"),
    ];
    let folders = [
        "src", "tests", "benches", "cuda", "shaders", "web", "assets", ".ci",
    ];
    let web = ["js", "mjs", "ts", "tsx", "html"];
    let mut files = sources(
        &folders,
        &[
            &["rs", "cu", "cuh", "h", "cpp", "wgsl", "md", "py", SCRIPT][..],
            &web,
        ]
        .concat(),
    );
    for name in ["README.md", "Cargo.toml", "deny.toml"] {
        let text = fs::read_to_string(root().join(name));
        files.push(Source {
            path: name.to_owned(),
            text: text.expect("the file is part of the repository"),
        });
    }
    let mut findings = Vec::new();
    for source in &files {
        for (index, line) in source.text.lines().enumerate() {
            if private.iter().any(|path| line.contains(path)) {
                findings.push(source.finding(index + 1, "a path of one machine"));
            }
        }
    }
    judge("machine", &findings);
}
