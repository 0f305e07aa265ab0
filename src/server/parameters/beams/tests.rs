//! Tests of `server/parameters/beams.rs`.

use super::*;
use crate::model::demo;
use crate::text::answer::{AnswerFormat, ReasoningParser, ToolChoice, ToolParser};
use crate::text::{StopStrings, Tokenizer};

/// A beam ends where its content has a stop string, not where its thought has it; so does a fork of it.
#[test]
fn a_beam_ends_at_a_stop_string_of_its_content() {
    let tokenizer =
        Arc::new(Tokenizer::from_json(demo::TOKENIZER_JSON).expect("the demo's tokenizer"));
    let format = AnswerFormat {
        tools: ToolParser::Hermes,
        reasoning: ReasoningParser::Think,
    };
    let start = format.reasoning.start(&tokenizer, &[], None);
    let stops = StopStrings::new(&["STOP".to_owned()]);
    let stopping = StopAtText {
        text: TextStream::new(Some(tokenizer.clone()), &[], false),
        answer: AnswerParser::new(format, start, &ToolChoice::default()).stopping_at(stops),
        inner: None,
    };
    let text = "<think>\nOne STOP.\n</think>\n\nIt is 42. STOP";
    let ids = tokenizer.encode(text, false).expect("it encodes");
    let ends = |mut beam: Box<dyn ConstraintState>, ids: &[u32]| {
        let mut ids = ids.iter();
        ids.position(|&id| beam.accept(id).expect("nothing else constrains it"))
    };
    assert_eq!(ends(stopping.start(), &ids), Some(ids.len() - 1));
    let mut beam = stopping.start();
    let (first, last) = ids.split_at(ids.len() - 2);
    for &id in first {
        assert!(!beam.accept(id).expect("nothing else constrains it"));
    }
    assert_eq!(ends(beam.fork(), last), Some(1));
    assert_eq!(ends(beam, &ids[..2]), None);
}
