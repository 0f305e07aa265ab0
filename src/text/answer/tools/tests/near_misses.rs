//! Tests of calls of Gemma and LFM2 that are not written as their templates show them.

use super::super::gemma::{MARKERS, MARKERS_4};
use super::*;

fn python(calls: &str) -> String {
    format!("<|tool_call_start|>{calls}<|tool_call_end|>")
}

/// A call in both notations of Gemma, as the second writes it.
fn gemma(call: &str) -> [(ToolParser, String); 2] {
    let four = format!("<|tool_call>{call}<tool_call|>");
    let pairs = MARKERS.iter().zip(MARKERS_4);
    let first = pairs.fold(four.clone(), |text, (own, other)| text.replace(other, own));
    [(ToolParser::Gemma, first), (ToolParser::Gemma4, four)]
}

#[test]
fn a_text_argument_is_a_text_without_its_quotes() {
    let weather = ("weather", json!({"city": "75001", "days": 3}));
    for (form, answer) in gemma("call:weather{city:75001,days:3}") {
        check(form, &answer, "", std::slice::from_ref(&weather));
    }
    let answer = python("[weather(city=75001, days=3)]");
    check(ToolParser::Lfm2, &answer, "", &[weather]);
    for city in ["Paris", "007", "true story"] {
        let weather = ("weather", json!({"city": city}));
        for (form, answer) in gemma(&format!("call:weather{{city:{city}}}")) {
            check(form, &answer, "", std::slice::from_ref(&weather));
        }
        let answer = python(&format!("[weather(city={city})]"));
        check(ToolParser::Lfm2, &answer, "", &[weather]);
    }
}

#[test]
fn values_within_an_argument_have_the_types_of_its_schema() {
    let code = json!({"type": "string"});
    let place = json!({"properties": {"code": {"anyOf": [code, {"type": "null"}]}, "id": {"type": "integer"}}});
    let codes = json!({"type": "array", "items": {"$ref": "#/$defs/Code"}});
    let schema = json!({"properties": {"place": {"$ref": "#/$defs/Place"}, "codes": codes},
        "$defs": {"Place": place, "Code": code}});
    let tools = Arc::new(ToolSet::new(vec![
        json!({"name": "go", "parameters": schema}),
    ]));
    for (form, answer) in gemma("call:go{place:{code:75001,id:7},codes:[1,x,2]}") {
        let (mut parser, mut parts) = (CallParser::new(form, &tools), Parts::default());
        parser.push(&answer, &mut parts);
        parser.finish(&mut parts, false);
        let expected = json!({"place": {"code": "75001", "id": 7}, "codes": ["1", "x", "2"]});
        assert_eq!(told(&parts).1, [("go".to_owned(), expected)], "{form:?}");
    }
}

#[test]
fn gemmas_near_misses_are_calls() {
    let paris = [("weather", json!({"city": "Paris"}))];
    let two = [paris[0].clone(), paris[0].clone()];
    for call in [
        ":weather{city:<|\"|>Paris<|\"|>}",
        "call: weather {city: <|\"|>Paris<|\"|>}",
        "call:weather{city:\"Paris\"}",
        "call:weather{\"city\":\"Paris\"}",
        "call:weather{<|\"|>city<|\"|>:<|\"|>Paris<|\"|>}",
        "call:weather{city:<|\"|>Paris<|\"|>,}",
        "call:weather{city:<|\"|>Paris<|\"|>",
        "call:weather{city:<|\"|>Paris",
        "call:weather{city:Paris",
    ] {
        for (form, answer) in gemma(call) {
            check(form, &answer, "", &paris);
            check(form, &format!("{answer}{answer}"), "", &two);
            // The text ends instead of the call.
            let end = answer.rfind('<').expect("the marker");
            check(form, &answer[..end], "", &paris);
        }
    }
    let text = "a <tool_call|> b <|tool_call> c, {d}: [e]";
    for (form, answer) in gemma(&format!("call:weather{{city:<|\"|>{text}<|\"|>}}")) {
        let text = gemma(text).map(|(_, answer)| answer);
        let text = &text[usize::from(form == ToolParser::Gemma4)];
        let [open, close] = match form {
            ToolParser::Gemma => ["<start_function_call>", "<end_function_call>"],
            _ => ["<|tool_call>", "<tool_call|>"],
        };
        let text = text
            .strip_prefix(open)
            .and_then(|text| text.strip_suffix(close));
        check(form, &answer, "", &[("weather", json!({"city": text}))]);
    }
}

#[test]
fn lfm2s_near_misses_are_calls() {
    for (calls, arguments) in [
        (
            "[write(mode='sed -n '1,2p' f')]",
            json!({"mode": "sed -n '1,2p' f"}),
        ),
        (
            "[write(mode=\"echo \"a\" | cat\", path='x')]",
            json!({"mode": "echo \"a\" | cat", "path": "x"}),
        ),
        (
            "[write(mode='f('x')', path=[1])]",
            json!({"mode": "f('x')", "path": [1]}),
        ),
        (
            "[write(mode='''a 'b' \"c\"\nd''')]",
            json!({"mode": "a 'b' \"c\"\nd"}),
        ),
        ("[write(mode='')]", json!({"mode": ""})),
        ("[write(mode='C:\\dir\\n')]", json!({"mode": "C:\\dir\n"})),
        ("[write(path=07)]", json!({"path": 7})),
        ("[write(path={1, 2})]", json!({"path": [1, 2]})),
        (
            "[write(path={'a': 'it's', 'b': (1, None)})]",
            json!({"path": {"a": "it's", "b": [1, null]}}),
        ),
        ("[write(path=1,)]", json!({"path": 1})),
        ("[write(path=[1, 2,],),]", json!({"path": [1, 2]})),
        ("write(path=True)", json!({"path": true})),
        ("[write(path='a'", json!({"path": "a"})),
        (
            "[{\"name\": \"write\", \"arguments\": {\"path\": 1}}]",
            json!({"path": 1}),
        ),
        (
            "{\"name\": \"write\", \"arguments\": {\"path\": 1}}",
            json!({"path": 1}),
        ),
        (
            "[{\"name\": \"write\", \"arguments\": {\"path\": 1",
            json!({"path": 1}),
        ),
    ] {
        let write = [("write", arguments)];
        check(ToolParser::Lfm2, &python(calls), "", &write);
        let open = format!("<|tool_call_start|>{calls}");
        check(ToolParser::Lfm2, &open, "", &write);
        let two = [write[0].clone(), write[0].clone()];
        let answer = format!("{0}{0}", python(calls));
        check(ToolParser::Lfm2, &answer, "", &two);
    }
    let two = "[{\"name\": \"add\"}, {\"name\": \"write\", \"arguments\": {\"path\": 1}}]";
    let calls = [("add", json!({})), ("write", json!({"path": 1}))];
    check(ToolParser::Lfm2, &python(two), "", &calls);
    let bad = python("[add(), write(path=b'z')]");
    check(
        ToolParser::Lfm2,
        &bad,
        ", write(path=b'z')]",
        &[("add", json!({}))],
    );
    // A text that is not closed goes on to the end.
    let cut = "<|tool_call_start|>[write(path='a";
    check(
        ToolParser::Lfm2,
        cut,
        "",
        &[("write", json!({"path": "a"}))],
    );
}

#[test]
fn text_between_markers_that_is_no_call_is_content_unchanged() {
    for text in [
        "bad",
        "weather",
        "call weather",
        "call:",
        "call:weather",
        "call:weather(city)",
        "{x: 1}",
        "bad<b>",
    ] {
        for (form, answer) in gemma(text) {
            check(form, &answer, &answer, &[]);
            let said = format!("Say: {answer} so.");
            check(form, &said, &said, &[]);
        }
    }
    for text in [
        "bad",
        "call weather",
        "weather",
        "[1, 2]",
        "[\"add\"]",
        "{\"x\": 1}",
        "a < b",
    ] {
        check(ToolParser::Lfm2, &python(text), &python(text), &[]);
    }
}

/// As vLLM has seen it of LFM2.
#[test]
fn calls_that_are_repeated_after_their_marker_are_no_content() {
    let call = "[write(path='a b', mode=\"]\")]";
    let write = [("write", json!({"path": "a b", "mode": "]"}))];
    for space in ["", "\n"] {
        let answer = format!("{}{space}{call}<|tool_call_end|>", python(call));
        check(ToolParser::Lfm2, &answer, "", &write);
        check(
            ToolParser::Lfm2,
            &format!("{answer}\nDone."),
            "Done.",
            &write,
        );
    }
    let other = format!("{}[write(x", python(call));
    check(ToolParser::Lfm2, &other, "[write(x", &write);
}
