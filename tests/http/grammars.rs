//! Grammars over the demo model's vocabulary: any text sampled under their masks is valid, as an independent validator
//! confirms. Hostile grammars are refused or bounded.

mod hostile;
mod judge;
mod schemas;

use folio::model::demo;
use folio::text::{GrammarError, GrammarSpec, Grammars, TextModel, Tokenizer};
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

const VOCAB: u32 = 4096;
const END: u32 = 4091;
/// Number of tokens after which a walk prefers tokens that lead to its end.
const FREE_TOKENS: usize = 60;
const TOKENS_MAX: usize = 1200;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let text = TextModel::from_parts(
        Some(demo::TOKENIZER_JSON),
        Some(demo::TOKENIZER_CONFIG_JSON),
        None,
    );
    text.expect("the demo's files are right")
        .tokenizer
        .expect("the demo has a tokenizer")
});

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    Grammars::new(TOKENIZER.clone(), VOCAB, &[END], 64 << 20).expect("the vocabulary is right")
});

fn schema(schema: &Value) -> GrammarSpec {
    GrammarSpec::Schema {
        schema: schema.clone(),
        strict: true,
    }
}

/// Pseudo-random numbers from a seed (SplitMix64).
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |limit| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// Whether a token consists only of closing characters.
fn ends_things(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| b"\"}]".contains(byte))
}

/// Samples tokens under the masks until the answer is complete; `None` if it did not end. Checks that a forced token is
/// the only one that the mask allows.
fn walk(spec: &GrammarSpec, seed: u64) -> Option<String> {
    let grammar = GRAMMARS
        .compile(spec)
        .unwrap_or_else(|error| panic!("{spec:?}: {error}"));
    let mut state = grammar.start();
    let mut below = random(seed);
    let mut bytes = Vec::new();
    for count in 0..TOKENS_MAX {
        let mut mask = vec![0_u32; VOCAB as usize / 32];
        state
            .fill_mask(&mut mask)
            .unwrap_or_else(|error| panic!("{spec:?}: {error} after {bytes:?}"));
        let allowed: Vec<u32> = (0..VOCAB)
            .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect();
        assert!(!allowed.is_empty(), "{spec:?}: a mask allows something");
        let forced = state.clone().forced();
        if let Some(first) = forced.first() {
            assert_eq!(
                allowed,
                [*first],
                "{spec:?}: what is forced is all that is allowed"
            );
        }
        let ends: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|id| *id == END || ends_things(&TOKENIZER.token_bytes(*id, None)))
            .collect();
        let is_mark = |id: &u32| matches!(TOKENIZER.token_bytes(*id, None)[..], [byte] if byte.is_ascii_punctuation());
        let hurry = count > FREE_TOKENS || below(4) == 0;
        let marks: Vec<u32> = if hurry {
            allowed.iter().copied().filter(is_mark).collect()
        } else {
            Vec::new()
        };
        let preferred = if below(2) == 0 {
            [&ends, &marks]
        } else {
            [&marks, &ends]
        };
        let among = preferred
            .into_iter()
            .find(|some| hurry && !some.is_empty())
            .unwrap_or(&allowed);
        let id = among[below(among.len())];
        if id != END {
            bytes.extend(TOKENIZER.token_bytes(id, None));
        }
        if state.accept(id).expect("what is allowed is accepted") {
            return Some(String::from_utf8(bytes).expect("an answer is text"));
        }
    }
    None
}

/// Parses JSON; `None` if a number is out of the library's range.
fn parse(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) if error.to_string().contains("out of range") => None,
        Err(error) => panic!("{error}: {text}"),
    }
}

#[test]
fn hundreds_of_schemas_give_valid_json_only() {
    let cases = schemas::all();
    assert!(cases.len() >= 200, "{} schemas", cases.len());
    let (mut walks, mut finished) = (0, 0);
    for (name, value) in &cases {
        let mut ends = 0;
        for seed in 0..3 {
            walks += 1;
            let Some(text) = walk(&schema(value), seed) else {
                continue;
            };
            let Some(answer) = parse(&text) else { continue };
            if let Err(error) = judge::judge(value, value, &answer) {
                panic!("{name}: {error}: {text}");
            }
            ends += 1;
        }
        assert!(ends > 0, "{name}: no walk came to its end");
        finished += ends;
    }
    println!(
        "{} schemas, {finished} of {walks} walks finished",
        cases.len()
    );
    assert!(
        finished * 10 >= walks * 9,
        "{finished} of {walks} walks came to their end"
    );
}

#[test]
fn a_json_object_is_an_object() {
    for seed in 0..20 {
        let Some(text) = walk(&GrammarSpec::json_object(), seed) else {
            continue;
        };
        assert!(parse(&text).is_none_or(|value| value.is_object()), "{text}");
    }
}

#[test]
fn regular_expressions_match_all_of_the_answer() {
    for pattern in schemas::PATTERNS {
        let judge = regex::Regex::new(&format!("^(?:{pattern})$")).expect("a pattern");
        for seed in 0..5 {
            let text = walk(&GrammarSpec::Regex(pattern.to_string()), seed)
                .unwrap_or_else(|| panic!("{pattern}: no end"));
            assert!(judge.is_match(&text), "{pattern}: {text:?}");
        }
    }
}

#[test]
fn choices_are_chosen_from() {
    let lists: [&[&str]; 5] = [
        &["yes", "no"],
        &["a", "ab", "abc"],
        &[
            "\"quoted\"",
            "back\\slash",
            "line\nbreak",
            "tab\t",
            "/slashes/",
        ],
        &["grün", "日本", "🙂", "🙂🙂"],
        &["<|im_end|>", "<tool_call>", "plain"],
    ];
    for list in lists {
        let spec = GrammarSpec::Choice(list.iter().map(ToString::to_string).collect());
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..60 {
            let text = walk(&spec, seed).expect("a choice ends");
            assert!(
                list.contains(&text.as_str()),
                "{text:?} is none of {list:?}"
            );
            seen.insert(text);
        }
        assert_eq!(
            seen.len(),
            list.len(),
            "all of {list:?} are chosen at times"
        );
    }
}

#[test]
fn a_lark_grammar_is_followed() {
    let sums = "start: NUMBER (\" + \" NUMBER)*\nNUMBER: /[1-9][0-9]{0,2}/";
    for seed in 0..20 {
        let text = walk(&GrammarSpec::Lark(sums.into()), seed).expect("a sum ends");
        let digits = |part: &str| {
            !part.is_empty() && part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        assert!(text.split(" + ").all(digits), "{text:?}");
    }
}

/// A token outside the mask ends this answer, and no other answer with the same grammar.
#[test]
fn a_wrong_token_ends_one_answer() {
    let grammar = GRAMMARS
        .compile(&GrammarSpec::Choice(vec!["yes".into(), "no".into()]))
        .expect("it compiles");
    let (mut wrong, mut right) = (grammar.start(), grammar.start());
    let id = |text: &str| TOKENIZER.encode(text, false).expect("it encodes")[0];
    assert!(wrong.accept(id("}")).is_err());
    assert!(
        wrong.fill_mask(&mut [0; VOCAB as usize / 32]).is_err(),
        "it stays at its end"
    );
    let whole = TOKENIZER.encode("yes", false).expect("it encodes");
    let ends: Vec<_> = whole
        .iter()
        .map(|&id| right.accept(id).expect("it is allowed"))
        .collect();
    assert_eq!(ends.last(), Some(&true), "nothing may follow");
}

#[test]
fn what_is_forced_is_told_in_advance() {
    let spec = schema(
        &json!({"type": "object", "properties": {"temperature": {"type": "integer"}},
        "required": ["temperature"], "additionalProperties": false}),
    );
    let mut state = GRAMMARS.compile(&spec).expect("it compiles").start();
    let open = TOKENIZER.encode("{\"", false).expect("it encodes");
    for id in open {
        assert!(!state.accept(id).expect("it is allowed"));
    }
    let forced = state.forced();
    let text: Vec<u8> = forced
        .iter()
        .flat_map(|&id| TOKENIZER.token_bytes(id, None))
        .collect();
    assert!(
        String::from_utf8_lossy(&text).starts_with("temperature"),
        "{text:?}"
    );
    assert!(
        forced
            .iter()
            .all(|&id| !state.accept(id).expect("what is forced is allowed"))
    );
}

fn refused(spec: &GrammarSpec) -> GrammarError {
    GRAMMARS.compile(spec).expect_err("it is refused")
}
