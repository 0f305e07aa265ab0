//! A whole reply equals the fold of its stream, for random answers split into deltas in any way.

use super::*;
use crate::engine::request::{Cached, TokenLogprob};
use crate::model::demo;
use crate::text::Tokenizer;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    Arc::new(Tokenizer::from_json(demo::TOKENIZER_JSON).expect("the demo's tokenizer is right"))
});

/// One token of an answer: its part of the answer and its id.
type Step = (Part, u32);

#[derive(Clone, Debug)]
enum Part {
    Reasoning(String),
    Content(String),
    /// A new call with this name.
    Call(String),
    Arguments(String),
    /// A token without text.
    Nothing,
}

/// One choice: its tokens, each with a flag that ends a delta after it, and its finish reason.
#[derive(Clone, Debug)]
struct Answer {
    steps: Vec<(Step, bool)>,
    finish: FinishReason,
}

fn part() -> impl Strategy<Value = Part> {
    let text = || "[a-z é🙂]{1,4}";
    prop_oneof![
        text().prop_map(Part::Reasoning),
        text().prop_map(Part::Content),
        "[a-z]{3}".prop_map(Part::Call),
        text().prop_map(Part::Arguments),
        Just(Part::Nothing),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let steps = proptest::collection::vec(((part(), 0_u32..400), any::<bool>()), 0..12);
    let finish = prop_oneof![Just(FinishReason::Stop), Just(FinishReason::Length)];
    (steps, finish).prop_map(|(steps, finish)| Answer { steps, finish })
}

fn token(id: u32) -> Token {
    let top = (0..id % 3).map(|rank| TokenLogprob {
        token_id: id + rank,
        logprob: -0.1 - rank as f32,
    });
    let (logprob, top_logprobs) = (Some(-(id as f32) / 100.0), top.collect());
    Token {
        id,
        logprob,
        rank: Some(id),
        top_logprobs,
        cached: Cached::default(),
        drafts: None,
    }
}

/// The deltas of one choice: split as the answer says, or all in one.
fn deltas(choice: usize, answer: &Answer, cut: bool) -> Vec<Delta> {
    let mut deltas = Vec::new();
    let mut delta = Delta {
        choice,
        prompt: vec![vec![token(7), token(8)].into()],
        ..Delta::default()
    };
    let mut calls = 0;
    for ((part, id), ends) in &answer.steps {
        delta.tokens.push(token(*id));
        let parts = &mut delta.parts;
        match part {
            Part::Reasoning(text) => parts.reasoning.push_str(text),
            Part::Content(text) => parts.content.push_str(text),
            Part::Call(name) => {
                parts.call(
                    calls,
                    CallDelta {
                        name: Some(name.clone()),
                        ..CallDelta::default()
                    },
                );
                calls += 1;
            }
            Part::Arguments(text) if calls > 0 => {
                parts.call(
                    calls - 1,
                    CallDelta {
                        arguments: text.clone(),
                        ..CallDelta::default()
                    },
                );
            }
            Part::Arguments(_) | Part::Nothing => {}
        }
        // A delta without text is never sent: its tokens are in the next one.
        if cut && *ends && !delta.parts.is_empty() {
            deltas.push(std::mem::replace(
                &mut delta,
                Delta {
                    choice,
                    ..Delta::default()
                },
            ));
        }
    }
    delta.finish = Some(answer.finish);
    deltas.push(delta);
    deltas
}

fn form(kind: Kind, flags: [bool; 4], drawn: usize) -> OpenAiReply {
    let [logprobs, token_ids, echo, prompt_logprobs] = flags;
    let head = Head {
        id: "id".into(),
        unique: "unique".into(),
        created: 1,
        model: "demo".into(),
        fingerprint: "fp".into(),
    };
    let options = ReplyOptions {
        logprobs,
        prompt_logprobs,
        token_ids,
        usage: true,
        continuous_usage: false,
        timings: false,
        drawn,
        best: drawn,
    };
    let echo = (echo && kind == Kind::Completion).then(|| "once ".to_owned());
    let prompts = vec![PromptPart {
        ids: vec![5, 7, 8].into(),
        echo,
    }];
    let progress = vec![Progress::default(); drawn];
    let tokens = TokenNames {
        tokenizer: Some(TOKENIZER.clone()),
        by_id: false,
        hides_special: true,
    };
    OpenAiReply {
        kind,
        head,
        options,
        tokens,
        prompts,
        progress,
        sent: Totals::default(),
    }
}

/// The events of a stream, and the whole reply.
fn both(mut form: OpenAiReply, deltas: Vec<Delta>) -> (Vec<Value>, Value) {
    let totals = Totals {
        prompt_tokens: 3,
        cached: Cached {
            all: 1,
            ..Cached::default()
        },
        completion_tokens: 9,
        reasoning_tokens: 2,
        ..Totals::default()
    };
    let mut chunks: Vec<Chunk> = deltas
        .into_iter()
        .flat_map(|delta| form.chunks(delta, totals))
        .collect();
    chunks.extend(form.last_chunk(totals));
    let parse = |json: &str| serde_json::from_str(json).expect("a reply is JSON");
    let events = chunks
        .iter()
        .map(|chunk| parse(form.event(chunk.clone()).trim_start_matches("data: ")))
        .collect();
    (events, parse(&form.whole(chunks)))
}

/// Merges a chunk as a client does: texts and lists grow, other values are replaced.
fn merge(known: &mut Value, later: &Value) {
    match (known, later) {
        (Value::Object(known), Value::Object(later)) => {
            for (key, value) in later {
                match known.get_mut(key) {
                    Some(Value::String(_))
                        if ["id", "type", "role", "object"].contains(&key.as_str()) => {}
                    Some(known) => merge(known, value),
                    None => drop(known.insert(key.clone(), value.clone())),
                }
            }
        }
        (Value::String(text), Value::String(more)) => text.push_str(more),
        (Value::Array(items), Value::Array(more)) => items.extend(more.iter().cloned()),
        (_, Value::Null) => {}
        (known, later) => *known = later.clone(),
    }
}

/// Folds a stream's JSON as a client does, without using this module's types.
fn folded(events: &[Value], choices: usize) -> (Vec<Value>, Value) {
    let mut whole: Vec<Value> = (0..choices).map(|index| json!({"index": index})).collect();
    let mut usage = Value::Null;
    for event in events {
        merge(&mut usage, &event["usage"]);
        for choice in event["choices"].as_array().expect("choices are a list") {
            let mut choice = choice.clone();
            let index = choice["index"]
                .take()
                .as_u64()
                .expect("an index is a number") as usize;
            let delta = choice.get_mut("delta").and_then(Value::as_object_mut);
            let calls = delta
                .and_then(|delta| delta.remove("tool_calls"))
                .unwrap_or_default();
            merge(&mut whole[index], &choice);
            for call in calls.as_array().into_iter().flatten() {
                let all = whole[index].as_object_mut().expect("a choice is an object");
                let all = all
                    .entry("calls")
                    .or_insert_with(|| json!([]))
                    .as_array_mut()
                    .expect("calls are a list");
                let place = call["index"].as_u64().expect("an index is a number") as usize;
                all.resize(all.len().max(place + 1), Value::Object(Map::new()));
                merge(&mut all[place], call);
            }
        }
    }
    (whole, usage)
}

/// A choice of a whole reply, in the form that [`folded`] returns.
fn comparable(choice: &Value) -> Value {
    let mut same = choice.clone();
    let map = same.as_object_mut().expect("a choice is an object");
    if let Some(Value::Object(mut message)) = map.remove("message") {
        assert_eq!(message.remove("refusal"), Some(Value::Null));
        if let Some(Value::Array(mut calls)) = message.remove("tool_calls") {
            for (index, call) in calls.iter_mut().enumerate() {
                call["index"] = index.into();
            }
            map.insert("calls".into(), calls.into());
        }
        if message["content"].is_null() {
            message.insert("content".into(), "".into());
        }
        map.insert("delta".into(), message.into());
    }
    same
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_whole_reply_is_the_fold_of_its_stream(
        chat in any::<bool>(),
        flags in any::<[bool; 4]>(),
        answers in proptest::collection::vec(answer(), 1..4),
    ) {
        let kind = if chat { Kind::Chat } else { Kind::Completion };
        let form = || form(kind, flags, answers.len());
        let all = |cut| -> Vec<Delta> {
            answers.iter().enumerate().flat_map(|(choice, answer)| deltas(choice, answer, cut)).collect()
        };
        let (events, whole) = both(form(), all(true));
        let (choices, usage) = folded(&events, answers.len());
        let expected: Vec<Value> = whole["choices"].as_array().expect("a list").iter().map(comparable).collect();
        for (choice, mut expected) in choices.into_iter().zip(expected) {
            if choice.get("token_ids").is_none() && expected["token_ids"] == json!([]) {
                expected.as_object_mut().expect("an object").remove("token_ids");
            }
            prop_assert_eq!(choice, expected);
        }
        prop_assert_eq!(&usage, &whole["usage"]);
        prop_assert_eq!(&events[0]["prompt_logprobs"], &whole["prompt_logprobs"]);
        prop_assert_eq!(&events[0]["prompt_token_ids"], &whole["prompt_token_ids"]);

        // A slow reader gets one delta per choice, and the same reply.
        let (_, at_once) = both(form(), all(false));
        prop_assert_eq!(at_once, whole);
    }
}
