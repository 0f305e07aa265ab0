//! README, docs/ and CHANGELOG: each page has an owner in the code, links are valid, the README stays short, and a
//! release has one version everywhere.

use super::judge;
use super::reader::{Source, root, sources};
use std::fs;

/// The README must stay short, because its readers do not know yet whether they want folio.
const README_WORDS_MAX: usize = 1500;

fn pages() -> Vec<Source> {
    let mut pages = sources(&["docs"], &["md"]);
    for path in [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "web/README.md",
    ] {
        let text =
            fs::read_to_string(root().join(path)).expect("the page is part of the repository");
        pages.push(Source {
            path: path.to_owned(),
            text,
        });
    }
    pages
}

#[test]
fn readme_is_short() {
    let text =
        fs::read_to_string(root().join("README.md")).expect("README.md is part of the repository");
    let words = text.split_whitespace().count();
    assert!(
        words <= README_WORDS_MAX,
        "README.md has {words} words of at most {README_WORDS_MAX}: move some to docs/"
    );
}

/// Every family of text models has an entry in the table of defaults; entries with patches are towers.
#[test]
fn readme_says_how_many_families_there_are() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("it is there");
    let defaults = read("src/model/families/defaults.json");
    let entries = defaults.split("\n }");
    let families = entries
        .filter(|entry| entry.contains(": {\n") && !entry.contains("\"patch_size\""))
        .count();
    let readme = read("README.md");
    for row in [
        format!("| Model families | {families} |"),
        format!("| Families | {families}, "),
    ] {
        assert!(readme.contains(&row), "README.md lacks {row:?}");
    }
}

/// The owner's documentation names the page, so that both are updated together.
#[test]
fn every_page_of_docs_has_an_owner_that_names_it() {
    let mut findings = Vec::new();
    for page in pages().iter().filter(|page| page.path.starts_with("docs/")) {
        let owner = page
            .text
            .strip_prefix("<!-- owner: ")
            .and_then(|rest| rest.split_once(" -->"));
        let Some((owner, _)) = owner else {
            findings.push(page.finding(1, "the page does not begin with <!-- owner: FILE -->"));
            continue;
        };
        let named =
            fs::read_to_string(root().join(owner)).is_ok_and(|text| text.contains(&page.path));
        if !named {
            findings.push(page.finding(
                1,
                &format!("its owner {owner} does not exist, or does not name the page"),
            ));
        }
    }
    judge("pages", &findings);
}

/// Link targets of `[text](target)` in a line, without web addresses and anchors.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .filter_map(|target| target.split('#').next())
}

#[test]
fn links_between_pages_lead_somewhere() {
    assert_eq!(
        links("[a](b.md#c), ![d](e/f.png) [g](https://h)").collect::<Vec<_>>(),
        ["b.md", "e/f.png"]
    );
    let mut findings = Vec::new();
    for page in pages() {
        let file = root().join(&page.path);
        let folder = file.parent().expect("a page lies in a folder");
        for (index, line) in page.text.lines().enumerate() {
            for target in links(line).filter(|target| !folder.join(target).exists()) {
                findings.push(page.finding(index + 1, &format!("{target} does not exist")));
            }
        }
    }
    judge("links", &findings);
}

/// Rows of a table of docs/dev/promises.md: cells of a promise and its tests, as `ring/file::name`.
fn promises(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let rows = (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.starts_with("| ") && !line.starts_with("| Promise"));
    rows.map(|(line, row)| {
        (
            line,
            row.split('`').filter(|part| part.contains("::")).collect(),
        )
    })
}

#[test]
fn every_promise_has_tests_that_exist() {
    let planted: Vec<_> =
        promises("| Promise | Tests |\n|---|---|\n| a `b` | `c/d::e`, `f/g::h` |\n").collect();
    assert_eq!(planted, [(3, vec!["c/d::e", "f/g::h"])]);
    let page = pages()
        .into_iter()
        .find(|page| page.path == "docs/dev/promises.md")
        .expect("the page exists");
    let (mut findings, mut rows) = (Vec::new(), 0);
    for (line, tests) in promises(&page.text) {
        rows += 1;
        if tests.is_empty() {
            findings.push(page.finding(line, "no test keeps this promise"));
        }
        for test in tests {
            let (file, name) = test.split_once("::").expect("it was found by this");
            let folder = if file.starts_with("src/") {
                ""
            } else {
                "tests/"
            };
            let text =
                fs::read_to_string(root().join(format!("{folder}{file}.rs"))).unwrap_or_default();
            let head = format!("fn {name}(");
            if !text
                .split("#[test]")
                .skip(1)
                .any(|rest| rest.trim_start().starts_with(&head))
            {
                findings.push(page.finding(line, &format!("there is no test {test}")));
            }
        }
    }
    assert!(rows >= 10, "the promises are read, not {rows} rows");
    judge("promises", &findings);
}

/// What stands between `begin` and the next quote or line end after it.
fn after<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    rest.split(['"', '\n']).next()
}

#[test]
fn a_release_has_one_version_everywhere() {
    let places = [
        ("Cargo.toml", "\nversion = \""),
        ("Cargo.lock", "name = \"folio\"\nversion = \""),
        ("Cargo.lock", "name = \"folio-web\"\nversion = \""),
        ("web/package.json", "\"version\": \""),
        ("web/package-lock.json", "\"version\": \""),
        ("web/demo/package.json", "\"version\": \""),
    ];
    let versions = places.map(|(path, begin)| {
        let text = fs::read_to_string(root().join(path)).expect("the file is there");
        let version = after(&text, begin).map(str::to_owned);
        (
            path,
            version.unwrap_or_else(|| panic!("{path} has a version")),
        )
    });
    let (_, version) = &versions[0];
    let differing = versions.iter().filter(|(_, other)| other != version);
    let mut findings: Vec<String> = differing
        .map(|(path, other)| format!("{path}: {other}, not {version}"))
        .collect();
    let changes = fs::read_to_string(root().join("CHANGELOG.md")).expect("the file is there");
    let mut sections = changes.lines().filter_map(|line| line.strip_prefix("## "));
    let (first, second) = (sections.next(), sections.next());
    if first != Some("Unreleased")
        || second.is_none_or(|section| !section.starts_with(&format!("{version} (")))
    {
        findings.push(format!(
            "CHANGELOG.md: {first:?} and {second:?}, not Unreleased and {version}"
        ));
    }
    judge("versions", &findings);
}
