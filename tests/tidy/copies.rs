//! No two functions of ten lines or more are copies of each other, that is, have the same names and literals in the
//! same order, regardless of line breaks and comments.

use super::judge;
use super::reader::{Source, code, functions, is_word, literal_end, sources, uncommented};
use std::collections::BTreeMap;

const LINES_MIN: usize = 10;

/// A body without comments, with a space only between two words, and without trailing commas, which formatting adds to
/// multi-line lists. Literals are unchanged.
fn tokens(body: &str) -> String {
    let mut out = String::new();
    let (mut space, mut at) = (false, 0);
    while let Some(character) = body[at..].chars().next() {
        let end = literal_end(body.as_bytes(), at).unwrap_or(at + character.len_utf8());
        let token = &body[at..end];
        at = end;
        if token.trim().is_empty() {
            space = true;
            continue;
        }
        if matches!(token, ")" | "]" | "}") && out.ends_with(',') {
            out.pop();
        }
        let is_word = |byte: Option<u8>| byte.is_some_and(is_word);
        if std::mem::take(&mut space)
            && is_word(out.bytes().last())
            && is_word(token.bytes().next())
        {
            out.push(' ');
        }
        out.push_str(token);
    }
    out
}

fn copies(sources: &[Source]) -> Vec<String> {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut findings = Vec::new();
    for source in sources {
        let (code, text) = (code(&source.text), uncommented(&source.text));
        for function in functions(&code)
            .into_iter()
            .filter(|function| function.lines >= LINES_MIN)
        {
            let body = tokens(&text[function.body]);
            let place = format!("{}:{}", source.path, function.line);
            match seen.get(&body) {
                Some(first) => {
                    findings.push(source.finding(
                        function.line,
                        &format!("{} is a copy of {first}", function.name),
                    ));
                }
                None => drop(seen.insert(body, place)),
            }
        }
    }
    findings
}

#[test]
fn no_function_is_a_copy() {
    judge(
        "copies",
        &copies(&sources(&["src", "web/src", "tests", "benches"], &["rs"])),
    );
}

#[test]
fn a_planted_copy_is_found() {
    let long = |name: &str, argument: &str| {
        let lines: String = (0..8)
            .map(|line| format!("    let x{line} = go(\"a b\", {line});\n"))
            .collect();
        format!("fn {name}() {{\n{lines}    end({argument})\n}}\n")
    };
    let found = |a: String, b: String| {
        let source = |path: &str, text: String| Source {
            path: path.to_owned(),
            text,
        };
        copies(&[source("a.rs", a), source("b.rs", b)])
    };
    let copy = found(
        long("first", "x, y"),
        long("second", "\n        x, // why\n        y,\n    "),
    );
    assert_eq!(copy, ["b.rs:1: second is a copy of a.rs:1"]);
    assert!(
        found(long("first", "x"), long("second", "z")).is_empty(),
        "a function with another name is not a copy"
    );
    assert!(
        found(long("first", "\"a  b\""), long("second", "\"a b\"")).is_empty(),
        "literals keep their spaces"
    );
}
