//! The lists of files in the documentation of `src/lib.rs`: there is one for each kind of addition, and the files that
//! it names exist.

use super::judge;
use super::kernels::step_stems;
use super::reader::root;
use std::fs;
use std::path::Path;

/// The section of the lists.
const SECTION: &str = "//! # What to change for what\n";
const LISTS: [&str; 8] = [
    "A step",
    "A family",
    "A route",
    "A counter",
    "An option",
    "A backend",
    "A CPU kernel",
    "An injected bug",
];
/// Stands in a path for the name of a step, which its files share.
const STEM: &str = "<stem>";
/// Stands in an item for the names of several files of a step.
const FORMS: &str = "`<stem>_<form>";

/// The items of a list by its title: each from its number to the next.
fn items<'a>(section: &'a str, title: &str) -> Vec<&'a str> {
    let heading = format!("//! ## {title}\n");
    let rest = section.split_once(&heading).map_or("", |(_, rest)| rest);
    let list = rest.split("//! ## ").next().unwrap_or_default();
    let starts = list.match_indices("\n//! ").filter_map(|(at, _)| {
        let (number, _) = list[at + "\n//! ".len()..].split_once(". ")?;
        number.parse::<u32>().is_ok().then_some(at)
    });
    let mut ends: Vec<usize> = starts.collect();
    ends.push(list.len());
    let items = ends.windows(2).map(|pair| &list[pair[0]..pair[1]]);
    items.collect()
}

/// What stands between backquotes and has a `/`, or is the manifest.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|word| (word.contains('/') || *word == "Cargo.toml") && !word.contains(' '))
}

/// The files that a path names and that do not exist. With [`STEM`] it names one for each step, or some that begin with
/// it and `_`, where a step may have several.
fn missing(root: &Path, path: &str, stems: &[String], has_forms: bool) -> Vec<String> {
    let Some((folder, ending)) = path.split_once(STEM) else {
        let is_there = root.join(path).exists();
        return if is_there {
            Vec::new()
        } else {
            vec![path.to_owned()]
        };
    };
    let names = fs::read_dir(root.join(folder)).into_iter().flatten();
    let names: Vec<String> = names
        .map(|entry| {
            entry
                .expect("the folder lists")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let is_of = |name: &str, stem: &str| {
        let rest = name
            .strip_prefix(stem)
            .and_then(|rest| rest.strip_suffix(ending));
        rest.is_some_and(|form| form.is_empty() || has_forms && form.starts_with('_'))
    };
    let without = stems
        .iter()
        .filter(|stem| !names.iter().any(|name| is_of(name, stem)));
    without.map(|stem| path.replace(STEM, stem)).collect()
}

/// What is wrong with a section of lists.
fn findings(root: &Path, section: &str, stems: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    for title in LISTS {
        let items = items(section, title);
        if items.len() < 2 {
            findings.push(format!("src/lib.rs: no list `## {title}`"));
        }
        let bare = items.iter().filter(|item| paths(item).next().is_none());
        findings.extend(bare.map(|item| format!("src/lib.rs: {title}: no file in {item:?}")));
    }
    // An item's lines are one: what is quoted may be broken.
    for line in section.replace("\n//!    ", " ").lines() {
        for path in paths(line) {
            let missing = missing(root, path, stems, line.contains(FORMS));
            findings.extend(
                missing
                    .iter()
                    .map(|path| format!("src/lib.rs: there is no {path}")),
            );
        }
    }
    findings
}

#[test]
fn the_lists_of_files_to_change_name_files_that_exist() {
    let text = fs::read_to_string(root().join("src/lib.rs")).expect("the file is there");
    let (_, rest) = text.split_once(SECTION).expect("the section is there");
    let section = rest.split("//! # ").next().unwrap_or_default();
    let stems = step_stems();
    judge("lists", &findings(&root(), section, &stems));

    let says = |section: &str, what: &str| {
        let found = findings(&root(), section, &stems);
        assert!(
            found.iter().any(|finding| finding.contains(what)),
            "{what}: {found:?}"
        );
    };
    says(
        &section.replace("## A counter", "## A number"),
        "no list `## A counter`",
    );
    says(
        &section.replace("`tests/bugs/scheduler`, or", "A folder, or"),
        "An injected bug: no file in",
    );
    says(
        &section.replace("tests/bugs/scheduler", "tests/bugs/planner"),
        "there is no tests/bugs/planner",
    );
    says(
        &section.replace("src/plan/step/<stem>.rs", "src/plan/<stem>.rs"),
        "there is no src/plan/rms_norm.rs",
    );
    says(
        &section.replace(FORMS, "`<form>"),
        "there is no shaders/attend_paged.wgsl",
    );
}
