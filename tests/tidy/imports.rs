//! Which module may import which: the table of modules, the folders that may use certain crates, and no cycles.

use super::judge;
use super::reader::{code, imports, line_of, places, rust, shipped_code, sources};
use std::collections::BTreeSet;

/// Scheduling modules. They are pure, so that a simulator can drive them: no device, clock, thread or randomness.
const PURE: &[&str] = &[
    "engine::adapters",
    "engine::images",
    "engine::scheduler",
    "engine::memory",
    "engine::sequence",
    "engine::speculation",
    "engine::batch",
    "engine::predicted",
    "engine::beams",
    "engine::stats",
];

/// What the memory of sequences may import: it never asks the scheduler anything.
const MEMORY: &[&str] = &[
    "engine::memory",
    "engine::request",
    "plan::inputs",
    "plan::Window",
];

/// Module prefix → prefixes it may import; the longest matching row applies. A module may always import its own parts,
/// unless [`may_import`] says otherwise.
const IMPORTS: &[(&str, &[&str])] = &[
    ("plan", &[]),
    ("platform", &[]),
    // For the time that grammars of clients may take.
    ("text", &["platform"]),
    ("image", &[]),
    ("config", &["plan"]),
    ("model", &["plan", "platform"]),
    ("backend", &["plan", "platform"]),
    (
        "engine",
        &["backend", "config", "model", "plan", "platform"],
    ),
    (
        "server",
        &[
            "engine::handle",
            "engine::request",
            "image",
            "platform",
            "text",
        ],
    ),
    ("selftest", &["backend", "plan", "platform"]),
];

/// Submodule of the server → the submodules that it may import. `local` and `socket` may import all of them.
const ROOMS: &[(&str, &[&str])] = &[
    ("server::wire", &[]),
    ("server::images", &["server::wire"]),
    ("server::counters", &[]),
    ("server::stored", &[]),
    ("server::traces", &[]),
    (
        "server::state",
        &[
            "server::counters",
            "server::images",
            "server::stored",
            "server::traces",
            "server::wire",
        ],
    ),
    (
        "server::guards",
        &["server::state", "server::traces", "server::wire"],
    ),
    (
        "server::parameters",
        &[
            "server::guards",
            "server::images",
            "server::state",
            "server::traces",
            "server::wire",
        ],
    ),
    (
        "server::reply",
        &[
            "server::counters",
            "server::images",
            "server::parameters",
            "server::state",
            "server::stored",
            "server::traces",
            "server::wire",
        ],
    ),
    (
        "server::routes",
        &[
            "server::counters",
            "server::guards",
            "server::images",
            "server::parameters",
            "server::reply",
            "server::state",
            "server::stored",
            "server::wire",
        ],
    ),
];

/// Crate → folders that may use it.
const CRATES: &[(&str, &[&str])] = &[
    ("wgpu", &["src/backend/wgpu/"]),
    ("cudarc", &["src/backend/cuda/"]),
    ("axum", &["src/server/", "tests/"]),
    ("tokio", &["src/server/", "src/cli/", "tests/", "benches/"]),
    (
        "ureq",
        &[
            "src/cli/hub/",
            "src/cli/remote.rs",
            "src/cli/commands/serve/traces.rs",
        ],
    ),
];

pub(crate) fn within(path: &str, prefix: &str) -> bool {
    path == prefix
        || path
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with("::"))
}

/// Applies the import table and three rules that a table of prefixes cannot express: scheduling is pure, memory knows
/// no scheduler, and only the command line and tests name a concrete backend.
fn may_import(module: &str, path: &str, backends: &[String]) -> bool {
    if within(module, "engine::memory") {
        return MEMORY.iter().any(|&allowed| within(path, allowed));
    }
    if PURE.iter().any(|&pure| within(module, pure)) {
        let known = [
            "config",
            "plan::inputs",
            "plan::Tail",
            "plan::Window",
            "engine::request",
        ];
        return PURE
            .iter()
            .chain(&known)
            .any(|&allowed| within(path, allowed));
    }
    if let Some(backend) = backends.iter().find(|&backend| within(path, backend)) {
        return within(module, backend) || within(module, "selftest");
    }
    if let Some((room, known)) = ROOMS
        .iter()
        .find(|(room, _)| within(module, room) && within(path, "server"))
    {
        return within(path, room) || known.iter().any(|&known| within(path, known));
    }
    let top = module.split("::").next().expect("a path has a first part");
    let Some((_, allowed)) = IMPORTS.iter().find(|(prefix, _)| *prefix == top) else {
        return true;
    };
    within(path, top) || allowed.iter().any(|&prefix| within(path, prefix))
}

/// Modules of `src/backend` that are not backends: checks for those in host memory, buffer sizes, the length of
/// submissions, typical batches, the kernels of a
/// recurrence, and the batch format for GPUs.
const SHARED: [&str; 6] = [
    "backend::host",
    "backend::layout",
    "backend::metadata",
    "backend::scan_shape",
    "backend::throttle",
    "backend::warm_up",
];

/// `backend::reference`, `backend::wgpu`, …: read from the folder `src/backend`, so that a new backend is included.
fn backends() -> Vec<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    for source in sources(&["src/backend"], &["rs"]) {
        let module = source.module();
        if let Some(name) = module
            .strip_prefix("backend::")
            .and_then(|rest| rest.split("::").next())
        {
            found.insert(format!("backend::{name}"));
        }
    }
    found
        .into_iter()
        .filter(|module| !SHARED.contains(&module.as_str()))
        .collect()
}

#[test]
fn imports_follow_the_table() {
    let backends = backends();
    let mut findings = Vec::new();
    for source in sources(&["src"], &["rs"]) {
        let (module, text) = (source.module(), shipped_code(&source));
        if module == "main" || module == "lib" || module.starts_with("cli") {
            continue;
        }
        for (line, path) in imports(&module, &text) {
            if !may_import(&module, &path, &backends) {
                findings.push(source.finding(line, &format!("{module} may not import {path}")));
            }
        }
    }
    judge("imports", &findings);
}

#[test]
fn scheduling_is_pure() {
    let mut findings = Vec::new();
    for source in sources(&["src/engine"], &["rs"]) {
        let module = source.module();
        if !PURE.iter().any(|&pure| within(&module, pure)) {
            continue;
        }
        let text = shipped_code(&source);
        for word in [
            "Instant",
            "SystemTime",
            "std::thread",
            "rand",
            "getrandom",
            "async",
            "platform",
        ] {
            let hits = places(&text, word).into_iter();
            findings.extend(hits.map(|at| {
                source.finding(line_of(&text, at), &format!("scheduling knows no `{word}`"))
            }));
        }
    }
    judge("purity", &findings);
}

#[test]
fn crates_stay_in_their_folders() {
    let mut findings = Vec::new();
    for source in rust() {
        let text = code(&source.text);
        for (name, folders) in CRATES {
            if folders
                .iter()
                .any(|&folder| source.path.starts_with(folder))
            {
                continue;
            }
            for at in places(&text, name) {
                let statement = text[..at].rfind([';', '}']).map_or(0, |end| end + 1);
                let in_use = text[statement..at]
                    .trim_start()
                    .trim_start_matches("pub ")
                    .starts_with("use ");
                let in_path =
                    text[..at].ends_with("::") || in_use && text[statement..at].contains("::");
                let names_it = text[at + name.len()..].starts_with("::") || in_use;
                if names_it && !in_path {
                    let message =
                        format!("the crate {name} is named only in {}", folders.join(", "));
                    findings.push(source.finding(line_of(&text, at), &message));
                }
            }
        }
    }
    judge("crates", &findings);
}

#[test]
fn targets_and_features_are_named_where_they_belong() {
    let mut findings = Vec::new();
    for source in sources(&["src"], &["rs"]) {
        let text = code(&source.text);
        let may = [
            "src/platform/",
            "src/backend/wgpu/",
            "src/backend/cpu/simd/",
        ];
        let target_may = may.iter().any(|folder| source.path.starts_with(folder));
        for at in places(&text, "target_arch")
            .into_iter()
            .filter(|_| !target_may)
        {
            findings.push(source.finding(
                line_of(&text, at),
                "target_arch is for platform/, backend/wgpu, backend/cpu/simd and web",
            ));
        }
        let module = source.module();
        let bare = ["model", "plan", "engine"]
            .iter()
            .any(|&top| within(&module, top));
        for at in places(&text, "feature =").into_iter().filter(|_| bare) {
            findings.push(source.finding(
                line_of(&text, at),
                "model, plan and engine have no cfg(feature)",
            ));
        }
    }
    judge("targets", &findings);
}

/// What is done in one file only, by the code that does it.
const ONE_FILE: &[(&str, &str)] = &[
    ("pool.release(", "src/engine/memory/blocks.rs"),
    ("restores.push(", "src/engine/memory/host_moves.rs"),
];

#[test]
fn blocks_are_freed_and_restored_in_one_file_each() {
    let mut findings = Vec::new();
    for &(call, file) in ONE_FILE {
        let mut users = Vec::new();
        for source in sources(&["src/engine"], &["rs"]) {
            if shipped_code(&source).contains(call) {
                users.push(source.path.clone());
            }
        }
        if users != [file] {
            findings.push(format!(
                "`{call}` is in {users:?}, and belongs to {file} alone"
            ));
        }
    }
    judge("one file", &findings);
}

#[test]
fn the_table_says_no() {
    let backends = ["backend::reference".to_owned(), "backend::wgpu".to_owned()];
    let may = |module, path| may_import(module, path, &backends);
    assert!(
        may("engine", "backend::Backend") && may("engine::scheduler", "engine::memory::BlockPool")
    );
    assert!(
        may("server::routes::chat", "server::reply::respond")
            && may("server::guards::access", "server::state")
    );
    assert!(
        !may("server::reply::openai", "server::routes::chat")
            && !may("server::wire::json", "server::state")
    );
    assert!(
        !may("server::parameters::tools", "server::reply")
            && !may("text::answer", "server::wire::error")
    );
    assert!(
        may("model::decoder", "plan::Step") && may("server::chat", "engine::handle::EngineHandle")
    );
    assert!(
        !may("engine", "backend::reference::ReferenceBackend")
            && !may("engine::scheduler", "platform::Instant")
    );
    assert!(
        !may("engine::memory::blocks", "engine::scheduler::Limits")
            && !may("engine::memory::holding", "engine::sequence::Sequence")
    );
    assert!(
        !may("engine::scheduler", "engine::handle::EngineHandle")
            && !may("server::chat", "engine::Engine")
    );
    assert!(
        !may("plan", "model::Model")
            && !may("text", "config::Config")
            && !may("backend::reference", "backend::wgpu::x")
    );
}
