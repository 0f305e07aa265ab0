//! Hostile grammars: each is refused or compiled within bounds, and quickly in both cases.

use super::{END, GRAMMARS, TOKENIZER, VOCAB, refused, schema};
use folio::text::{Grammar, GrammarSpec, Grammars};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Much longer than the intended limit, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

fn nested(depth: usize) -> Value {
    (0..depth).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"type": "array", "items": inner}),
    )
}

fn regex(text: &str) -> GrammarSpec {
    GrammarSpec::Regex(text.into())
}

fn lark(text: &str) -> GrammarSpec {
    GrammarSpec::Lark(text.into())
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let long = "a".repeat(70_000);
    let cases = [
        schema(&json!(false)),
        schema(&json!(5)),
        schema(&json!({"type": "nothing"})),
        schema(&json!({"type": 5})),
        schema(&json!({"$ref": "https://example.com/schema.json"})),
        schema(&json!({"$ref": "#/$defs/missing"})),
        schema(&json!({"type": "string", "pattern": "["})),
        schema(&json!({"type": "string", "format": "no such format"})),
        schema(&json!({"type": "integer", "minimum": 5, "maximum": 4})),
        schema(&nested(40)),
        schema(&json!({"enum": (0..20_000).collect::<Vec<_>>()})),
        schema(&json!({"enum": []})),
        regex("["),
        regex("(unclosed"),
        regex(&long),
        GrammarSpec::Choice(Vec::new()),
        GrammarSpec::Choice(vec![String::new()]),
        GrammarSpec::Choice(vec!["x".into(); 2000]),
        lark(""),
        lark("start: missing"),
        lark("no rules at all"),
        lark(&format!(
            "start: {}\"a\"{}",
            "(".repeat(20_000),
            ")".repeat(20_000)
        )),
        lark(&format!("start: \"{long}\"")),
    ];
    for case in cases {
        let error = refused(&case).to_string();
        assert!(
            !error.is_empty() && error.len() < 2000 && !error.contains('\n'),
            "{error:?}"
        );
    }
}

#[test]
fn whatever_is_sent_takes_bounded_time() {
    let wide: Map<_, _> = (0..1500)
        .map(|key| (format!("key{key}"), json!({"type": "integer"})))
        .collect();
    let cycle = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    let cases = [
        regex("(a+)+$"),
        regex("(.{1,1000}){1,1000}"),
        regex("a{1,100000}"),
        regex("((((a{1,100}){1,100}){1,100}){1,100}"),
        regex(&"(a|b|".repeat(2000)),
        regex("(?:.*a){20}"),
        regex(".*(a|b|c).{200}"),
        schema(&json!({"type": "array", "minItems": 1_000_000_000})),
        schema(&json!({"type": "array", "items": {}, "maxItems": 1_000_000_000})),
        schema(&json!({"type": "string", "minLength": 1_000_000_000})),
        schema(&json!({"type": "string", "maxLength": 1_000_000})),
        schema(&json!({"type": "object", "properties": wide})),
        schema(&cycle),
        schema(&json!({"$ref": "#"})),
        schema(&json!({"allOf": [{"$ref": "#"}]})),
        schema(&json!({"anyOf": [{"$ref": "#"}, {"type": "integer"}]})),
        schema(&json!({"not": {"type": "integer"}})),
        schema(&json!({"enum": (0..5000).collect::<Vec<_>>()})),
        lark("start: start start | \"a\""),
        lark("start: start"),
        lark("start: a\na: b\nb: a"),
        lark("start: (\"a\" | \"aa\" | \"aaa\"){1,5000}"),
        lark("start: %json {\"type\": \"object\"}"),
        lark("start: %json {\"multipleOf\": 1999993}"),
        lark("start: \"a\" %json {\"properties\": {\"a\": {\"minLength\": 1000000}}}"),
        lark("%llguidance {\"no_forcing\": true}\nstart: /.*/"),
        lark("%import common.INT\nstart: INT"),
        regex("a{10000000}"),
        regex("[ab]c{10000000}"),
        regex("(a{1000}){1000}"),
        lark("start: /a{100000000}/"),
        lark("start: B\nA: \"a\"{9000}\nB: A{9000}"),
        lark("start: \"x\" B\nA: \"a\"{9000}\nB: A{9000}"),
        schema(&json!({"type": "integer", "multipleOf": 2_147_483_647})),
        schema(&json!({"type": "integer", "multipleOf": 1_953_125})),
        schema(&json!({"type": "string", "pattern": "^a*$", "minLength": 1_000_000})),
        schema(&json!({"type": "string", "pattern": "^(ab|c)*$", "minLength": 100_000_000})),
    ];
    for case in cases {
        let start = Instant::now();
        let compiled = GRAMMARS.compile(&case);
        let told = compiled
            .as_ref()
            .map_or_else(ToString::to_string, |_| "compiled".into());
        println!("{:?}: {told}", start.elapsed());
        if let Ok(grammar) = compiled {
            let mut state = grammar.start();
            for _ in 0..20 {
                let mut mask = vec![0; VOCAB as usize / 32];
                if state.fill_mask(&mut mask).is_err() {
                    break;
                }
                let Some(id) = (0..VOCAB).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
                else {
                    break;
                };
                if !matches!(state.accept(id), Ok(false)) {
                    break;
                }
            }
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{case:?} takes {:?}",
            start.elapsed()
        );
    }
}

/// Objects with this many optional properties, and values among this many alternatives.
fn wide(count: usize) -> Vec<GrammarSpec> {
    let properties = |item: &Value| {
        (0..count)
            .map(|key| (format!("k{key}"), item.clone()))
            .collect::<Map<_, _>>()
    };
    let numbers: Vec<usize> = (0..count).collect();
    let constants: Vec<Value> = numbers
        .iter()
        .map(|number| json!({"const": number}))
        .collect();
    let texts: Vec<String> = numbers.iter().map(|number| format!("v{number}")).collect();
    let objects: Vec<Value> = numbers
        .iter()
        .map(|number| json!({"required": [format!("k{number}")]}))
        .collect();
    let rules: Vec<String> = numbers
        .iter()
        .map(|number| format!("\"a{number}\" X"))
        .collect();
    let open = json!({"type": "object", "properties": properties(&json!({"type": "integer"}))});
    let closed = json!({"type": "object", "properties": properties(&json!({})), "additionalProperties": false});
    vec![
        schema(&open),
        schema(&closed),
        schema(&json!({"type": "object", "properties": {"inner": closed}, "required": ["inner"]})),
        schema(&json!({"type": "array", "items": open, "minItems": 1})),
        schema(&json!({"enum": numbers})),
        schema(&json!({"enum": texts})),
        schema(&json!({"anyOf": constants})),
        schema(&json!({"anyOf": objects})),
        schema(
            &json!({"type": "object", "required": numbers.iter().map(|n| format!("k{n}")).collect::<Vec<_>>()}),
        ),
        schema(
            &json!({"type": "object", "properties": {"value": {"enum": texts}}, "required": ["value"]}),
        ),
        GrammarSpec::Choice(texts.clone()),
        regex(&texts.join("|")),
        lark(&format!("start: {}\nX: /x+/", rules.join(" | "))),
    ]
}

/// Draws tokens under the masks; an error names the step that failed.
fn walk_on(grammar: &Grammar, seed: u64) -> Result<(), String> {
    let (mut state, mut below) = (grammar.start(), super::random(seed));
    for step in 0..40 {
        let mut mask = vec![0; VOCAB as usize / 32];
        state
            .fill_mask(&mut mask)
            .map_err(|error| format!("mask {step}: {error}"))?;
        let allowed: Vec<u32> = (0..VOCAB)
            .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect();
        if state
            .accept(allowed[below(allowed.len())])
            .map_err(|error| format!("token {step}: {error}"))?
        {
            break;
        }
    }
    Ok(())
}

#[test]
fn what_compiles_also_starts() {
    for count in [5, 400, 1000, 6000] {
        let (mut compiled, cases) = (0, wide(count));
        for (index, case) in cases.iter().enumerate() {
            match GRAMMARS.compile(case) {
                Ok(grammar) => {
                    compiled += 1;
                    let walked = (0..2).try_for_each(|seed| walk_on(&grammar, seed));
                    walked.unwrap_or_else(|error| panic!("case {index} of {count}: {error}"));
                }
                Err(error) => {
                    let error = error.to_string();
                    let limits = ["1000", "512", "1024", "65536"];
                    assert!(
                        limits.iter().any(|limit| error.contains(limit)),
                        "case {index} of {count}: {error}"
                    );
                }
            }
        }
        // Of a thousand, only objects within an object and alternatives that are schemas are too many.
        let least = [(400, cases.len()), (1000, cases.len() - 2), (6000, 3)]
            .into_iter()
            .find(|(most, _)| count <= *most);
        assert!(
            least.is_some_and(|(_, least)| compiled >= least),
            "{compiled} of {} with {count}",
            cases.len()
        );
    }
}

#[test]
fn the_cache_stays_within_its_bytes() {
    const BYTES: usize = 4 << 20;
    let grammars =
        Grammars::new(TOKENIZER.clone(), VOCAB, &[END], BYTES).expect("the vocabulary is right");
    let numbered = |number: usize| {
        schema(&json!({"type": "object", "properties": {format!("key{number}"): {}}}))
    };
    for number in 0..300 {
        grammars.compile(&numbered(number)).expect("it compiles");
        assert!(
            grammars.cached_bytes() <= BYTES,
            "{} bytes after {number}",
            grammars.cached_bytes()
        );
    }
    assert!(grammars.cached_bytes() > BYTES / 2, "it is used");
    let before = grammars.cached_bytes();
    grammars.compile(&numbered(299)).expect("it compiles");
    assert!(
        grammars.cached_bytes() <= before + (64 << 10),
        "the same grammar is kept once"
    );
}
