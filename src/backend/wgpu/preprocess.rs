//! WGSL with `#import`, `#ifdef`, `#ifndef`, `#else` and `#endif`.
//!
//! A shader is a stem in [`SOURCES`], a variant is a set of defines. A define with a number also becomes
//! `const NAME: u32 = number;`, for array lengths, which `override` cannot give. Nothing here knows a device.

macro_rules! sources {
    ($($stem:literal)*) => {
        &[$(($stem, include_str!(concat!("../../../shaders/", $stem, ".wgsl")))),*]
    };
}

/// Every shader and every imported piece, by stem. One line each, in order.
pub(crate) const SOURCES: &[(&str, &str)] = sources! {
    "attend_paged_decode"
    "attend_paged_merge"
    "attend_paged_prefill"
    "attend_paged_serial"
    "common/attend"
    "common/attend_item"
    "common/half"
    "common/invocation"
    "common/kv_pack"
    "common/matmul"
    "common/metadata"
    "common/philox"
    "common/reduce"
    "common/sample"
    "common/sample_adjust"
    "common/sample_logprobs"
    "common/sample_row"
    "common/sample_threshold"
    "common/turns"
    "common/weight"
    "common/wide"
    "copy_blocks"
    "embed"
    "gated_activation"
    "gather_rows"
    "matmul_lane"
    "matmul_skinny"
    "matmul_tile"
    "matmul_vec"
    "rms_norm"
    "rope_store_kv"
    "sample"
    "sample_argmax"
    "sample_argmax_merge"
};

/// A name that `#ifdef` sees, with a number if it is a constant too.
pub(crate) type Define = (&'static str, Option<u32>);

/// Expands the shader `stem` for `defines`. The message of an error names file and line.
pub(crate) fn expand(stem: &str, defines: &[Define]) -> Result<String, String> {
    let mut text = String::new();
    for (name, number) in defines {
        if let Some(number) = number {
            text.push_str(&format!("const {name}: u32 = {number}u;\n"));
        }
    }
    expand_into(&mut text, stem, defines, &mut Vec::new())?;
    Ok(text)
}

/// The text of `stem` as it lies in the repository.
pub(crate) fn source(stem: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(name, _)| *name == stem).map(|(_, text)| *text)
}

fn expand_into(text: &mut String, stem: &str, defines: &[Define], seen: &mut Vec<String>) -> Result<(), String> {
    let body = source(stem).ok_or_else(|| format!("there is no shader {stem}"))?;
    // One entry per open condition: whether this branch is taken, and whether the whole condition is reached at all.
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
            (word, _) if word.starts_with('#') => return fail("unknown or incomplete directive"),
            _ if active => {
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{stem}.wgsl: #ifdef without #endif")) }
}
