//! Tests of `server/parameters/structured.rs`.

use super::*;
use crate::model::demo;
use crate::text::answer::{ToolChoice, ToolParser, ToolSet, forced_calls};
use serde_json::json;

#[test]
fn a_call_within_a_thought_ends_it_for_a_grammar_of_calls_and_for_no_other() {
    let tokenizer =
        Arc::new(Tokenizer::from_json(demo::TOKENIZER_JSON).expect("the demo's tokenizer"));
    let id = |text: &str| tokenizer.id_of(text).expect("a token");
    let (open, think, close) = (id("<tool_call>"), id("<think>"), id("</think>"));
    let tools = ToolChoice {
        shown: Some(json!([])),
        callable: Arc::new(ToolSet::new(vec![json!({"name": "add"})])),
        ..ToolChoice::default()
    };
    let (calls, _) = forced_calls(ToolParser::Hermes, &tools, &tokenizer).expect("a grammar");
    let text = GrammarSpec::Regex("[a-z]+".to_owned());
    let format = AnswerFormat {
        tools: ToolParser::Hermes,
        reasoning: ReasoningParser::Think,
    };
    let (vocab, end) = (tokenizer.vocabulary(), id("<|im_end|>"));
    let grammars = Grammars::new(tokenizer.clone(), vocab, &[end], 1 << 20).expect("grammars");
    for (spec, ends) in [(calls, true), (text, false)] {
        let grammar = grammars.compile(&spec).expect("it compiles");
        let start = format.reasoning.start(&tokenizer, &[think], None);
        let constraint = constraint(grammar, format, &tokenizer, start, true);
        let mut state = constraint.0.start();
        let mut mask = vec![0; vocab.div_ceil(32) as usize];
        for token in tokenizer.encode("I look.", false).expect("it encodes") {
            assert!(!state.accept(token).expect("a thought is free"));
        }
        state.accept(open).expect("a thought may say anything");
        assert_eq!(state.fill_mask(&mut mask), Ok(ends), "{spec:?}");
        if !ends {
            state.accept(close).expect("the tag");
            assert_eq!(state.fill_mask(&mut mask), Ok(true));
        }
    }
}
