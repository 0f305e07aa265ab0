//! Checks the parts of a tokenizer.json that the library builds as it finds them: a part that would make it panic, or a
//! request take memory without measure, is refused when the file is read. `growth` bounds the output of encoding.

use serde_json::Value;
use serde_json::value::RawValue;

/// Maximum bytes of a part as JSON. SentencePiece's tables take less than half of it.
const PART_BYTES_MAX: usize = 1 << 20;
/// Maximum processors after a model.
const PROCESSORS_MAX: usize = 16;
/// Maximum ids that are put around a text.
const ADDED_IDS_MAX: usize = 1 << 10;
/// How many times longer the text of a token may become by the decoders, at most.
const DECODED_GROWTH_MAX: usize = 64;
/// Maximum bytes of a token that is found in a text before anything else.
pub(super) const ADDED_TOKEN_BYTES_MAX: usize = 16 << 10;

/// Reads a part; `null` if the file has none.
pub(super) fn read(name: &str, part: Option<&RawValue>) -> Result<Value, String> {
    let Some(json) = part.map(RawValue::get) else {
        return Ok(Value::Null);
    };
    if json.len() > PART_BYTES_MAX {
        return Err(format!(
            "`{name}` has {} bytes, of at most {PART_BYTES_MAX}",
            json.len()
        ));
    }
    serde_json::from_str(json).map_err(|error| format!("`{name}`: {error}"))
}

/// The parts of a sequence in `list`, whose parts may be sequences, or the part itself.
fn flat<'v>(part: &'v Value, list: &str, found: &mut Vec<&'v Value>) {
    match part[list].as_array() {
        Some(parts) => parts.iter().for_each(|part| flat(part, list, found)),
        None => found.push(part),
    }
}

fn parts<'v>(part: &'v Value, list: &str) -> Vec<&'v Value> {
    let mut found = Vec::new();
    flat(part, list, &mut found);
    found
}

/// The library panics on a length of 0.
pub(super) fn check_pre_tokenizer(part: &Value) -> Result<(), String> {
    for part in parts(part, "pretokenizers") {
        if part["type"] == "FixedLength" && part["length"] == 0 {
            return Err("`length` is 0".to_owned());
        }
    }
    Ok(())
}

/// Checks a `post_processor`: the tokens that it puts around a text are few, and all of them are there.
pub(super) fn check_post_processor(part: &Value) -> Result<(), String> {
    let parts = parts(part, "processors");
    if parts.len() > PROCESSORS_MAX {
        return Err(format!("more than {PROCESSORS_MAX} processors"));
    }
    let mut templates = parts.iter().filter(|part| part.get("single").is_some());
    let added = templates
        .next()
        .map_or(Ok(0), |template| added_ids(template))?;
    // The library does not know what a second one should do.
    if templates.next().is_some() {
        return Err("more than one `TemplateProcessing`".to_owned());
    }
    if added > ADDED_IDS_MAX {
        return Err(format!(
            "it adds {added} ids to a text, of at most {ADDED_IDS_MAX}"
        ));
    }
    Ok(())
}

/// Number of ids that a template puts around a text.
fn added_ids(template: &Value) -> Result<usize, String> {
    let (mut added, mut texts) = (0_usize, 0);
    for piece in template["single"].as_array().into_iter().flatten() {
        if let Some(sequence) = piece.get("Sequence") {
            texts += 1;
            if texts > 1 || sequence["id"] != "A" {
                return Err("`single` has more than one text".to_owned());
            }
        } else if let Some(id) = piece["SpecialToken"]["id"].as_str() {
            let token = &template["special_tokens"][id];
            let count = |list: &str| token[list].as_array().map(Vec::len);
            match (count("ids"), count("tokens")) {
                (Some(ids), Some(tokens)) if ids == tokens => added += ids,
                _ => {
                    return Err(format!(
                        "`special_tokens`: {id:?} has no ids, or not as many as tokens"
                    ));
                }
            }
        }
    }
    Ok(added)
}

/// Checks a `decoder`: tokens become hardly longer.
pub(super) fn check_decoder(part: &Value) -> Result<(), String> {
    let mut growth = 1_usize;
    for part in parts(part, "decoders") {
        growth = growth.saturating_mul(decoded_growth(part));
        if growth > DECODED_GROWTH_MAX {
            return Err(format!(
                "it makes a text more than {DECODED_GROWTH_MAX} times as long"
            ));
        }
    }
    Ok(())
}

/// Checks a `decoder` that the library is to run.
pub(super) fn check_library_decoder(part: &Value) -> Result<(), String> {
    match parts(part, "decoders")
        .iter()
        .any(|part| part["type"] == "Strip" && part["stop"].as_u64().is_some_and(|stop| stop > 0))
    {
        // It would look before the start of a shorter token.
        true => Err("`decoder`: the `stop` of a `Strip` is not 0".to_owned()),
        false => Ok(()),
    }
}

/// How many times longer a decoder makes a token's text at most.
fn decoded_growth(part: &Value) -> usize {
    match part["type"].as_str() {
        Some("Replace") => match (length(&part["content"]), length(&part["pattern"]["String"])) {
            (0, _) => 1,
            // A pattern may match between any two characters.
            (content, 0) => content + 1,
            (content, pattern) => content.div_ceil(pattern),
        },
        // A space between words.
        Some("BPEDecoder" | "CTC" | "WordPiece") => 2,
        _ => 1,
    }
}

fn length(text: &Value) -> usize {
    text.as_str().map_or(0, str::len)
}
