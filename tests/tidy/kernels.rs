//! One file name per kernel: the step, its reference (twin), its WGSL file and its CUDA file.

use super::judge;
use super::reader::{Source, code, is_word, item_end, root, sources};
use std::fs;

/// Names of the steps, from the enum itself.
fn step_names() -> Vec<String> {
    let plan = fs::read_to_string(root().join("src/plan/step/mod.rs"))
        .expect("src/plan/step/mod.rs lists the steps");
    let plan = code(&plan);
    let start = plan
        .find("pub enum Step {")
        .expect("Step is an enum of src/plan/step/mod.rs");
    let body = &plan[start..item_end(&plan, start)];
    let variant = |line: &str| {
        let name: String = line
            .strip_prefix("    ")?
            .bytes()
            .take_while(|&b| is_word(b))
            .map(char::from)
            .collect();
        name.starts_with(char::is_uppercase).then_some(name)
    };
    body.lines().filter_map(variant).collect()
}

/// The names in snake case.
pub(crate) fn step_stems() -> Vec<String> {
    step_names().iter().map(|name| snake_case(name)).collect()
}

/// `RopeStoreKv` → `rope_store_kv`; `MatMul` is one word in file names.
fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(character.to_lowercase());
    }
    out.replace("mat_mul", "matmul")
}

/// The list in src/lib.rs of the files that a new step takes.
const LIST: &str = "//! ## A step\n";

#[test]
fn the_list_of_files_for_a_step_has_all_that_name_every_step() {
    let text = fs::read_to_string(root().join("src/lib.rs")).expect("src/lib.rs is there");
    let start = text.find(LIST).expect("src/lib.rs has the list") + LIST.len();
    let list = text[start..].split("//! ## ").next().unwrap_or_default();
    let quoted = list.split('`').skip(1).step_by(2);
    let files: Vec<_> = quoted.filter(|word| word.ends_with("/mod.rs")).collect();
    let names = step_names();
    assert!(
        names.contains(&"RopeStoreKv".to_owned()) && files.contains(&"src/plan/step/mod.rs"),
        "the steps are read from the enum, the files from src/lib.rs: {names:?}, {files:?}"
    );
    let mut findings = Vec::new();
    for file in &files {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        for name in names
            .iter()
            .filter(|name| !text.contains(&format!("{name}(")))
        {
            findings.push(format!("{file}:1: the step {name} is not there"));
        }
    }
    for source in sources(&["src"], &["rs"]) {
        let has = |name: &String| source.text.contains(&format!("Step::{name}("));
        if names.iter().all(has) && !files.contains(&source.path.as_str()) {
            findings
                .push(source.finding(1, "it names every step, and src/lib.rs does not name it"));
        }
    }
    judge("files of a step", &findings);
}

#[test]
fn every_step_has_its_kernels_and_every_kernel_its_step() {
    let stems = step_stems();
    assert!(
        stems.contains(&"rope_store_kv".to_owned()),
        "the steps are read from the enum: {stems:?}"
    );
    let root = root();
    let of_step =
        |kernel: &str, stem: &str| kernel == stem || kernel.starts_with(&format!("{stem}_"));
    let mut findings = Vec::new();
    for (folder, extension) in [("shaders", "wgsl"), ("cuda", "cu")] {
        let kernels: Vec<String> = fs::read_dir(root.join(folder))
            .expect("the folder holds kernels")
            .map(|entry| {
                entry
                    .expect("the folder lists")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .filter_map(|name| {
                name.strip_suffix(&format!(".{extension}"))
                    .map(str::to_owned)
            })
            .filter(|stem| {
                !["bench_", "probe_"]
                    .iter()
                    .any(|alone| stem.starts_with(alone))
            })
            .collect();
        for stem in stems
            .iter()
            .filter(|stem| !kernels.iter().any(|kernel| of_step(kernel, stem)))
        {
            findings.push(format!(
                "{folder}/{stem}.{extension}:1: the step {stem} has no kernel"
            ));
        }
        for kernel in kernels
            .iter()
            .filter(|kernel| !stems.iter().any(|stem| of_step(kernel, stem)))
        {
            findings.push(format!(
                "{folder}/{kernel}.{extension}:1: no step has this stem"
            ));
        }
    }
    judge("stems", &findings);
}

/// What adds up in a loop starts with a value: Chromium (156) zeroes a variable without one only before the first turn.
/// Kernels with images or cooperative matrices never run there.
#[test]
fn sums_in_loops_start_with_a_value() {
    let mut findings = Vec::new();
    let kernels = sources(&["shaders"], &["wgsl"]);
    assert!(kernels.iter().any(|source| {
        sums_without_value(&source.text.replace("= Quad()", ": Quad"))
            .next()
            .is_some()
    }));
    for source in kernels.iter().filter(|source| {
        !["texel", "matrices"]
            .iter()
            .any(|what| source.path.contains(what))
    }) {
        let without = sums_without_value(&source.text);
        findings.extend(
            without.map(|(line, name)| {
                source.finding(line, &format!("{name} starts without a value"))
            }),
        );
    }
    judge("sums", &findings);
}

/// Line and name of variables without a value, declared in a loop, that are added to or passed by pointer.
fn sums_without_value(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut depth, mut loops) = (0, Vec::new());
    let lines = text.lines().enumerate();
    lines.filter_map(move |(index, line)| {
        let line = line.trim();
        if ["for ", "while ", "loop "]
            .iter()
            .any(|word| line.starts_with(word))
        {
            loops.push(depth);
        }
        depth += line.matches('{').count();
        depth -= line.matches('}').count();
        while loops.last().is_some_and(|&outer| depth <= outer) {
            loops.pop();
        }
        let (name, kind) = line.strip_prefix("var ")?.split_once(": ")?;
        let adds = |line: &str| {
            let is_target = line
                .trim()
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['[', ' ']));
            is_target && line.contains(" += ") || line.contains(&format!("&{name})"))
        };
        let is_sum = text.lines().skip(index).any(adds);
        (!loops.is_empty() && !kind.contains('=') && is_sum).then_some((index + 1, name))
    })
}

/// The header of a kernel states which GPU it has run on, or that it has not run on one yet.
#[test]
fn cuda_kernels_say_where_they_have_run() {
    let kernels = sources(&["cuda"], &["cu"]);
    let says = |source: &&Source| {
        let header = source
            .text
            .split("\n\n")
            .next()
            .unwrap_or_default()
            .replace("\n// ", " ");
        header.contains("not yet run on a GPU") || header.contains("Run on ")
    };
    let findings = kernels.iter().filter(|source| !says(source));
    judge(
        "proof",
        &findings
            .map(|source| source.finding(1, "its header does not say where it has run"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn a_step_and_its_files_share_a_stem() {
    assert_eq!(snake_case("RopeStoreKv"), "rope_store_kv");
    assert_eq!(snake_case("MatMul"), "matmul");
}
