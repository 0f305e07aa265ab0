//! No import cycles between the files and folders of one folder.
//!
//! An import counts for the module that defines the name: a name that a module only re-exports (`pub use part::Name`)
//! counts as an import of that part. Every import connects two siblings, at the first component in which the paths of
//! the two files differ: if `text/answer/tools` imports `text/grammar`, then `answer` imports `grammar`. A module and
//! its own parts are not siblings: a `mod.rs` declares and composes its parts, and they may use what it defines for all
//! of them.

use super::judge;
use super::reader::{Source, expand, imports, places, shipped_code, sources};
use std::collections::{BTreeMap, BTreeSet};

/// A file of `src`, without its tests.
struct File {
    source: Source,
    module: String,
    code: String,
}

/// An import of one sibling by another, and its place in the source.
struct Tie {
    from: String,
    to: String,
    place: String,
}

impl File {
    fn new(source: Source) -> Self {
        Self {
            module: source.module(),
            code: shipped_code(&source),
            source,
        }
    }

    /// Name → path of everything that the file re-exports.
    fn exports(&self) -> BTreeMap<String, String> {
        let mut paths = Vec::new();
        for at in places(&self.code, "use") {
            let line = self.code[..at].rfind('\n').map_or(0, |end| end + 1);
            if self.code[line..at].trim_start().starts_with("pub") {
                expand(&self.code, at + "use".len(), "", &mut paths);
            }
        }
        let name = |path: &String| {
            path.rsplit("::")
                .next()
                .map(str::to_owned)
                .unwrap_or_default()
        };
        paths.into_iter().map(|path| (name(&path), path)).collect()
    }
}

/// The module that defines what `path` names: the longest prefix that is a module, after following re-exports.
fn defined_in(path: &str, exports: &BTreeMap<String, BTreeMap<String, String>>) -> Option<String> {
    let parts: Vec<&str> = path.split("::").collect();
    let length = (1..=parts.len())
        .rev()
        .find(|&length| exports.contains_key(&parts[..length].join("::")))?;
    let module = parts[..length].join("::");
    let Some(target) = parts
        .get(length)
        .and_then(|name| exports[&module].get(*name))
    else {
        return Some(module);
    };
    let target = target.trim_start_matches("self::");
    let inner = target
        .strip_prefix("crate::")
        .map_or_else(|| format!("{module}::{target}"), str::to_owned);
    let is_module = |path: &str| {
        path.rsplit_once("::")
            .is_some_and(|(parent, _)| exports.contains_key(parent))
    };
    if inner != path && is_module(&inner) {
        defined_in(&inner, exports)
    } else {
        Some(module)
    }
}

/// The two siblings that an import connects, or `None` within one file or between a module and its part.
fn neighbours(from: &str, to: &str) -> Option<(String, String)> {
    let (from, to): (Vec<&str>, Vec<&str>) = (from.split("::").collect(), to.split("::").collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let apart = common < from.len() && common < to.len();
    apart.then(|| (from[..=common].join("::"), to[..=common].join("::")))
}

fn ties(files: &[File]) -> Vec<Tie> {
    let exports: BTreeMap<_, _> = files
        .iter()
        .map(|file| (file.module.clone(), file.exports()))
        .collect();
    let mut found = Vec::new();
    for file in files {
        for (line, path) in imports(&file.module, &file.code) {
            let target = defined_in(&path, &exports);
            if let Some((from, to)) = target.and_then(|target| neighbours(&file.module, &target)) {
                let place = file.source.finding(line, &format!("{from} imports {path}"));
                found.push(Tie { from, to, place });
            }
        }
    }
    found
}

/// Everything that `start` imports, directly or indirectly.
fn reach<'a>(start: &'a str, ties: &'a [Tie]) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    while let Some(module) = open.pop() {
        let next = ties
            .iter()
            .filter(|tie| tie.from == module)
            .map(|tie| tie.to.as_str());
        open.extend(next.filter(|to| seen.insert(*to)));
    }
    seen
}

/// The imports that are part of a cycle.
fn circular(ties: &[Tie]) -> Vec<String> {
    let modules: BTreeSet<&str> = ties.iter().map(|tie| tie.from.as_str()).collect();
    let reach: BTreeMap<_, _> = modules
        .into_iter()
        .map(|module| (module, reach(module, ties)))
        .collect();
    let leads_back = |tie: &&Tie| {
        reach
            .get(tie.to.as_str())
            .is_some_and(|reached| reached.contains(tie.from.as_str()))
    };
    ties.iter()
        .filter(leads_back)
        .map(|tie| format!("{}, which closes a cycle", tie.place))
        .collect()
}

#[test]
fn imports_make_no_circles() {
    let files: Vec<File> = sources(&["src"], &["rs"])
        .into_iter()
        .map(File::new)
        .collect();
    judge("circles", &circular(&ties(&files)));
}

#[test]
fn a_planted_circle_is_found() {
    let file = |path: &str, text: &str| {
        File::new(Source {
            path: format!("src/{path}"),
            text: text.to_owned(),
        })
    };
    let files = [
        file(
            "text/mod.rs",
            "mod stream;\npub use stream::{Stream, bytes as raw};\nfn f() { stream::run() }",
        ),
        file(
            "text/stream.rs",
            "use super::answer::Parts;\nuse crate::text::Model;",
        ),
        file(
            "text/answer/mod.rs",
            "mod tools;\npub(crate) use tools::Parts;",
        ),
        file(
            "text/answer/tools.rs",
            "use crate::text::Stream;\nuse super::Form;\n#[cfg(test)]\nuse crate::server;",
        ),
        file("server.rs", "use crate::text::Stream;"),
    ];
    let found = circular(&ties(&files));
    let lines: Vec<_> = found
        .iter()
        .filter_map(|finding| finding.split(": ").next())
        .collect();
    assert_eq!(
        lines,
        ["src/text/stream.rs:1", "src/text/answer/tools.rs:1"],
        "{found:?}"
    );
    assert!(
        circular(&ties(&files[..3])).is_empty(),
        "a parent and its parts are not a cycle"
    );
}
