//! Hostile grammars: each is refused or compiled within bounds, and quickly in both cases.

use super::{END, GRAMMARS, TOKENIZER, VOCAB, refused, schema};
use folio::text::{GrammarSpec, Grammars};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Much longer than the intended limit, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({"type": "integer"}), |inner, _| json!({"type": "array", "items": inner}))
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
        lark(&format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000))),
        lark(&format!("start: \"{long}\"")),
    ];
    for case in cases {
        let error = refused(&case).to_string();
        assert!(!error.is_empty() && error.len() < 2000 && !error.contains('\n'), "{error:?}");
    }
}

#[test]
fn whatever_is_sent_takes_bounded_time() {
    let wide: serde_json::Map<_, _> = (0..1500).map(|key| (format!("key{key}"), json!({"type": "integer"}))).collect();
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
        lark("%llguidance {\"no_forcing\": true}\nstart: /.*/"),
        lark("%import common.INT\nstart: INT"),
    ];
    for case in cases {
        let start = Instant::now();
        let compiled = GRAMMARS.compile(&case);
        let told = compiled.as_ref().map_or_else(ToString::to_string, |_| "compiled".into());
        println!("{:?}: {told}", start.elapsed());
        if let Ok(grammar) = compiled {
            let mut state = grammar.start();
            for _ in 0..20 {
                let mut mask = vec![0; VOCAB as usize / 32];
                if state.fill_mask(&mut mask).is_err() {
                    break;
                }
                let Some(id) = (0..VOCAB).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1) else { break };
                if !matches!(state.accept(id), Ok(false)) {
                    break;
                }
            }
        }
        assert!(start.elapsed() < PATIENCE, "{case:?} takes {:?}", start.elapsed());
    }
}

#[test]
fn the_cache_stays_within_its_bytes() {
    const BYTES: usize = 4 << 20;
    let grammars = Grammars::new(TOKENIZER.clone(), VOCAB, &[END], BYTES).expect("the vocabulary is right");
    let numbered = |number: usize| schema(&json!({"type": "object", "properties": {format!("key{number}"): {}}}));
    for number in 0..300 {
        grammars.compile(&numbered(number)).expect("it compiles");
        assert!(grammars.cached_bytes() <= BYTES, "{} bytes after {number}", grammars.cached_bytes());
    }
    assert!(grammars.cached_bytes() > BYTES / 2, "it is used");
    let before = grammars.cached_bytes();
    grammars.compile(&numbered(299)).expect("it compiles");
    assert!(grammars.cached_bytes() <= before + (64 << 10), "the same grammar is kept once");
}
