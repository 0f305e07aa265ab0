//! The house rules, executed: who may import whom, one stem a kernel, lengths, and the calls that do not belong here.
//!
//! Rules read the source text with strings and comments blanked out ([`code`]), so a word in prose never counts. An
//! exemption names one rule and one file; one that is no longer needed fails, so the list can only shrink.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// `(rule, file)` pairs that may break the rule for now.
const EXEMPTIONS: &[(&str, &str)] = &[];
/// The list above never grows beyond this; lower it whenever the list gets shorter.
const EXEMPTIONS_MAX: usize = 0;

const FUNCTION_LINES_MAX: usize = 70;
const RUST_LINES_MAX: usize = 700;
const WGSL_LINES_MAX: usize = 250;
const CUDA_LINES_MAX: usize = 400;
const WIDTH_MAX: usize = 120;

/// Modules that schedule: pure, so that a simulator can drive them. They know no device, clock, thread or randomness.
const PURE: &[&str] =
    &["engine::scheduler", "engine::block_pool", "engine::sequence", "engine::batch", "engine::faults"];

/// Module prefix → prefixes it may import, the longest matching row counts. A module may always import its own parts,
/// unless [`may_import`] says otherwise.
const IMPORTS: &[(&str, &[&str])] = &[
    ("plan", &[]),
    ("platform", &[]),
    ("text", &[]),
    ("config", &["plan"]),
    ("model", &["plan", "platform"]),
    ("backend", &["plan", "platform"]),
    ("engine", &["backend", "config", "model", "plan", "platform"]),
    ("server", &["engine::handle", "engine::request", "platform", "text"]),
    ("selftest", &["backend", "plan", "platform"]),
];

/// Crate → folders that may name it.
const CRATES: &[(&str, &[&str])] = &[
    ("wgpu", &["src/backend/wgpu/"]),
    ("cudarc", &["src/backend/cuda/"]),
    ("axum", &["src/server/", "tests/"]),
    ("tokio", &["src/server/", "src/cli/", "tests/", "benches/"]),
    ("ureq", &["src/cli/hub/"]),
];

/// Folders that are built or installed, and no part of the repository.
const BUILT: &[&str] = &["web/dist", "web/node_modules", "web/bindgen/target"];

struct Source {
    /// Relative to the repository, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// `src/engine/mod.rs` → `engine`, `src/engine/request.rs` → `engine::request`.
    fn module(&self) -> String {
        let path = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        path.trim_end_matches("/mod").replace('/', "::")
    }

    fn finding(&self, line: usize, message: &str) -> String {
        format!("{}:{line}: {message}", self.path)
    }
}

fn collect(folder: &Path, extensions: &[&str], out: &mut Vec<Source>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("a folder of the repository lists").path();
        if path.is_dir() && BUILT.iter().any(|built| path.ends_with(built)) {
            continue;
        }
        if path.is_dir() {
            collect(&path, extensions, out);
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|&known| extension == known)) {
            let text = fs::read_to_string(&path).expect("a source file is UTF-8");
            let relative = path.strip_prefix(root).expect("the file lies in the repository");
            out.push(Source { path: relative.to_string_lossy().replace('\\', "/"), text });
        }
    }
}

/// Files with one of the extensions below these folders, in order of path.
fn sources(folders: &[&str], extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    for folder in folders {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), extensions, &mut found);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "{folders:?} hold no {extensions:?} files: this test reads the wrong place");
    found
}

fn rust() -> Vec<Source> {
    sources(&["src", "tests", "benches", "web"], &["rs"])
}

/// Fails with all findings, but for exempted files; fails too for an exemption that nothing needs.
fn judge(rule: &str, findings: Vec<String>) {
    let exempt: Vec<&str> = EXEMPTIONS.iter().filter(|(name, _)| *name == rule).map(|(_, file)| *file).collect();
    let covers = |file: &str, finding: &String| finding.starts_with(&format!("{file}:"));
    for file in &exempt {
        let needed = findings.iter().any(|finding| covers(file, finding));
        assert!(needed, "{file} no longer breaks `{rule}`: take it off EXEMPTIONS and lower EXEMPTIONS_MAX");
    }
    let kept: Vec<String> =
        findings.into_iter().filter(|finding| !exempt.iter().any(|file| covers(file, finding))).collect();
    let mut message = String::new();
    for finding in &kept {
        write!(message, "\n  {finding}").expect("a string takes text");
    }
    assert!(kept.is_empty(), "{rule}: {} findings{message}", kept.len());
}

/// The end of a quoted literal that starts at `at` (raw strings too), or `None` if none starts there.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes_at = |from: usize| bytes[from..].iter().take_while(|&&byte| byte == b'#').count();
    let before = at.checked_sub(1).map_or(b' ', |index| bytes[index]);
    if bytes[at] == b'r' && !before.is_ascii_alphanumeric() && before != b'_' || bytes[at..].starts_with(b"br") {
        let open = at + bytes[at..].iter().position(|&byte| byte == b'r').expect("the prefix has an r") + 1;
        let hashes = hashes_at(open);
        if bytes.get(open + hashes) == Some(&b'"') {
            let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
            let body = open + hashes + 1;
            let length = bytes[body..].windows(close.len()).position(|window| window == close);
            return Some(length.map_or(bytes.len(), |length| body + length + close.len()));
        }
    }
    let quote = bytes[at];
    let character = quote == b'\'' && (bytes.get(at + 1) == Some(&b'\\') || is_char(&bytes[at + 1..]));
    if quote != b'"' && !character {
        return None;
    }
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != quote {
        end += 1 + usize::from(bytes[end] == b'\\');
    }
    Some((end + 1).min(bytes.len()))
}

/// `x'` or any one UTF-8 character before a quote: a char literal and not a lifetime.
fn is_char(rest: &[u8]) -> bool {
    let width = rest.iter().skip(1).take_while(|&&byte| byte & 0xC0 == 0x80).count() + 1;
    rest.first().is_some_and(|&byte| byte != b'\'') && rest.get(width) == Some(&b'\'')
}

fn comment_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes[at..].starts_with(b"//") {
        return Some(bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length));
    }
    if !bytes[at..].starts_with(b"/*") {
        return None;
    }
    let (mut depth, mut end) = (1, at + 2);
    while depth > 0 && end < bytes.len() {
        if bytes[end..].starts_with(b"/*") {
            (depth, end) = (depth + 1, end + 2);
        } else if bytes[end..].starts_with(b"*/") {
            (depth, end) = (depth - 1, end + 2);
        } else {
            end += 1;
        }
    }
    Some(end)
}

/// The text with comments and the insides of literals replaced by spaces; every byte keeps its place and its line.
fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut blank = |range: std::ops::Range<usize>| {
        for byte in &mut out[range] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    };
    let mut at = 0;
    while at < bytes.len() {
        if let Some(end) = comment_end(bytes, at) {
            blank(at..end);
            at = end;
        } else if let Some(end) = literal_end(bytes, at) {
            blank(at + 1..end.saturating_sub(1).max(at + 1));
            at = end;
        } else {
            if !bytes[at].is_ascii() {
                blank(at..at + 1);
            }
            at += 1;
        }
    }
    String::from_utf8(out).expect("only ASCII is left")
}

/// The end of the item that starts at `from`: its matching brace, or a `;` before any brace.
fn item_end(code: &str, from: usize) -> usize {
    let (mut braces, mut others) = (0_i32, 0_i32);
    for (index, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => others += 1,
            b')' | b']' => others -= 1,
            b'{' => braces += 1,
            b'}' => braces -= 1,
            _ => {}
        }
        if others == 0 && braces == 0 && matches!(byte, b';' | b'}') {
            return index + 1;
        }
    }
    code.len()
}

/// [`code`] without items under `#[cfg(test)]`: what ships. Nothing of a `tests.rs` does: its parent includes it so.
fn shipped_code(source: &Source) -> String {
    if source.path.ends_with("/tests.rs") || source.path.starts_with("tests/") {
        String::new()
    } else {
        shipped(&source.text)
    }
}

fn shipped(text: &str) -> String {
    let mut out = code(text);
    while let Some(start) = out.find("#[cfg(test)]") {
        let end = item_end(&out, start + "#[cfg(test)]".len());
        let blanked: String = out[start..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        out.replace_range(start..end, &blanked);
    }
    out
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Places of `word` where neither side continues an identifier.
fn places(code: &str, word: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    let whole = |at: &usize| {
        let open = *at == 0 || !is_word(bytes[at - 1]) || !is_word(word.as_bytes()[0]);
        let end = at + word.len();
        open && (end >= bytes.len() || !is_word(bytes[end]) || !is_word(bytes[end - 1]))
    };
    code.match_indices(word).map(|(at, _)| at).filter(whole).collect()
}

/// `(name, first line, lines)` of every function with a body.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for at in places(code, "fn") {
        let name: String = code[at + 2..].trim_start().bytes().take_while(|&b| is_word(b)).map(char::from).collect();
        let end = item_end(code, at);
        if !name.is_empty() && code[..end].ends_with('}') {
            found.push((name, line_of(code, at), code[at..end].matches('\n').count() + 1));
        }
    }
    found
}

/// Every path that starts at `at` with `prefix` already read, use-groups expanded: `{a::b, c}` gives two.
fn expand(code: &str, at: usize, prefix: &str, out: &mut Vec<String>) -> usize {
    let bytes = code.as_bytes();
    let skip = |mut at: usize| {
        while at < bytes.len() && bytes[at].is_ascii_whitespace() {
            at += 1;
        }
        at
    };
    let mut at = skip(at);
    if bytes.get(at) == Some(&b'{') {
        at = skip(at + 1);
        while at < bytes.len() && bytes[at] != b'}' {
            at = skip(expand(code, at, prefix, out));
            at = skip(at + usize::from(bytes.get(at) == Some(&b',')));
        }
        return at + 1;
    }
    let end = at + code[at..].bytes().take_while(|&byte| is_word(byte)).count();
    let path = if prefix.is_empty() { code[at..end].to_owned() } else { format!("{prefix}::{}", &code[at..end]) };
    if code[end..].starts_with("::") {
        return expand(code, end + 2, &path, out);
    }
    out.push(path);
    let rest = code[end..].trim_start();
    let renamed = rest.strip_prefix("as ").map_or(0, |name| name.bytes().take_while(|&byte| is_word(byte)).count() + 4);
    (end + renamed).max(at + 1)
}

/// `(line, path)` of everything of ours that a file names, as `engine::request::Event`.
fn imports(module: &str, code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in places(code, "crate") {
        let mut paths = Vec::new();
        if code[at..].starts_with("crate::") {
            expand(code, at + "crate::".len(), "", &mut paths);
        }
        found.extend(paths.into_iter().map(|path| (line_of(code, at), path)));
    }
    for at in places(code, "super") {
        let chained = code[..at].ends_with("super::") || !code[at..].starts_with("super::");
        if chained {
            continue;
        }
        let ups = code[at..].split("::").take_while(|&part| part == "super").count();
        let parts: Vec<&str> = module.split("::").collect();
        let parent = parts[..parts.len().saturating_sub(ups)].join("::");
        let mut paths = Vec::new();
        expand(code, at + "super::".len() * ups, &parent, &mut paths);
        found.extend(paths.into_iter().map(|path| (line_of(code, at), path)));
    }
    found
}

fn within(path: &str, prefix: &str) -> bool {
    path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with("::"))
}

/// The import table, with the two rules a table of prefixes cannot say: scheduling is pure, and only the command line
/// and checks name a concrete backend.
fn may_import(module: &str, path: &str, backends: &[String]) -> bool {
    if PURE.iter().any(|&pure| within(module, pure)) {
        let known = ["config", "plan::inputs", "plan::Tail", "engine::request"];
        return PURE.iter().chain(&known).any(|&allowed| within(path, allowed));
    }
    if let Some(backend) = backends.iter().find(|&backend| within(path, backend)) {
        return within(module, backend) || within(module, "selftest");
    }
    let top = module.split("::").next().expect("a path has a first part");
    let Some((_, allowed)) = IMPORTS.iter().find(|(prefix, _)| *prefix == top) else { return true };
    within(path, top) || allowed.iter().any(|&prefix| within(path, prefix))
}

/// What lies in `src/backend` and is no backend: the form in which GPUs get a batch.
const SHARED: &str = "backend::words";

/// `backend::cpu`, `backend::wgpu`, …: what lies in `src/backend`, read from the folder so that a new one is known.
fn backends() -> Vec<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    for source in sources(&["src/backend"], &["rs"]) {
        let module = source.module();
        if let Some(name) = module.strip_prefix("backend::").and_then(|rest| rest.split("::").next()) {
            found.insert(format!("backend::{name}"));
        }
    }
    found.remove(SHARED);
    found.into_iter().collect()
}

/// Names of the steps in snake case, from the enum itself.
fn step_stems() -> Vec<String> {
    let plan = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/plan/mod.rs"))
        .expect("src/plan/mod.rs defines the steps");
    let plan = code(&plan);
    let start = plan.find("pub enum Step {").expect("Step is an enum of src/plan/mod.rs");
    let body = &plan[start..item_end(&plan, start)];
    let variant = |line: &str| {
        let name: String = line.strip_prefix("    ")?.bytes().take_while(|&b| is_word(b)).map(char::from).collect();
        name.starts_with(char::is_uppercase).then_some(name)
    };
    body.lines().filter_map(variant).map(|name| snake_case(&name)).collect()
}

/// `RopeStoreKv` → `rope_store_kv`; a matrix product is one word in file names.
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
    judge("imports", findings);
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
        for word in ["Instant", "SystemTime", "std::thread", "rand", "getrandom", "async", "platform"] {
            let hits = places(&text, word).into_iter();
            findings
                .extend(hits.map(|at| source.finding(line_of(&text, at), &format!("scheduling knows no `{word}`"))));
        }
    }
    judge("purity", findings);
}

#[test]
fn crates_stay_in_their_folders() {
    let mut findings = Vec::new();
    for source in rust() {
        let text = code(&source.text);
        for (name, folders) in CRATES {
            if folders.iter().any(|&folder| source.path.starts_with(folder)) {
                continue;
            }
            for at in places(&text, name) {
                let statement = text[..at].rfind([';', '}']).map_or(0, |end| end + 1);
                let in_use = text[statement..at].trim_start().trim_start_matches("pub ").starts_with("use ");
                let in_path = text[..at].ends_with("::") || in_use && text[statement..at].contains("::");
                let names_it = text[at + name.len()..].starts_with("::") || in_use;
                if names_it && !in_path {
                    let message = format!("the crate {name} is named only in {}", folders.join(", "));
                    findings.push(source.finding(line_of(&text, at), &message));
                }
            }
        }
    }
    judge("crates", findings);
}

#[test]
fn targets_and_features_are_named_where_they_belong() {
    let mut findings = Vec::new();
    for source in sources(&["src"], &["rs"]) {
        let text = code(&source.text);
        let target_may = source.path == "src/platform.rs" || source.path.starts_with("src/backend/wgpu/");
        for at in places(&text, "target_arch").into_iter().filter(|_| !target_may) {
            findings.push(source.finding(line_of(&text, at), "target_arch is for platform.rs, backend/wgpu and web"));
        }
        let module = source.module();
        let bare = ["model", "plan", "engine"].iter().any(|&top| within(&module, top));
        for at in places(&text, "feature =").into_iter().filter(|_| bare) {
            findings.push(source.finding(line_of(&text, at), "model, plan and engine have no cfg(feature)"));
        }
    }
    judge("targets", findings);
}

#[test]
fn every_step_has_its_files_and_every_shader_its_step() {
    let stems = step_stems();
    assert!(stems.contains(&"rope_store_kv".to_owned()), "the steps are read from the enum: {stems:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_step = |kernel: &str, stem: &str| kernel == stem || kernel.starts_with(&format!("{stem}_"));
    let mut findings = Vec::new();
    for stem in &stems {
        if !root.join(format!("src/backend/cpu/{stem}.rs")).exists() {
            findings.push(format!("src/backend/cpu/{stem}.rs:1: the step {stem} has no twin"));
        }
    }
    for (folder, extension) in [("shaders", "wgsl"), ("cuda", "cu")] {
        let kernels: Vec<String> = fs::read_dir(root.join(folder))
            .expect("the folder holds kernels")
            .map(|entry| entry.expect("the folder lists").file_name().to_string_lossy().into_owned())
            .filter_map(|name| name.strip_suffix(&format!(".{extension}")).map(str::to_owned))
            .filter(|stem| !stem.starts_with("bench_"))
            .collect();
        for stem in stems.iter().filter(|stem| !kernels.iter().any(|kernel| of_step(kernel, stem))) {
            findings.push(format!("{folder}/{stem}.{extension}:1: the step {stem} has no kernel"));
        }
        for kernel in kernels.iter().filter(|kernel| !stems.iter().any(|stem| of_step(kernel, stem))) {
            findings.push(format!("{folder}/{kernel}.{extension}:1: no step has this stem"));
        }
    }
    judge("stems", findings);
}

#[test]
fn functions_and_files_are_short() {
    let mut findings = Vec::new();
    for source in rust() {
        let lines = source.text.lines().count();
        if lines > RUST_LINES_MAX {
            findings.push(source.finding(lines, &format!("the file has {lines} lines of at most {RUST_LINES_MAX}")));
        }
        for (name, line, lines) in functions(&code(&source.text)) {
            if lines > FUNCTION_LINES_MAX {
                findings.push(source.finding(line, &format!("{name} has {lines} lines of {FUNCTION_LINES_MAX}")));
            }
        }
    }
    for source in sources(&["shaders", "src"], &["wgsl", "rs"]).iter().filter(|file| file.path.ends_with(".wgsl")) {
        let lines = source.text.lines().count();
        if lines > WGSL_LINES_MAX {
            findings.push(source.finding(lines, &format!("the file has {lines} lines of at most {WGSL_LINES_MAX}")));
        }
    }
    for source in sources(&["cuda"], &["cu", "cuh", "h"]) {
        let lines = source.text.lines().count();
        if lines > CUDA_LINES_MAX && !source.path.starts_with("cuda/host/") {
            findings.push(source.finding(lines, &format!("the file has {lines} lines of at most {CUDA_LINES_MAX}")));
        }
    }
    judge("length", findings);
}

/// A kernel says what has been proven of it: a GPU that it ran on, or that it has not run on one yet.
#[test]
fn cuda_kernels_say_where_they_have_run() {
    let kernels = sources(&["cuda"], &["cu"]);
    let says = |source: &&Source| {
        let header = source.text.split("\n\n").next().unwrap_or_default().replace("\n// ", " ");
        header.contains("not yet run on a GPU") || header.contains("Run on ")
    };
    let findings = kernels.iter().filter(|source| !says(source));
    judge("proof", findings.map(|source| source.finding(1, "its header does not say where it has run")).collect());
}

#[test]
fn lines_are_narrow_and_clean() {
    let mut findings = Vec::new();
    for source in sources(
        &["src", "tests", "benches", "cuda", "shaders", "web", ".ci"],
        &["rs", "cu", "cuh", "h", "wgsl", "ts", "mjs", "js", "css"],
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
    judge("width", findings);
}

#[test]
fn nothing_is_left_undone() {
    let banned = [
        ("todo!", "build it, or refuse it by name"),
        ("unimplemented!", "build it, or refuse it by name"),
        ("dbg!", "use tracing"),
        ("#[ignore", "a test runs or does not exist"),
        ("#[should_panic", "check the message: std::panic::catch_unwind, or return an error"),
    ];
    let mut findings = Vec::new();
    for source in rust() {
        let text = code(&source.text);
        for (call, instead) in banned {
            let hits = text.match_indices(call);
            findings.extend(hits.map(|(at, _)| source.finding(line_of(&text, at), &format!("{call}: {instead}"))));
        }
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
            let hits = places(&source.text, word).into_iter();
            findings.extend(hits.map(|at| source.finding(line_of(&source.text, at), "a note left over")));
        }
    }
    judge("undone", findings);
}

#[test]
fn panics_state_the_truth_they_rest_on() {
    let mut findings = Vec::new();
    for source in sources(&["src", "web"], &["rs"]) {
        let text = shipped_code(&source);
        for (at, _) in text.match_indices(".unwrap()") {
            findings.push(source.finding(line_of(&text, at), "unwrap: return an error, or expect a stated truth"));
        }
        for (at, call) in text.match_indices(".expect(") {
            let argument = source.text[at + call.len()..].trim_start();
            let words = argument.trim_start_matches('"').split('"').next().unwrap_or_default().split(' ').count();
            if argument.starts_with('"') && words < 3 {
                findings.push(source.finding(line_of(&text, at), "an expect states a truth in a few words"));
            }
        }
    }
    judge("panics", findings);
}

#[test]
fn unsafe_stays_below_the_backends() {
    let mut findings = Vec::new();
    for source in sources(&["src"], &["rs"]) {
        let text = code(&source.text);
        if source.path.starts_with("src/backend/") || source.path == "src/platform.rs" {
            continue;
        }
        for at in places(&text, "unsafe") {
            findings.push(source.finding(line_of(&text, at), "unsafe is for backend/ and platform.rs"));
        }
    }
    judge("unsafe", findings);
}

#[test]
fn every_module_opens_with_its_essay() {
    let open = |source: &&Source| source.text.starts_with("//!") || source.path == "src/lib.rs";
    let sources = rust();
    let findings = sources.iter().filter(|source| !open(source)).map(|source| source.finding(1, "no `//!` opens it"));
    judge("essay", findings.collect());
}

#[test]
fn no_file_knows_a_machine() {
    let private = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/tm", "p/")];
    let folders = ["src", "tests", "benches", "cuda", "shaders", "web", "assets", ".ci"];
    let mut files = sources(&folders, &["rs", "cu", "cuh", "h", "wgsl", "md", "py", "js", "mjs", "ts", "html"]);
    for name in ["README.md", "Cargo.toml", "deny.toml", ".ci/run"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
        files.push(Source { path: name.to_owned(), text: text.expect("the file is part of the repository") });
    }
    let mut findings = Vec::new();
    for source in &files {
        for (index, line) in source.text.lines().enumerate() {
            if private.iter().any(|path| line.contains(path)) {
                findings.push(source.finding(index + 1, "a path of one machine"));
            }
        }
    }
    judge("machine", findings);
}

#[test]
fn exemptions_only_shrink() {
    assert_eq!(EXEMPTIONS.len(), EXEMPTIONS_MAX, "a new exemption is not the way: make the file keep the rule");
    let rules = ["imports", "purity", "crates", "targets", "stems", "length", "width", "undone", "panics", "unsafe"];
    for (rule, file) in EXEMPTIONS {
        assert!(rules.contains(rule), "{file} is exempt from `{rule}`, which is no rule");
    }
}

/// The reader of these rules is itself checked on planted faults: a rule that cannot fail proves nothing.
#[test]
fn the_reader_sees_what_it_must() {
    let text = "use crate::{backend::cpu::CpuBackend, plan as p};\n// crate::server\n\
                let s = \"crate::text\"; let c = '\"';\n\
                fn f<'a>() {\n  super::handle::go(r#\"}\"#);\n}\n\
                #[cfg(test)]\nmod tests { fn g() { x.unwrap() } }\n";
    let shipped = shipped(text);
    assert_eq!(shipped.len(), text.len(), "every byte keeps its place");
    let found: Vec<String> = imports("engine::batch", &shipped).into_iter().map(|(_, path)| path).collect();
    assert_eq!(found, ["backend::cpu::CpuBackend", "plan", "engine::handle::go"]);
    assert_eq!(functions(&shipped), [("f".to_owned(), 4, 3)]);
    assert!(!shipped.contains("unwrap"), "tests are not shipped");

    let backends = ["backend::cpu".to_owned(), "backend::wgpu".to_owned()];
    let may = |module, path| may_import(module, path, &backends);
    assert!(may("engine", "backend::Backend") && may("engine::scheduler", "engine::block_pool::BlockPool"));
    assert!(may("model::decoder", "plan::Step") && may("server::chat", "engine::handle::EngineHandle"));
    assert!(!may("engine", "backend::cpu::CpuBackend") && !may("engine::scheduler", "platform::Instant"));
    assert!(!may("engine::scheduler", "engine::handle::EngineHandle") && !may("server::chat", "engine::Engine"));
    assert!(!may("plan", "model::Model") && !may("text", "config::Config") && !may("backend::cpu", "backend::wgpu::x"));
    assert_eq!(snake_case("RopeStoreKv"), "rope_store_kv");
    assert_eq!(snake_case("MatMul"), "matmul");
}
