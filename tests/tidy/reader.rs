//! Reads the repository's files and parses as much Rust as the rules need: blanks comments and literals, finds
//! functions with their lengths, and lists the paths that a file imports.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Folders with build outputs or installed packages, which are not part of the repository.
const BUILT: &[&str] = &[
    "web/bindgen/target",
    "web/demo/folio-web-demo",
    "web/dist",
    "web/node_modules",
    "web/site",
    "web/test/bundlers/.next",
    "web/test/bundlers/node_modules",
];

/// Root folder of the repository.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors()
        .nth(2)
        .expect("it is tests/tidy of the repository")
        .to_owned()
}

pub(crate) struct Source {
    /// Path relative to the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// `src/engine/mod.rs` → `engine`, `src/engine/request.rs` → `engine::request`.
    pub(crate) fn module(&self) -> String {
        let path = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        path.trim_end_matches("/mod").replace('/', "::")
    }

    pub(crate) fn finding(&self, line: usize, message: &str) -> String {
        format!("{}:{line}: {message}", self.path)
    }
}

fn collect(folder: &Path, extensions: &[&str], out: &mut Vec<Source>) {
    let known = |path: &Path| {
        let extension = path.extension().unwrap_or_default();
        extensions.iter().any(|&known| extension == known)
    };
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("a folder of the repository lists").path();
        if path.is_dir() && BUILT.iter().any(|built| path.ends_with(built)) {
            continue;
        }
        if path.is_dir() {
            collect(&path, extensions, out);
        } else if known(&path) {
            let text = fs::read_to_string(&path).expect("a source file is UTF-8");
            let relative = path
                .strip_prefix(root())
                .expect("the file lies in the repository");
            out.push(Source {
                path: relative.to_string_lossy().replace('\\', "/"),
                text,
            });
        }
    }
}

/// Files with one of the extensions below these folders, sorted by path. The extension "" means a file without one,
/// such as a script.
pub(crate) fn sources(folders: &[&str], extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    for folder in folders {
        collect(&root().join(folder), extensions, &mut found);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(
        !found.is_empty(),
        "{folders:?} hold no {extensions:?} files: this test reads the wrong place"
    );
    found
}

pub(crate) fn rust() -> Vec<Source> {
    sources(&["src", "tests", "benches", "web"], &["rs"])
}

/// The end of a quoted literal that starts at `at` (raw strings too), or `None` if none starts there.
pub(crate) fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes_at = |from: usize| {
        bytes[from..]
            .iter()
            .take_while(|&&byte| byte == b'#')
            .count()
    };
    let before = at.checked_sub(1).map_or(b' ', |index| bytes[index]);
    if bytes[at] == b'r' && !before.is_ascii_alphanumeric() && before != b'_'
        || bytes[at..].starts_with(b"br")
    {
        let open = at
            + bytes[at..]
                .iter()
                .position(|&byte| byte == b'r')
                .expect("the prefix has an r")
            + 1;
        let hashes = hashes_at(open);
        if bytes.get(open + hashes) == Some(&b'"') {
            let close: Vec<u8> = std::iter::once(b'"')
                .chain(std::iter::repeat_n(b'#', hashes))
                .collect();
            let body = open + hashes + 1;
            let length = bytes[body..]
                .windows(close.len())
                .position(|window| window == close);
            return Some(length.map_or(bytes.len(), |length| body + length + close.len()));
        }
    }
    let quote = bytes[at];
    let character =
        quote == b'\'' && (bytes.get(at + 1) == Some(&b'\\') || is_char(&bytes[at + 1..]));
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
    let width = rest
        .iter()
        .skip(1)
        .take_while(|&&byte| byte & 0xC0 == 0x80)
        .count()
        + 1;
    rest.first().is_some_and(|&byte| byte != b'\'') && rest.get(width) == Some(&b'\'')
}

fn comment_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes[at..].starts_with(b"//") {
        return Some(
            bytes[at..]
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(bytes.len(), |length| at + length),
        );
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

/// The text with comments and the content of literals replaced by spaces. Offsets and lines stay the same.
pub(crate) fn code(text: &str) -> String {
    blanked(text, true)
}

/// The text with comments replaced by spaces.
pub(crate) fn uncommented(text: &str) -> String {
    blanked(text, false)
}

fn blanked(text: &str, literals: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut blank = |range: Range<usize>| {
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
            if literals {
                blank(at + 1..end.saturating_sub(1).max(at + 1));
            }
            at = end;
        } else {
            if literals && !bytes[at].is_ascii() {
                blank(at..at + 1);
            }
            at += 1;
        }
    }
    String::from_utf8(out).expect("whole characters are blanked or kept")
}

/// The end of the item that starts at `from`: its matching brace, or a `;` before any brace.
pub(crate) fn item_end(code: &str, from: usize) -> usize {
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

/// [`code`] without items under `#[cfg(test)]`. Empty for a `tests.rs`, because its parent includes it only for tests.
pub(crate) fn shipped_code(source: &Source) -> String {
    if source.path.ends_with("/tests.rs") || source.path.contains("tests/") {
        String::new()
    } else {
        shipped(&source.text)
    }
}

pub(crate) fn shipped(text: &str) -> String {
    let mut out = code(text);
    while let Some(start) = out.find("#[cfg(test)]") {
        let end = item_end(&out, start + "#[cfg(test)]".len());
        let blanked: String = out[start..end]
            .chars()
            .map(|c| if c == '\n' { c } else { ' ' })
            .collect();
        out.replace_range(start..end, &blanked);
    }
    out
}

pub(crate) fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Offsets of `word` as a whole word.
pub(crate) fn places(code: &str, word: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    let whole = |at: &usize| {
        let open = *at == 0 || !is_word(bytes[at - 1]) || !is_word(word.as_bytes()[0]);
        let end = at + word.len();
        open && (end >= bytes.len() || !is_word(bytes[end]) || !is_word(bytes[end - 1]))
    };
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(whole)
        .collect()
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Number of its first line.
    pub(crate) line: usize,
    pub(crate) lines: usize,
    /// Byte range of its body, including braces.
    pub(crate) body: Range<usize>,
}

/// Every function with a body.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for at in places(code, "fn") {
        let name: String = code[at + 2..]
            .trim_start()
            .bytes()
            .take_while(|&b| is_word(b))
            .map(char::from)
            .collect();
        let end = item_end(code, at);
        if !name.is_empty() && code[..end].ends_with('}') {
            let open = at
                + code[at..end]
                    .find('{')
                    .expect("a function that ends with a brace has an opening one");
            let lines = code[at..end].matches('\n').count() + 1;
            found.push(Function {
                name,
                line: line_of(code, at),
                lines,
                body: open..end,
            });
        }
    }
    found
}

/// Every path that starts at `at`, after the already parsed `prefix`. Use-groups are expanded: `{a::b, c}` gives two
/// paths.
pub(crate) fn expand(code: &str, at: usize, prefix: &str, out: &mut Vec<String>) -> usize {
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
    let path = if prefix.is_empty() {
        code[at..end].to_owned()
    } else {
        format!("{prefix}::{}", &code[at..end])
    };
    if code[end..].starts_with("::") {
        return expand(code, end + 2, &path, out);
    }
    out.push(path);
    let rest = code[end..].trim_start();
    let renamed = rest.strip_prefix("as ").map_or(0, |name| {
        name.bytes().take_while(|&byte| is_word(byte)).count() + 4
    });
    (end + renamed).max(at + 1)
}

/// `(line, path)` of everything in this crate that a file names, such as `engine::request::Event`.
pub(crate) fn imports(module: &str, code: &str) -> Vec<(usize, String)> {
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
        let ups = code[at..]
            .split("::")
            .take_while(|&part| part == "super")
            .count();
        let parts: Vec<&str> = module.split("::").collect();
        let parent = parts[..parts.len().saturating_sub(ups)].join("::");
        let mut paths = Vec::new();
        expand(code, at + "super::".len() * ups, &parent, &mut paths);
        found.extend(paths.into_iter().map(|path| (line_of(code, at), path)));
    }
    found
}

/// Checks the reader itself: rules prove nothing if it overlooks code.
#[test]
fn the_reader_sees_what_it_must() {
    let text = "use crate::{backend::reference::ReferenceBackend, plan as p};\n// crate::server\n\
                let s = \"crate::text\"; let c = '\"';\n\
                fn f<'a>() {\n  super::handle::go(r#\"}\"#);\n}\n\
                #[cfg(test)]\nmod tests { fn g() { x.unwrap() } }\n";
    let shipped = shipped(text);
    assert_eq!(shipped.len(), text.len(), "offsets stay the same");
    let found: Vec<String> = imports("engine::batch", &shipped)
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    assert_eq!(
        found,
        [
            "backend::reference::ReferenceBackend",
            "plan",
            "engine::handle::go"
        ]
    );
    let found = functions(&shipped);
    assert_eq!(
        found
            .iter()
            .map(|f| (f.name.as_str(), f.line, f.lines))
            .collect::<Vec<_>>(),
        [("f", 4, 3)]
    );
    assert!(text[found[0].body.clone()].starts_with("{\n  super"));
    assert!(!shipped.contains("unwrap"), "test code is left out");
    assert!(
        uncommented(text).contains("crate::text") && !uncommented(text).contains("crate::server")
    );
}
