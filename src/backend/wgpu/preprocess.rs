//! WGSL preprocessor: `#import`, `#constants`, `#ifdef`, `#ifndef`, `#else`, `#endif`, `#for name COUNT` … `#endfor`.
//!
//! `#constants` emits a `const` for each number of [`metadata::TABLE`].
//!
//! `#for` repeats its lines COUNT times (a number, or a define with one), replacing the word `name` by `0u`, `1u`, …
//! It is for drivers that keep an array in memory unless every index is a literal.
//!
//! A shader is a stem in [`SOURCES`], a variant is a set of defines. A define with a number also becomes
//! `const NAME: u32 = number;`, for array lengths, which `override` cannot give. This module is independent of devices.

use super::super::metadata;

/// The text of every shader and every imported file, by stem.
pub(crate) const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

/// A name for `#ifdef`, with a number if it is also a constant.
pub(crate) type Define = (&'static str, Option<u32>);

/// The define of kernels that compute with halves.
pub(crate) const HALVES: &str = "HALVES";
/// What a shader with cooperative matrices begins with.
pub(crate) const MATRICES_DIRECTIVE: &str = "enable wgpu_cooperative_matrix;\n";
/// The define of kernels that use cooperative matrices.
pub(crate) const MATRICES: &str = "MATRICES";

/// Expands the shader `stem` for `defines`. Error messages contain file and line.
pub(crate) fn expand(stem: &str, defines: &[Define]) -> Result<String, String> {
    let mut text = String::new();
    let is_defined = |define| defines.iter().any(|(name, _)| *name == define);
    // A browser requires this directive; naga needs none and rejects it.
    if cfg!(target_arch = "wasm32") && is_defined("SUBGROUPS") {
        text.push_str("enable subgroups;\n");
    }
    if is_defined(HALVES) {
        text.push_str("enable f16;\n");
    }
    if is_defined(MATRICES) {
        text.push_str(MATRICES_DIRECTIVE);
    }
    for (name, number) in defines {
        if let Some(number) = number {
            text.push_str(&format!("const {name}: u32 = {number}u;\n"));
        }
    }
    expand_into(&mut text, stem, defines, &mut Vec::new())?;
    if text.contains("#for") {
        let mut unrolled = String::new();
        let lines: Vec<&str> = text.lines().collect();
        unroll(&mut unrolled, &lines, defines, &[])
            .map_err(|what| format!("{stem}.wgsl: {what}"))?;
        text = unrolled;
    }
    Ok(text)
}

/// Writes `lines` with every `#for` unrolled; `names` are the words to replace and their numbers.
fn unroll(
    text: &mut String,
    lines: &[&str],
    defines: &[Define],
    names: &[(&str, u32)],
) -> Result<(), String> {
    let mut at = 0;
    while at < lines.len() {
        let words: Vec<&str> = lines[at].split_whitespace().collect();
        match words[..] {
            ["#for", name, count] => {
                let count =
                    count_of(count, defines).ok_or_else(|| format!("{count} is not a number"))?;
                let length = block_length(&lines[at + 1..]).ok_or("#for without #endfor")?;
                for number in 0..count {
                    let mut inner = names.to_vec();
                    inner.push((name, number));
                    unroll(text, &lines[at + 1..=at + length], defines, &inner)?;
                }
                at += length + 1;
            }
            [word, ..] if word.starts_with('#') => {
                return Err(format!("stray {}", lines[at].trim()));
            }
            _ => {
                replace_words(text, lines[at], names);
                text.push('\n');
            }
        }
        at += 1;
    }
    Ok(())
}

fn count_of(word: &str, defines: &[Define]) -> Option<u32> {
    let defined = defines
        .iter()
        .find(|(name, _)| *name == word)
        .and_then(|(_, number)| *number);
    defined.or_else(|| word.parse().ok())
}

/// Number of lines before the `#endfor` of the block just opened.
fn block_length(lines: &[&str]) -> Option<usize> {
    let mut depth = 1;
    lines.iter().position(|line| {
        match line.split_whitespace().next() {
            Some("#for") => depth += 1,
            Some("#endfor") => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

fn replace_words(text: &mut String, line: &str, names: &[(&str, u32)]) {
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        let end = rest[start..]
            .find(|c| !is_word(c))
            .map_or(rest.len(), |length| start + length);
        text.push_str(&rest[..start]);
        match names
            .iter()
            .rev()
            .find(|(name, _)| *name == &rest[start..end])
        {
            Some((_, number)) => text.push_str(&format!("{number}u")),
            None => text.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    text.push_str(rest);
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text of `stem`, unprocessed.
pub(crate) fn source(stem: &str) -> Option<&'static str> {
    SOURCES
        .iter()
        .find(|(name, _)| *name == stem)
        .map(|(_, text)| *text)
}

fn expand_into(
    text: &mut String,
    stem: &str,
    defines: &[Define],
    seen: &mut Vec<String>,
) -> Result<(), String> {
    let body = source(stem).ok_or_else(|| format!("unknown shader {stem}"))?;
    // One entry per open condition: whether this branch is taken, and whether the condition itself is reached.
    let mut open: Vec<(bool, bool)> = Vec::new();
    for (number, line) in body.lines().enumerate() {
        let fail = |what: &str| Err(format!("{stem}.wgsl:{}: {what}", number + 1));
        let active = open.iter().all(|(taken, reached)| *taken && *reached);
        let mut words = line.split_whitespace();
        let directive = words.next().unwrap_or_default();
        let name = words.next();
        match (directive, name) {
            ("#ifdef" | "#ifndef", Some(name)) => {
                let defined = defines.iter().any(|(define, _)| *define == name);
                open.push((defined == (directive == "#ifdef"), active));
            }
            ("#else", None) => match open.last_mut() {
                Some((taken, _)) => *taken = !*taken,
                None => return fail("#else without #ifdef"),
            },
            ("#endif", None) if open.pop().is_none() => return fail("#endif without #ifdef"),
            ("#endif", None) => {}
            ("#import", Some(name)) if active => {
                let piece = format!("common/{name}");
                if !seen.contains(&piece) {
                    seen.push(piece.clone());
                    expand_into(text, &piece, defines, seen)?;
                }
            }
            ("#import", Some(_)) => {}
            ("#constants", None) if active => {
                for (name, number) in metadata::TABLE {
                    text.push_str(&format!("const {name}: u32 = {number}u;\n"));
                }
            }
            ("#constants", None) => {}
            // Unrolled at the end, after all imports.
            ("#for", Some(_)) | ("#endfor", None) if active => {
                text.push_str(line);
                text.push('\n');
            }
            ("#for" | "#endfor", _) if !active => {}
            (word, _) if word.starts_with('#') => return fail("unknown or incomplete directive"),
            _ if active => {
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    if open.is_empty() {
        Ok(())
    } else {
        Err(format!("{stem}.wgsl: #ifdef without #endif"))
    }
}
